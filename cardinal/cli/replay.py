"""`cardinal replay`: play a recording into a stream, or list its records. Arguments and printing only."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from cardinal.cli.common import app_option, application, chain_id_option, config_option, stream, topic_option
from cardinal.cli.writing import output
from cardinal.copying.replaying import Player, readable_watermarks
from cardinal.errors import ConfigurationError, TopicError
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.texts import Count
from cardinal.transports import list_topics, open_sink, open_source
from cardinal.transports.file import folder_of

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.config.url import TransportUrl
    from cardinal.copying.replaying import Played
    from cardinal.protocols.streams.types import Record
    from cardinal.transports import Source
    from cardinal.transports.registry import Topics

_log = logging.getLogger("cardinal.replay")
_REPORT_SECONDS: Final = 2.0
_POLL_RECORDS: Final = 1_000
_KINDS: Final = {
    0x00: "Batch",
    0x01: "SubBatchHeader",
    0x02: "SubBatchMsg",
    0x03: "BatchMsg",
    0x04: "BatchDeleteMsg",
    0x05: "Reorg",
    0x06: "ReorgComplete",
    0xFF: "Ping",
}


def _speed(context: click.Context, parameter: click.Parameter, value: str) -> float | None:
    del context, parameter
    try:
        speed = None if value == "max" else float(value)
    except ValueError:
        speed = 0.0
    if speed is not None and not 0 < speed < float("inf"):
        raise click.BadParameter("write max, or how many times as fast as recorded: 1, 0.5, 60")
    return speed


@click.command()
@click.option("--from", "from_url", required=True, metavar="URL", help="Folder of the recording: file:///folder")
@click.option("--to", "to_url", metavar="URL", help="Stream to write; without it each record is printed as one line.")
@click.option(
    "--speed", default="max", show_default=True, callback=_speed, help="max, or a factor: 1 plays as fast as recorded."
)
@click.option(
    "--producer-id",
    default="replay",
    show_default=True,
    help="Producer id where the target cannot keep the recorded ids.",
)
@app_option
@chain_id_option
@topic_option
@config_option
def replay(
    *,
    from_url: str,
    to_url: str | None,
    speed: float | None,
    producer_id: str,
    app_name: str,
    chain_id: int | None,
    topic: str | None,
    config: Path | None,
) -> None:
    """Play a recording into a stream, in the recorded order.

    It ends at the recording's current end. Records keep the names of their topics; --topic names the default topic of
    the recorded stream.

    \b
    Examples:
      cardinal replay --from file:///var/lib/recording --to kafka://localhost:9092
      cardinal replay --from file:///var/lib/recording | tail -n 1
    """
    url = stream(from_url, config)
    if url.scheme != "file":
        raise click.BadParameter("a recording is a folder: write file://DIR", param_hint="--from")
    if not (folder := folder_of(url)).exists():
        raise ConfigurationError(f"there is no recording in {folder}: name the folder of one", setting="from")
    target = None if to_url is None else stream(to_url, config)
    if target is not None and _writes_to(target, folder):
        raise ConfigurationError(
            f"--to is the recording {url.address} itself, which would then hold everything twice: name another stream",
            setting="to",
        )
    try:
        app = application(url, app_name, chain_id, topic, wait=0.0)
    except TopicError:
        raise ConfigurationError(
            f"{folder} holds no recording of an {app_name} stream: name a folder that `cardinal record` wrote, or its "
            "application by --app",
            setting="from",
        ) from None
    channels = sorted(topic for topic in list_topics(url) if topic.startswith(f"{app.default_topic}-re-"))
    with closing(open_source(url, app, topics=(*app.all_topics, *channels))) as source:
        if target is None:
            _print(source)
        else:
            _play(source, target, app, producer_id, speed)


def _writes_to(target: TransportUrl, folder: Path) -> bool:
    """True if a sink, or a member of one, is this folder, under any name."""
    if target.scheme == "file":
        return folder_of(target).resolve() == folder.resolve()
    return any(_writes_to(member, folder) for _, member in target.members)


def _play(source: Source, target: TransportUrl, app: Topics, producer_id: str, speed: float | None) -> None:
    with closing(open_sink(target, app, producer_id=producer_id)) as sink:
        player = Player(source, sink, app, speed=speed)
        began = reported = time.monotonic()
        before = player.played
        try:
            while player.step():
                now = time.monotonic()
                if now - reported >= _REPORT_SECONDS:
                    before = _report(before, player, now - reported)
                    reported = now
        finally:
            done, seconds = player.played, time.monotonic() - began
            _log.info("%s without heartbeats, %s sealed, %.1f MB in %.1f s", *_counts(done), done.bytes / 1e6, seconds)


def _report(before: Played, player: Player, seconds: float) -> Played:
    now = player.played
    rate = (now.records - before.records) / seconds
    records, blocks = _counts(now)
    _log.info("%s, %.0f/s, %s sealed, %d left", records, rate, blocks, player.left)
    return now


def _counts(played: Played) -> tuple[Count, Count]:
    return Count(played.records, "record"), Count(played.seals, "block")


def _print(source: Source) -> None:
    watermarks, damage = readable_watermarks(source)
    source.assign({tp: low for tp, (low, _) in watermarks.items()})
    with output() as write:
        while any(at < watermarks[tp][1] for tp, at in source.positions().items()):
            for record in source.poll(_POLL_RECORDS, 0.0):
                write(_line(record))
        if damage is not None:
            raise damage


def _line(record: Record) -> str:
    kind = _KINDS.get(record.key[0], "unknown") if record.key else "Heartbeat"
    block = f"0x{record.key[1:HASH_END].hex()}" if record.key else "-"
    names = ",".join(name for name, _ in record.headers) or "-"
    size = Count(len(record.key) + len(record.value), "byte")
    moment = _moment(record.timestamp_ms)
    return f"{moment}  {record.topic}:{record.partition}@{record.offset}  {kind}  {block}  {size}  {names}"


def _moment(timestamp_ms: int) -> str:
    """A readable time; the number of one that no calendar has."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{timestamp_ms} ms"
