"""`cardinal serve`: send a stream to many clients over websockets."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cardinal._concurrency import run_in_thread
from cardinal.cli.common import (
    app_option,
    application,
    chain_id_option,
    config_option,
    metrics_option,
    stream,
    topic_option,
)
from cardinal.cli.stopping import cancelled_when_told
from cardinal.config.secrets import variable
from cardinal.errors import ConfigurationError, TopicError, UnreachableError
from cardinal.metrics import Endpoint, new_registry
from cardinal_relay.server import DEFAULT_PORT, ServeService, ServeSettings
from cardinal_relay.server.service import read_tokens
from cardinal_relay.server.status import StatusCollector

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.apps import Application
    from cardinal.transports import TransportUrl
    from cardinal_relay.server import ServeStatus

_SCRAPE_SECONDS: Final = 5.0
_FIND_SECONDS: Final = 1.0
_THREAD: Final = "cardinal-serve-open"
_TOKEN_VARIABLE: Final = "CARDINAL_SERVE_TOKEN"  # noqa: S105 - the variable's name
_LISTEN: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/\s]+)(?::(?P<port>\d{1,5}))?")
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_File = click.Path(path_type=Path, dir_okay=False)

_log = logging.getLogger("cardinal.serve")


@click.command()
@click.option("--from", "from_url", required=True, metavar="URL", help="Stream to send: kafka://host:port.")
@click.option(
    "--listen",
    default=f"127.0.0.1:{DEFAULT_PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for clients.",
)
@app_option
@topic_option
@chain_id_option
@click.option(
    "--token-file",
    type=_File,
    help=f"File of accepted bearer tokens, one per line, read at every connection (or set {_TOKEN_VARIABLE}).",
)
@click.option("--cert-file", type=_File, help="Serve wss:// with this certificate chain (PEM).")
@click.option("--key-file", type=_File, help="Private key (PEM), if it is not in --cert-file.")
@click.option(
    "--compression",
    type=click.Choice(["snappy", "none"]),
    default="snappy",
    show_default=True,
    help="Compression of records, once for all clients.",
)
@click.option(
    "--buffer-mb", type=click.IntRange(1), default=64, show_default=True, help="Memory for recent records, in MiB."
)
@click.option(
    "--max-clients", type=click.IntRange(1), default=256, show_default=True, help="Clients connected at once."
)
@click.option(
    "--max-catch-up",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Clients that read older records than the buffer holds at once; others wait.",
)
@metrics_option
@config_option
def serve(  # noqa: PLR0917 - click passes options by name
    from_url: str,
    listen: str,
    app_name: str,
    topic: str | None,
    chain_id: int | None,
    token_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    compression: str,
    buffer_mb: int,
    max_clients: int,
    max_catch_up: int,
    metrics: str | None,
    config: Path | None,
) -> None:
    """Send a stream to many clients over websockets; it is read once.

    Waits for a stream that does not exist yet, or whose server is unreachable. Clients open it as ws://HOST:PORT, or
    wss://HOST:PORT with --cert-file. SIGINT and SIGTERM stop the server; clients wait for its return and resume.

    \b
    Example:
      cardinal serve --from kafka://localhost:9092 --listen 0.0.0.0:8765 --token-file tokens --metrics 127.0.0.1:9464
      cardinal tail 'ws://localhost:8765?token_file=token'
    """
    host, port = _address(listen)
    settings = ServeSettings(
        host,
        port,
        tokens=_tokens(token_file),
        token_file=token_file,
        certificate=cert_file,
        key=key_file,
        compression=compression,
        buffer_bytes=buffer_mb << 20,
        clients_max=max_clients,
        catch_up_max=max_catch_up,
    )
    source = stream(from_url, config)
    asyncio.run(_serve(source, settings, lambda: application(source, app_name, chain_id, topic, wait=0.0), metrics))


async def _serve(
    source: TransportUrl, settings: ServeSettings, find: Callable[[], Application], metrics: str | None
) -> None:
    service = ServeService(source, settings)
    endpoint: Endpoint | None = None
    try:
        with cancelled_when_told():
            if metrics is not None:
                endpoint = _endpoint(metrics, service)
            app = await _find_application(service, find)
            await service.start(app)
            _log_address(settings, service.port, app.chain)
            await service.run()
    except asyncio.CancelledError:
        pass  # stopped by a signal
    finally:
        await service.stop()
        if endpoint is not None:
            endpoint.close()


async def _find_application(service: ServeService, find: Callable[[], Application]) -> Application:
    """The application of the stream; waits for the stream. Raises as :func:`cardinal.cli.common.application`."""
    while True:
        try:
            # On a daemon thread, so that the command can stop before the stream answers.
            return await asyncio.wrap_future(run_in_thread(find, _THREAD))
        except (TopicError, UnreachableError) as error:
            service.wait_for(error)
        await asyncio.sleep(_FIND_SECONDS)


def _endpoint(address: str, service: ServeService) -> Endpoint:
    """Serve the metrics of the service; its status is taken on the event loop."""
    loop = asyncio.get_running_loop()

    async def status() -> ServeStatus:
        return service.status()

    registry = new_registry()
    registry.register(StatusCollector(lambda: asyncio.run_coroutine_threadsafe(status(), loop).result(_SCRAPE_SECONDS)))
    return Endpoint(address, registry, lambda: service.waits_for)


def _address(listen: str) -> tuple[str, int]:
    match = _LISTEN.fullmatch(listen)
    port = int(match["port"] or DEFAULT_PORT) if match else -1
    if match is None or port > 0xFFFF:  # noqa: PLR2004 - the highest port
        raise ConfigurationError("--listen is an address to listen on: write HOST:PORT", setting="listen")
    return match["host"].strip("[]"), port


def _tokens(file: Path | None) -> tuple[str, ...]:
    """The token of the environment, if there is no file. ConfigurationError: the file cannot be used."""
    if file is not None:
        read_tokens(file)
        return ()
    token = variable(_TOKEN_VARIABLE)
    return (token,) if token else ()


def _log_address(settings: ServeSettings, port: int, chain: str) -> None:
    scheme = "wss" if settings.certificate else "ws"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    _log.info("serving %s at %s://%s:%d", chain, scheme, host, port)
    authenticated = bool(settings.tokens or settings.token_file)
    if settings.host not in _LOOPBACK and not authenticated:
        _log.warning("everybody who reaches this address may read: set --token-file")
    elif authenticated and scheme == "ws" and settings.host not in _LOOPBACK:
        _log.warning("tokens travel unencrypted: set --cert-file, or encrypt with a proxy")
