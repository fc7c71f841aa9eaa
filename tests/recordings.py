"""Helpers of the tests that record streams and play recordings."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import reading
from blocks import Blocks, block, line
from cardinal.copying.recording import Recorder
from cardinal.copying.replaying import Player
from cardinal.protocols.streams import Record
from cardinal.protocols.streams.payload import Payload
from cardinal.transports import Capabilities, open_sink, open_source
from waiting import until

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.transports import Sink


def record_all(url: str, folder: Path, app: Application | None = None, **options: str) -> Recorder:
    """Record to the end of what is there."""
    recorder = Recorder(url, f"file://{folder}", app or Blocks(), **options)
    until(lambda: recorder.at_end, step=lambda: recorder.step(0.05))
    recorder.close()
    return recorder


class Plain:
    """A sink with the abilities of every sink, and no others."""

    capabilities = Capabilities()

    def __init__(self, sink: Sink) -> None:
        self.check, self.send, self.recent, self.flush, self.close = (
            sink.check,
            sink.send,
            sink.recent,
            sink.flush,
            sink.close,
        )


def play_all(folder: Path, url: str, topics: list[str] | None = None, *, as_they_are: bool = True) -> Player:
    """Play to the end."""
    app = Blocks()
    source = open_source(f"file://{folder}", app, topics=topics)
    sink = open_sink(url, app, producer_id="replay")
    try:
        player = Player(source, sink if as_they_are else Plain(sink), app)
        while player.step():
            pass
    finally:
        sink.close()
        source.close()
    return player


def records_of(url: str, app: Application | None = None, topics: list[str] | None = None) -> list[Record]:
    """Everything, in the order of reading."""
    with closing(open_source(url, app or Blocks(), topics=topics)) as source:
        return reading.everything(source)


def fork() -> list[Payload]:
    """Two reorgs and a fork that loses."""
    return [
        *line(1, 6),
        *line(5, 8, "b", below="4a", weight=1),
        block("8a", "7b", weight=7),
        *line(8, 10, "c", below="7b", weight=2),
    ]
