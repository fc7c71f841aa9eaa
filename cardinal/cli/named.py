"""Streams and nodes by name on the command line: the option --config, and what stands behind a name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cardinal.transports.secrets import with_secrets
from cardinal.transports.settings import CONFIG_VARIABLE, find_url

if TYPE_CHECKING:
    from cardinal.transports import TransportUrl

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"TOML file that names streams and nodes (or set {CONFIG_VARIABLE}).",
)


def stream(text: str, config: Path | None) -> TransportUrl:
    """The stream that a user named, or gave the URL of, with its secrets: what of it is wrong is said before anything.

    Raises:
        ConfigurationError: see :func:`cardinal.transports.settings.find_url`; or a secret's file cannot be read.

    """
    return with_secrets(find_url(text, config))
