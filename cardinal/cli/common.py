"""Options that several commands share, and the streams and applications that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cardinal import apps
from cardinal.config.secrets import check_secrets
from cardinal.config.settings import CONFIG_VARIABLE, find_url
from cardinal.consumer import find_application
from cardinal.consuming.options import find_streams
from cardinal.errors import ConfigurationError, TopicError
from cardinal.transports import memory
from cardinal.transports.file import folder_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.apps import Application
    from cardinal.transports import TransportUrl

STREAM_SECONDS: Final = 10.0
"""Seconds to wait for a stream to appear: its producer may be starting."""


_APPLICATIONS: Final = " or ".join(", ".join(apps.names()).rsplit(", ", 1))

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"TOML file that names streams and nodes (or set {CONFIG_VARIABLE}).",
)
app_option = click.option(
    "--app", "app_name", default=apps.DEFAULT, show_default=True, help=f"Application: {_APPLICATIONS}."
)
any_app_option = click.option("--app", "app_name", help=f"Only streams of this application: {_APPLICATIONS}.")
chain_id_option = click.option(
    "--chain-id", type=click.IntRange(1), help="Chain id of the stream, where the server has several."
)
topic_option = click.option(
    "--topic", help="Default topic of the stream, where it is not the application's own (needs --chain-id)."
)


def wait_option(text: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """The option ``--wait SECONDS``, as the argument ``wait``; None without it."""
    return click.option("--wait", type=click.FloatRange(0), metavar="SECONDS", help=text)


metrics_option = click.option(
    "--metrics", metavar="HOST:PORT", help="Serve /metrics (Prometheus), /healthz and /readyz here."
)


def stream(text: str, config: Path | None) -> TransportUrl:
    """The URL of a stream, from a URL or a name of the settings file; checks the files of its secrets.

    Raises:
        ConfigurationError: the URL or name cannot be used, or the file of a secret cannot be read.

    """
    url = find_url(text, config)
    if url.scheme == "memory" and not memory.exists(url.address):  # no wait heals it
        raise ConfigurationError(
            f"there is no memory broker {url.address!r} in this process, which is a command's: write kafka://host:port "
            "or file:///folder",
            setting="url",
        )
    check_secrets(url)
    return url


def application(
    url: TransportUrl, app_name: str, chain_id: int | None, topic: str | None = None, *, wait: float = STREAM_SECONDS
) -> Application:
    """The application of a stream on a server: the one that the options name, or the only one.

    Arguments:
        url: the server.
        app_name: the application's name.
        chain_id: the chain; None: the only one on the server.
        topic: the default topic; None: the application's own.
        wait: seconds in which the stream may appear.

    Raises:
        ConfigurationError: the server has several streams; the message lists them.
        TopicError: the server has no such stream; the message lists those that exist.

    """
    if topic is not None:
        if chain_id is None:
            raise click.UsageError("--topic does not say which chain the topic holds: add --chain-id")
        return apps.get(app_name, chain_id=chain_id, topic=topic)
    check_folder(url)
    return find_application(url, app_name, chain_id=chain_id, wait=wait)


def streams(url: TransportUrl, app_name: str | None, chain_id: int | None, topic: str | None) -> list[Application]:
    """The streams on a server that the options name; without any, those of all applications.

    Raises:
        TopicError: the server has none.

    """
    if chain_id is not None or topic is not None:
        return [application(url, app_name or apps.DEFAULT, chain_id, topic, wait=0.0)]
    check_folder(url)
    names = apps.names() if app_name is None else (app_name,)
    found = [app for name in names for app in find_streams(url, name).values()]
    if not found:
        raise TopicError(
            f"there is no {app_name or 'known'} stream on {url}: start `cardinal produce`, or give the --chain-id "
            "and --topic of a stream whose topics have another name",
            topic="",
        )
    return found


def check_folder(url: TransportUrl) -> None:
    """ConfigurationError for a folder that does not exist."""
    if url.scheme == "file" and not folder_of(url).exists():
        raise ConfigurationError(
            f"there is no folder {folder_of(url)}: check the path, or start `cardinal produce` or `cardinal record`",
            setting="url",
        )
