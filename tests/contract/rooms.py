"""The transports under the contract: for each a room with topics of its own, and a way to remove old records."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cardinal.testing.memory import MemoryBroker
from cardinal.transports import Sink, Source, open_sink, open_source
from cardinal.transports.file.folders import numbers_of, path_of
from cardinal.transports.file.log import Log
from cardinal.transports.partitioner import fnv1a_partition
from serving import serving

if TYPE_CHECKING:
    from cardinal.protocols.streams import Record

DEADLINE = 20.0
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
        seeks: how many assignments a test may try: on a real server each costs a fifth of a second.
        members: how many copies of a record a reader sees: one in every member of a mux.
        writes: how it is written to, where that is elsewhere.

    """

    url: str
    app: Names
    trim: Callable[[str, int, int], None]
    members: int = 1
    seeks: int = 1_000
    writes: str = ""

    def sink(self, producer_id: str = "a") -> Sink:
        return open_sink(self.writes or self.url, self.app, producer_id=producer_id)

    def source(self) -> Source:
        return open_source(self.url, self.app)

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
        yield Room(broker.url, names(), broker.trim)


@contextmanager
def websocket(options: str = "", **settings: int) -> Iterator[Room]:
    """A memory broker, written to as such and read through a server."""
    app = names()
    with (
        MemoryBroker(uuid.uuid4().hex, partitions=PARTITIONS, max_message_bytes=LIMIT) as broker,
        serving(broker.url, app, **settings) as served,
    ):
        yield Room(f"{served.url}{options}", app, broker.trim, seeks=8, writes=broker.url)


def kafka(bootstrap: str) -> Room:
    def trim(topic: str, partition: int, before: int) -> None:
        from confluent_kafka import TopicPartition  # noqa: PLC0415 - only this case needs it
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - the same

        admin = AdminClient({"bootstrap.servers": bootstrap})
        for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result(DEADLINE)

    options = f"cardinal.partitions={PARTITIONS}&cardinal.max.message.bytes={LIMIT}"
    return Room(f"kafka://{bootstrap}?{options}", names(), trim, seeks=4)


def file(folder: Path, options: str = "") -> Room:
    """Segments so small that nearly every group of sends begins one."""

    def trim(topic: str, partition: int, before: int) -> None:
        log = Log(folder)
        for number in numbers_of(folder)[:-1]:
            if log.starts()[topic, partition] >= before:
                break
            path_of(folder, number).unlink()
        log.close()

    return Room(f"{file_url(folder)}{options}", names(), trim)


def mux(folder: Path) -> Room:
    """Two folders written and read as one."""
    members = [file(folder / "one"), file(folder / "two")]

    def trim(topic: str, partition: int, before: int) -> None:
        for member in members:
            member.trim(topic, partition, before)

    return Room("mux:" + ",".join(member.url for member in members), names(), trim, members=len(members))


def file_url(folder: Path) -> str:
    sizes = f"cardinal.partitions={PARTITIONS}&cardinal.max.message.bytes={LIMIT}"
    return f"file://{folder}?segment.bytes=1000&{sizes}"
