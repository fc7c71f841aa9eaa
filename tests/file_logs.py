"""Helpers of the file transport's tests."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import reading
from cardinal.protocols.streams import Record, Routed
from cardinal.transports import open_sink, open_source
from cardinal.transports.file import FileSettings, FileSink, FileSource, LogWriter

DEADLINE = 60.0


@dataclass(frozen=True)
class Names:
    default_topic: str = "block"
    other: str = "logs"

    @property
    def all_topics(self) -> tuple[str, ...]:
        return (self.default_topic, self.other)


APP = Names()


def sink_of(folder: Path, options: str = "") -> FileSink:
    sink = open_sink(f"file://{folder}?{options}" if options else f"file://{folder}", APP, producer_id="a")
    assert isinstance(sink, FileSink)
    return sink


def source_of(folder: Path) -> FileSource:
    source = open_source(f"file://{folder}", APP)
    assert isinstance(source, FileSource)
    return source


def fill(folder: Path, first: int, last: int, options: str = "fsync=never") -> FileSink:
    """A sink that has written these blocks."""
    sink = sink_of(folder, options)
    for number in range(first, last):
        sink.send(*block(number)).result(DEADLINE)
    return sink


def at_start(folder: Path) -> FileSource:
    source = source_of(folder)
    source.assign({tp: low for tp, (low, _) in source.watermarks().items()})
    return source


def at_end(folder: Path) -> FileSource:
    source = source_of(folder)
    source.assign({tp: high for tp, (_, high) in source.watermarks().items()})
    assert source.poll(10, 0.0) == []
    return source


def read_on(source: FileSource, into: list[Record] | None = None, timeout: float = 0.0) -> None:
    """Poll until nothing comes within the timeout."""
    while polled := source.poll(50, timeout):
        if into is not None:
            into += polled


def numbers_in(records: list[Record]) -> list[int]:
    """The blocks of these records."""
    return [int.from_bytes(record.key[1:33]) for record in records]


def block(number: int, messages: int = 4, size: int = 20) -> tuple[list[Routed], Routed]:
    block_hash = number.to_bytes(32, "big")
    content = [
        Routed("logs", b"\x03" + block_hash + b"p/%d" % index, b"%d" % index * size) for index in range(messages)
    ]
    return content, Routed("block", b"\x00" + block_hash, b"batch")


def everything(folder: Path, *, heartbeats: bool = False) -> list[Record]:
    """Every record that a new reader finds, in the order of reading."""
    with closing(source_of(folder)) as source:
        marks = source.watermarks()
        records = reading.everything(source)
    for where, (low, high) in marks.items():
        assert [one.offset for one in records if one[:2] == where] == list(range(low, high))
    return [record for record in records if record.key or heartbeats]


def write(folder: Path, groups: list[list[Record]], **options: int) -> None:
    """Blocks of records with positions of their own, each an Avro block, as one writer."""
    writer = LogWriter(folder, FileSettings(**options))
    partitions = {(record.topic, record.partition) for group in groups for record in group}
    first = {where: min(r.offset for group in groups for r in group if r[:2] == where) for where in partitions}
    writer.declare({where: offset for where, offset in first.items() if where not in writer.offsets})
    for group in groups:
        assert writer.append([group]) == (1, None)
    writer.close()
