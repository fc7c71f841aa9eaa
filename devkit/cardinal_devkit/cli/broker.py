"""`cardinal broker`: one Kafka broker on this machine, which outlives the command that starts it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cardinal_devkit.errors import DataInUseError, EmbeddedBrokerError

if TYPE_CHECKING:
    from cardinal_devkit.kafka.pidfile import RunningBroker

_WAIT_SECONDS = 90

_data = click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="Data folder.  [default: in your user data folder]"
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def broker() -> None:
    """A real Kafka broker on this machine, without Docker and without a system Java.

    \b
    Examples:
      cardinal broker up
      cardinal broker status --json
      cardinal broker down
    """


@broker.command()
@_data
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on.  [default: as before; at first 9092 if free]"
)
@_json
def up(data: Path | None, port: int | None, *, as_json: bool) -> None:
    """Start the broker; it runs until `cardinal broker down`.

    \b
    Example:
      cardinal broker up --port 9092
    """
    from cardinal_devkit.kafka.broker import EmbeddedKafka  # noqa: PLC0415 - `--help` stays quick
    from cardinal_devkit.kafka.state import HOST  # noqa: PLC0415 - the same

    from .jar_bar import JarBar  # noqa: PLC0415 - the same

    folder = _folder(data)
    running = _wait_for_address(folder)
    while running is None:
        try:
            with JarBar() as bar:
                kafka = EmbeddedKafka(folder, port=port or _first_port(folder), progress=bar.report)
                begun = time.monotonic()
                kafka.start()
        except DataInUseError:  # a concurrent `up` was first: use its broker
            running = _wait_for_address(folder)
        else:
            seconds = time.monotonic() - begun - bar.seconds
            running = kafka.detach()
            sentence = f"up at {running.bootstrap} (process {running.pid}) in {seconds:.1f} s; data and log: {folder}"
            _say(running, as_json=as_json, sentence=sentence)
            return
    if port is not None and running.bootstrap != f"{HOST}:{port}":
        raise EmbeddedBrokerError(
            f"the broker on {folder} already runs at {running.bootstrap}: stop it with "
            f"`cardinal broker down --data {folder}` first"
        )
    _say(running, as_json=as_json, sentence=f"already up at {running.bootstrap} (process {running.pid})")


@broker.command()
@_data
def down(data: Path | None) -> None:
    """Stop the broker. Its data stays.

    \b
    Example:
      cardinal broker down
    """
    from cardinal_devkit.kafka.pidfile import end_broker  # noqa: PLC0415 - `--help` stays quick

    folder = _folder(data)
    ended = end_broker(folder)
    click.echo(f"no broker runs on {folder}" if ended is None else f"stopped process {ended.pid}; its data stays")


@broker.command()
@_data
@_json
def status(data: Path | None, *, as_json: bool) -> None:
    """Print the broker's address; exit status 1 if it does not run.

    \b
    Example:
      cardinal broker status --json
    """
    from cardinal_devkit.kafka.pidfile import find_broker  # noqa: PLC0415 - `--help` stays quick

    folder = _folder(data)
    running = find_broker(folder)
    if running is None:
        click.echo(json.dumps({"bootstrap": None, "pid": None}) if as_json else f"no broker runs on {folder}")
        sys.exit(1)
    sentence = f"up at {running.bootstrap} (process {running.pid})" if running.pid else "being started"
    _say(running, as_json=as_json, sentence=sentence)


def _folder(data: Path | None) -> Path:
    from cardinal._directories import data_folder  # noqa: PLC0415 - `--help` stays quick

    return (data or data_folder()).absolute()


def _first_port(folder: Path) -> int | None:
    """Kafka's usual port for a new data folder, if it is free; None: the broker chooses."""
    from cardinal_devkit.kafka import state  # noqa: PLC0415 - `--help` stays quick

    usual = 9092
    return usual if state.load_state(folder) is None and state.is_free(usual) else None


def _wait_for_address(folder: Path) -> RunningBroker | None:
    """The running broker of the folder; waits for one that another command is starting."""
    from cardinal_devkit.kafka.pidfile import find_broker  # noqa: PLC0415 - `--help` stays quick

    deadline = time.monotonic() + _WAIT_SECONDS
    while (running := find_broker(folder)) is not None and not running.ready:
        if time.monotonic() > deadline:
            raise EmbeddedBrokerError(
                f"the broker on {folder} is being started and does not get ready: see its server.log"
            )
        time.sleep(0.05)
    return running


def _say(running: RunningBroker, *, as_json: bool, sentence: str) -> None:
    click.echo(json.dumps({"bootstrap": running.bootstrap, "pid": running.pid}) if as_json else sentence)
