"""`cardinal serve`: a stream to many clients over websockets."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cardinal import apps
from cardinal._concurrency import run_in_thread
from cardinal.cli.common import config_option, stream
from cardinal.cli.stopping import cancelled_when_told
from cardinal.config.secrets import variable
from cardinal.consumer import find_application
from cardinal.errors import ConfigurationError
from cardinal.server.serve import DEFAULT_PORT, ServeProgress, ServeService, ServeSettings
from cardinal.server.serving.tokens import read_tokens

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.transports import TransportUrl

_REPORT_SECONDS = 10.0
_THREAD = "cardinal-serve-finding"
_TOKEN_VARIABLE = "CARDINAL_SERVE_TOKEN"  # noqa: S105 - the variable's name
_LISTEN = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/\s]+)(?::(?P<port>\d{1,5}))?")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_MB = 1_000_000
_File = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--from", "from_url", required=True, metavar="URL", help="The stream: kafka://host:port")
@click.option("--listen", default=f"127.0.0.1:{DEFAULT_PORT}", show_default=True, metavar="HOST:PORT")
@click.option("--chain-id", type=click.IntRange(1), help="Which stream, where there are several.")
@click.option(
    "--token-file",
    type=_File,
    help=f"Tokens, one a line, of which clients show one; may change meanwhile (or set {_TOKEN_VARIABLE}).",
)
@click.option("--cert-file", type=_File, help="Serve wss:// with this certificate (PEM, with its chain).")
@click.option("--key-file", type=_File, help="Its key (PEM), where it is in another file.")
@click.option("--compression", type=click.Choice(["deflate", "none"]), default="deflate", show_default=True)
@click.option("--ring-mb", type=click.IntRange(1), default=64, show_default=True, help="Recent records kept in memory.")
@click.option("--max-clients", type=click.IntRange(1), default=256, show_default=True)
@click.option(
    "--catch-up",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="How many clients older than memory read at once; others wait their turn.",
)
@click.option(
    "--slow-seconds",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="Close clients that are older than memory and took nothing for so long.",
)
@click.option("--ping-seconds", type=click.FloatRange(min=0.1), default=20.0, show_default=True)
@config_option
def serve(  # noqa: PLR0917 - click gives options by name
    from_url: str,
    listen: str,
    chain_id: int | None,
    token_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    compression: str,
    ring_mb: int,
    max_clients: int,
    catch_up: int,
    slow_seconds: float,
    ping_seconds: float,
    config: Path | None,
) -> None:
    """Send a stream to many clients, read once: they open it as ws://HOST:PORT (wss:// with --cert-file).

    Stops cleanly on SIGINT and SIGTERM. Clients wait for it to come back, and go on where they were.
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
        ring_bytes=ring_mb << 20,
        clients_max=max_clients,
        errands_max=catch_up,
        slow_seconds=slow_seconds,
        ping_seconds=ping_seconds,
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    asyncio.run(_serve(stream(from_url, config), settings, chain_id))


async def _serve(from_url: TransportUrl, settings: ServeSettings, chain_id: int | None) -> None:
    service: ServeService | None = None
    try:
        with cancelled_when_told():
            # On a thread that nobody waits for who is told to stop before the stream has answered.
            app = await asyncio.wrap_future(run_in_thread(lambda: _application(from_url, chain_id), _THREAD))
            service = ServeService(from_url, app, settings)
            await service.start()
            _say_where(settings, service.port, app.chain)
            await _until_it_ends(service)
    except asyncio.CancelledError:
        pass  # told to stop
    finally:
        if service is not None:
            await service.stop()


async def _until_it_ends(service: ServeService) -> None:
    reporting = asyncio.create_task(_report_now_and_then(service))
    try:
        await service.run()
    finally:
        reporting.cancel()


async def _report_now_and_then(service: ServeService) -> None:
    before = service.progress
    while True:
        await asyncio.sleep(_REPORT_SECONDS)
        before = _report(before, service.progress)


def _application(from_url: TransportUrl, chain_id: int | None) -> Application:
    return find_application(from_url, "evm") if chain_id is None else apps.get("evm", chain_id=chain_id)


def _address(listen: str) -> tuple[str, int]:
    match = _LISTEN.fullmatch(listen)
    port = int(match["port"] or DEFAULT_PORT) if match else -1
    if match is None or port > 0xFFFF:  # noqa: PLR2004 - the highest port
        raise ConfigurationError("--listen is an address to listen on: write HOST:PORT", setting="listen")
    return match["host"].strip("[]"), port


def _tokens(file: Path | None) -> tuple[str, ...]:
    """The token of the environment, where no file holds any. What is wrong with the file is said before anything."""
    if file is not None:
        read_tokens(file)
        return ()
    token = variable(_TOKEN_VARIABLE)
    return (token,) if token else ()


def _say_where(settings: ServeSettings, port: int, chain: str) -> None:
    scheme = "wss" if settings.certificate else "ws"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    click.echo(f"serves {chain} at {scheme}://{host}:{port}", err=True)
    wanted = bool(settings.tokens or settings.token_file)
    if settings.host not in _LOOPBACK and not wanted:
        click.echo("warning: everybody who reaches this address may read: give --token-file", err=True)
    elif wanted and scheme == "ws" and settings.host not in _LOOPBACK:
        click.echo("warning: tokens travel unencrypted: give --cert-file, or let a proxy encrypt", err=True)


def _report(before: ServeProgress, now: ServeProgress) -> ServeProgress:
    if now != before:
        records, sent = (now.records - before.records), (now.bytes - before.bytes) / _MB
        older = f", {now.catching_up} catching up" if now.catching_up else ""
        click.echo(f"{now.clients} clients{older}: {records} records read, {sent:.1f} MB sent", err=True)
    return now
