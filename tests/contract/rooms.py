"""The transports under the contract: a room with topics of its own for each; their messages and readers."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cardinal.protocols.streams.types import Routed
from cardinal.transports import Sink, Source, open_sink, open_source
from cardinal.transports.file.folders import numbers_of, path_of
from cardinal.transports.file.log import Log
from cardinal.transports.partitioner import fnv1a_partition
from cardinal_devkit.testing.memory import MemoryBroker
from reading import to_ends
from serving import serving
from waiting import until

if TYPE_CHECKING:
    from cardinal.protocols.streams import Record
    from cardinal.protocols.streams.types import Partition


DEADLINE = 60.0
PARTITIONS = 3
LIMIT = 100_000
MUX_STRIDE = 64


@dataclass(frozen=True)
class Names:
    default_topic: str
    other: str

    @property
    def all_topics(self) -> tuple[str, ...]:
        return (self.default_topic, self.other)


@dataclass
class Room:
    """A transport under test.

    Attributes:
        url: how it is opened.
        app: topics that nobody has used.
        trim: removes the records of a partition below an offset, or some more, as retention does.
        forget: removes the topics with all that they hold; a sink makes them anew.
        seeks: how many assignments a test may try: on a real server each costs a fifth of a second.
        members: how many copies of a record a reader sees: one in every member of a mux.
        writes: how it is written to, where that is elsewhere.
        opened: sinks and sources that are closed at the end of the test.

    """

    url: str
    app: Names
    trim: Callable[[str, int, int], None]
    forget: Callable[[], None]
    members: int = 1
    seeks: int = 1_000
    writes: str = ""
    opened: list[Sink | Source] = field(default_factory=list)

    def sink(self, producer_id: str = "a") -> Sink:
        sink = open_sink(self.writes or self.url, self.app, producer_id=producer_id)
        self.opened.append(sink)
        return sink

    def source(self, topics: Sequence[str] | None = None) -> Source:
        source = open_source(self.url, self.app, topics=topics)
        self.opened.append(source)
        return source

    def close(self) -> None:
        for one in self.opened:
            one.close()

    def places(self, key: bytes) -> set[int]:
        """The partitions that a key belongs in."""
        return {member * MUX_STRIDE + fnv1a_partition(key, PARTITIONS) for member in range(self.members)}

    def everywhere(self) -> list[tuple[str, int]]:
        """Every partition of both topics."""
        return sorted(
            (topic, member * MUX_STRIDE + number)
            for topic in self.app.all_topics
            for member in range(self.members)
            for number in range(PARTITIONS)
        )


def ends_of(source: Source) -> dict[Partition, int]:
    return {tp: high for tp, (_, high) in source.watermarks().items()}


def from_start(source: Source) -> Source:
    source.assign({partition: low for partition, (low, _) in source.watermarks().items()})
    return source


def with_key(records: list[Record]) -> list[Record]:
    """Without heartbeats."""
    return [record for record in records if record.key]


def names() -> Names:
    stem = uuid.uuid4().hex[:12]
    return Names(f"{stem}-block", f"{stem}-logs")


@contextmanager
def memory() -> Iterator[Room]:
    with MemoryBroker(uuid.uuid4().hex, partitions=PARTITIONS, max_message_bytes=LIMIT) as broker:
        yield Room(broker.url, names(), broker.trim, lambda: _forget(broker))


@contextmanager
def websocket(options: str = "", **settings: int) -> Iterator[Room]:
    """A memory broker, written to as such and read through a server."""
    app = names()
    with (
        MemoryBroker(uuid.uuid4().hex, partitions=PARTITIONS, max_message_bytes=LIMIT) as broker,
        serving(broker.url, app, **settings) as served,
    ):
        yield Room(f"{served.url}{options}", app, broker.trim, lambda: _forget(broker), seeks=8, writes=broker.url)


def _forget(broker: MemoryBroker) -> None:
    with broker._changed:
        for log in broker._logs.values():
            log.records.clear()
        broker._changed.notify_all()


def kafka(bootstrap: str) -> Room:
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - only this case needs it
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - the same

    app = names()

    def trim(topic: str, partition: int, before: int) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result(DEADLINE)

    def forget() -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for done in admin.delete_topics(list(app.all_topics)).values():
            done.result(DEADLINE)
        until(lambda: not set(app.all_topics) & set(admin.list_topics(timeout=DEADLINE).topics))

    options = f"cardinal.partitions={PARTITIONS}&cardinal.max.message.bytes={LIMIT}"
    return Room(f"kafka://{bootstrap}?{options}", app, trim, forget, seeks=4)


def file(folder: Path, options: str = "") -> Room:
    """Segments so small that nearly every group of sends begins one."""

    def trim(topic: str, partition: int, before: int) -> None:
        log = Log(folder)
        for number in numbers_of(folder)[:-1]:
            if log.starts()[topic, partition] >= before:
                break
            path_of(folder, number).unlink()
        log.close()

    return Room(f"{file_url(folder)}{options}", names(), trim, lambda: shutil.rmtree(folder))


def mux(folder: Path) -> Room:
    """Two folders written and read as one."""
    members = [file(folder / "one"), file(folder / "two")]

    def trim(topic: str, partition: int, before: int) -> None:
        for member in members:
            member.trim(topic, partition, before)

    def forget() -> None:
        for member in members:
            member.forget()

    return Room("mux:" + ",".join(member.url for member in members), names(), trim, forget, members=len(members))


def file_url(folder: Path) -> str:
    sizes = f"cardinal.partitions={PARTITIONS}&cardinal.max.message.bytes={LIMIT}"
    return f"file://{folder}?segment.bytes=1000&{sizes}"


def block(app: Names, name: int, messages: int = 10) -> tuple[list[Routed], Routed]:
    block_hash = name.to_bytes(32, "big")
    content = [
        Routed(
            app.other if index % 2 else app.default_topic, b"\x03" + block_hash + b"p/%d" % index, b"value %d" % index
        )
        for index in range(messages)
    ]
    return content, Routed(app.default_topic, b"\x00" + block_hash, b"batch")


def read(source: Source, count: int, limit: int = 100) -> list[Record]:
    """Exactly ``count`` records with a key, and nothing after them."""
    found: list[Record] = []
    until(lambda: len(found) >= count, step=lambda: found.extend(with_key(source.poll(limit, 0.2))))
    found += with_key(source.poll(limit, 0.05))
    assert len(found) == count
    return found


def read_to_the_end(source: Source) -> list[Record]:
    """Everything below the watermarks, heartbeats too."""
    return to_ends(source, ends_of(source))


def read_partition(source: Source, where: tuple[str, int], end: int) -> list[Record]:
    found: list[Record] = []
    until(lambda: source.positions()[where] >= end, step=lambda: found.extend(source.poll(100, 0.2)))
    return found


def filled(room: Room, blocks: int) -> Source:
    """A source of a room into which these blocks were written."""
    sink = room.sink()
    for number in range(blocks):
        sink.send(*block(room.app, number))
    sink.flush(DEADLINE)
    sink.close()
    return room.source()
