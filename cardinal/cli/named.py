"""Streams and nodes by name on the command line: the option --config, and what stands behind a name."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cardinal.errors import ConfigurationError
from cardinal.transports.misspelt import unused
from cardinal.transports.secrets import with_secrets
from cardinal.transports.settings import CONFIG_VARIABLE, TransportSettings, find_url, load_settings
from cardinal.transports.variables import variable

if TYPE_CHECKING:
    from cardinal.transports import TransportUrl


def _with_variables(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Say which variables of the environment name no stream or node that there is."""
    del context, parameter
    file = value or variable(CONFIG_VARIABLE)
    settings = TransportSettings()
    with contextlib.suppress(ConfigurationError):  # told when it is looked into
        settings = settings if file is None else load_settings(Path(file))
    for sentence in unused(os.environ, settings.streams, settings.nodes):
        click.echo(f"warning: {sentence}", err=True)
    return value


config_option = click.option(
    "--config",
    callback=_with_variables,
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"TOML file that names streams and nodes (or set {CONFIG_VARIABLE}).",
)


def stream(text: str, config: Path | None) -> TransportUrl:
    """The stream that a user named, or gave the URL of, with its secrets: what of it is wrong is said before anything.

    Raises:
        ConfigurationError: see :func:`cardinal.transports.settings.find_url`; or a secret's file cannot be read.

    """
    return with_secrets(find_url(text, config))
