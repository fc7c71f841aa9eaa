"""`cardinal record`: copy a stream into a folder, with its positions. Arguments and printing only."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final, Literal

import click

from cardinal.cli.common import app_option, application, chain_id_option, config_option, stream, topic_option
from cardinal.cli.positions import start_option
from cardinal.cli.stopping import call_on_signals, exit_on_signals
from cardinal.consuming.options import find_streams
from cardinal.copying.recording import Recorder
from cardinal.texts import Count

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from cardinal.copying.recording import RecordingProgress

_log = logging.getLogger("cardinal.record")
_REPORT_SECONDS: Final = 2.0
_STEP_SECONDS: Final = 0.2
_TOPICS_SECONDS: Final = 10.0


@click.command()
@click.option("--from", "from_url", required=True, metavar="URL", help="Stream to record: kafka://host:port")
@click.option("--to", "to_url", required=True, metavar="URL", help="Folder of the recording: file:///folder")
@start_option(help="First block of a new recording.")
@click.option(
    "--exit-at",
    type=click.Choice(["end", "idle"]),
    help="End at the stream's current end, or after --idle-timeout without a record.  [default: never]",
)
@click.option(
    "--idle-timeout",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time without a record after which `--exit-at idle` ends.",
)
@app_option
@chain_id_option
@topic_option
@config_option
def record(
    *,
    from_url: str,
    to_url: str,
    start: str | int | datetime,
    exit_at: Literal["end", "idle"] | None,
    idle_timeout: float,
    app_name: str,
    chain_id: int | None,
    topic: str | None,
    config: Path | None,
) -> None:
    """Record a stream in a folder, with positions, times and headers.

    All topics of the application are recorded. A restart resumes where it ended. Stops cleanly on SIGINT and SIGTERM.

    \b
    Example:
      cardinal record --from kafka://localhost:9092 --to file:///var/lib/recording --exit-at end
    """
    source = stream(from_url, config)
    target = stream(to_url, config)
    if target.scheme != "file":
        raise click.BadParameter("a recording is a folder: write file://DIR", param_hint="--to")
    exit_on_signals()  # nothing is recorded yet
    recorded = [*find_streams(target, app_name)] if chain_id is None else []
    if len(recorded) == 1 and recorded[0] in find_streams(source, app_name):
        chain_id = recorded[0]  # it continues that one, whatever other chains appeared on the server
    app = application(source, app_name, chain_id, topic)
    stopped = threading.Event()
    recorder = Recorder(source, target, app, start=start, wait=_TOPICS_SECONDS)
    call_on_signals(stopped.set)
    began = time.monotonic()
    try:
        others = [other.chain for other in find_streams(target, app_name).values() if other.chain != app.chain]
        if others:
            _log.warning("%s also holds a recording of %s: readers must name the chain", target, ", ".join(others))
        verb = "continues" if recorder.resumed else "begins"
        _log.info("%s the recording of %s from %s in %s", verb, app.chain, source, target)
        _record(recorder, stopped, exit_at, idle_timeout)
    finally:
        recorder.close()
        done = recorder.progress
        seconds = time.monotonic() - began
        _log.info("%s, %.1f MB in %.1f s", Count(done.records, "record"), done.bytes / 1e6, seconds)


def _record(recorder: Recorder, stopped: threading.Event, exit_at: Literal["end", "idle"] | None, idle: float) -> None:
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
        if exit_at == "end" and recorder.at_end:
            return
        if exit_at == "idle" and now - heard >= idle and recorder.progress.behind == 0:
            return


def _report(before: RecordingProgress, now: RecordingProgress, seconds: float) -> None:
    if now.records != before.records:
        rate, megabytes = (now.records - before.records) / seconds, (now.bytes - before.bytes) / seconds / 1e6
        _log.info("%s, %.0f/s, %.1f MB/s, %d behind", Count(now.records, "record"), rate, megabytes, now.behind)
