"""The transports under the contract: for each a room with topics of its own, and a way to remove old records."""

from __future__ import annotations

import shutil
import time
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
        forget: removes the topics with all that they hold; a sink makes them anew.
        seeks: how many assignments a test may try: on a real server each costs a fifth of a second.
        members: how many copies of a record a reader sees: one in every member of a mux.
        writes: how it is written to, where that is elsewhere.

    """

    url: str
    app: Names
    trim: Callable[[str, int, int], None]
    forget: Callable[[], None]
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
        deadline = time.monotonic() + DEADLINE
        while set(app.all_topics) & set(admin.list_topics(timeout=DEADLINE).topics):
            assert time.monotonic() < deadline

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
