"""`cardinal record`: a stream into a folder, with its positions. Arguments and printing only."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import click

from cardinal import apps
from cardinal.cli.beginning import from_option
from cardinal.cli.named import config_option, stream
from cardinal.cli.stopping import call_when_told, exit_when_told
from cardinal.consumer import find_application
from cardinal.copying.recording import Recorder

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from cardinal.copying.recording import Recorded

_REPORT_SECONDS: Final = 2.0
_STEP_SECONDS: Final = 0.2
_TOPICS_SECONDS: Final = 10.0


@click.command()
@click.argument("from_url", metavar="FROM")
@click.argument("to_url", metavar="TO")
@from_option
@click.option(
    "--until",
    type=click.Choice(["end", "idle", "stopped"]),
    default="stopped",
    show_default=True,
    help="end: what is there now; idle: nothing new for --idle seconds.",
)
@click.option("--idle", type=click.FloatRange(0.1), default=10.0, show_default=True, metavar="SECONDS")
@click.option("--app", "app_name", default="evm", show_default=True, help="The application.")
@click.option("--chain-id", type=click.IntRange(1), help="Which stream, where there are several.")
@config_option
def record(
    *,
    from_url: str,
    to_url: str,
    start: str | int | datetime,
    until: str,
    idle: float,
    app_name: str,
    chain_id: int | None,
    config: Path | None,
) -> None:
    """Record the stream FROM (a URL, or a name in --config) in the folder TO (file://DIR).

    All topics of the application, with positions, times and headers. Started again, it goes on where it ended.
    Stops cleanly on SIGINT and SIGTERM.
    """
    source = stream(from_url, config)
    target = stream(to_url, config)
    if target.scheme != "file":
        raise click.BadParameter("a recording is kept in a folder: write file://DIR", param_hint="TO")
    exit_when_told()  # nothing is recorded yet
    if chain_id is None:
        app = find_application(source, app_name, wait=_TOPICS_SECONDS)
    else:
        app = apps.get(app_name, chain_id=chain_id)
    stopped = threading.Event()
    recorder = Recorder(source, target, app, start=start, wait=_TOPICS_SECONDS)
    call_when_told(stopped.set)
    began = time.monotonic()
    try:
        click.echo(
            f"{'goes on with' if recorder.resumed else 'begins'} the recording of {source} in {target}", err=True
        )
        _record(recorder, stopped, until, idle)
    finally:
        recorder.close()
        done = recorder.progress
        seconds = time.monotonic() - began
        click.echo(f"{done.records} records, {done.bytes / 1e6:.1f} MB in {seconds:.1f} s", err=True)


def _record(recorder: Recorder, stopped: threading.Event, until: str, idle: float) -> None:
    reported, before = time.monotonic(), recorder.progress
    heard = reported
    while not stopped.is_set():
        read = recorder.step(_STEP_SECONDS)
        now = time.monotonic()
        if read:
            heard = now
        if now - reported >= _REPORT_SECONDS:
            _report(before, recorder.progress, now - reported)
            reported, before = now, recorder.progress
        if until == "end" and recorder.at_end:
            return
        if until == "idle" and now - heard >= idle and recorder.progress.behind == 0:
            return


def _report(before: Recorded, now: Recorded, seconds: float) -> None:
    if now.records != before.records:
        rate, megabytes = (now.records - before.records) / seconds, (now.bytes - before.bytes) / seconds / 1e6
        click.echo(f"{now.records} records, {rate:.0f}/s, {megabytes:.1f} MB/s, {now.behind} behind", err=True)
