"""Partitions that a reader keeps in sync by the numbers of their blocks."""

from __future__ import annotations

import random
import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocks import DEADLINE, Blocks
from cardinal.consuming import partition_sync
from cardinal.consuming.partition_sync import PartitionSync
from cardinal.consuming.reader import Reader
from cardinal.consuming.watermarks import Watermarks
from cardinal.protocols.streams.types import Partition, Record, Routed
from cardinal.protocols.streams.wire.keys import block_key
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG
from cardinal.transports.null import NullSource
from cardinal.transports.partitioner import fnv1a_partition
from cardinal_devkit.testing.memory import MemoryBroker
from examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 24
CAPACITY = 640
WINDOW = 16
BATCHES, LOGS, STATE = ("t", 0), ("t", 1), ("t", 2)

Part = tuple[int, int]
"""Every how many blocks a partition has messages, and how many of each."""


def block(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Topics:
    """Partitions that hold the same blocks in the same order; the first has the Batches."""

    def __init__(self, blocks: int, parts: list[Part], base: int = 0) -> None:
        self.records: dict[Partition, list[Record]] = {}
        self.holds: dict[int, set[Partition]] = {}
        for index, (every, messages) in enumerate([(1, 1), *parts[1:]]):
            tp = ("t", index)
            rows = self.records[tp] = []
            for number in range(base, base + blocks, every):
                key = block_key(BATCH if index == 0 else BATCH_MSG, block(number))
                self.holds.setdefault(number, set()).add(tp)
                rows += [Record(*tp, len(rows) + at, key, b"", 0) for at in range(messages)]

    def read(self, seed: int, capacity: int) -> int:
        """Everything, chunks of whatever is not paused; returns how many blocks were open at most."""
        rng = random.Random(seed)
        numbers: dict[bytes, int] = {}
        sync = PartitionSync(Watermarks(NullSource()), capacity)
        at = dict.fromkeys(self.records, 0)
        reached: dict[int, set[Partition]] = {number: set() for number in self.holds}
        open_blocks: set[int] = set()
        sync.use(numbers.get, lambda: len(open_blocks) / capacity)
        most = 0
        while behind := sorted(tp for tp, rows in self.records.items() if at[tp] < len(rows)):
            sync.paused = sync.ahead(behind)
            assert sync.paused < set(behind), "reading would stand still"
            tp = rng.choice([tp for tp in behind if tp not in sync.paused])
            found = self.records[tp][at[tp] :][: rng.randint(1, CHUNK)]
            at[tp] += len(found)
            sync.read(found)
            for record in found:
                number = int.from_bytes(record.key[1:], "big")
                if record.key[0] == BATCH:
                    numbers[block(number)] = number
                reached[number].add(tp)
                (open_blocks.discard if reached[number] == self.holds[number] else open_blocks.add)(number)
            most = max(most, len(open_blocks))
        return most


PARTS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=2, max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(PARTS, st.integers(0, 2**32), st.sampled_from([0, 20_000_000]))
def test_everything_is_read_within_the_capacity_for_open_blocks(parts: list[Part], seed: int, base: int) -> None:
    most = Topics(1_500, parts, base).read(seed, CAPACITY)
    assert most <= CAPACITY, f"{most} blocks were open at once"


def _of(tp: Partition, numbers: range, kind: int = BATCH_MSG) -> list[Record]:
    return [Record(*tp, 0, block_key(kind, block(number)), b"", 0) for number in numbers]


def _sync(known: range, fullness: list[float] | None = None) -> PartitionSync:
    """With a window of sixteen blocks."""
    sync = PartitionSync(Watermarks(NullSource()), 4 * WINDOW)
    sync.use({block(number): number for number in known}.get, lambda: fullness[0] if fullness else 0.0)
    return sync


def test_a_partition_more_than_a_window_ahead_of_the_slowest_is_paused() -> None:
    sync = _sync(range(200))
    sync.read(_of(BATCHES, range(100 + WINDOW + 1), BATCH))
    sync.read(_of(LOGS, range(101)))
    sync.read(_of(STATE, range(100 + WINDOW)))
    assert sync.ahead({BATCHES, LOGS, STATE}) == frozenset()
    sync.read(_of(BATCHES, range(100 + WINDOW + 1, 100 + WINDOW + 2), BATCH))
    assert sync.ahead({BATCHES, LOGS, STATE}) == {BATCHES}


def test_a_paused_partition_is_resumed_at_half_a_window() -> None:
    sync = _sync(range(200))
    sync.read(_of(BATCHES, range(50), BATCH))
    sync.read(_of(LOGS, range(20)))
    sync.paused = sync.ahead({BATCHES, LOGS})
    assert sync.paused == {BATCHES}
    sync.read(_of(LOGS, range(20, 41)))
    assert sync.ahead({BATCHES, LOGS}) == {BATCHES}
    sync.read(_of(LOGS, range(41, 42)))
    assert sync.ahead({BATCHES, LOGS}) == frozenset()


def test_the_window_shrinks_with_the_capacity_that_is_left() -> None:
    fullness = [0.0]
    sync = _sync(range(100), fullness)
    sync.read(_of(BATCHES, range(90), BATCH))
    sync.read(_of(LOGS, range(80)))
    assert sync.ahead({BATCHES, LOGS}) == frozenset()
    fullness[0] = 0.6
    assert sync.ahead({BATCHES, LOGS}) == {BATCHES}


def test_a_partition_without_a_record_is_the_slowest_and_one_at_its_end_is_not() -> None:
    sync = _sync(range(100))
    sync.read(_of(BATCHES, range(90), BATCH))
    assert sync.ahead({BATCHES, LOGS}) == {BATCHES}
    assert sync.ahead({BATCHES}) == frozenset()


def test_a_record_of_no_block_does_not_move_its_partition() -> None:
    sync = _sync(range(100))
    sync.read(_of(BATCHES, range(90), BATCH))
    sync.read([Record(*LOGS, 0, b"", b"", 0), Record(*LOGS, 1, b"\x07" + bytes(64), b"", 0)])
    assert sync.ahead({BATCHES, LOGS}) == {BATCHES}


def test_one_false_number_moves_no_partition() -> None:
    sync = PartitionSync(Watermarks(NullSource()), 4 * WINDOW)
    sync.use(({block(number): number for number in range(99)} | {block(99): 10**18}).get, lambda: 0.0)
    sync.read(_of(BATCHES, range(90, 100), BATCH))
    sync.read(_of(LOGS, range(90, 97)))
    assert sync.ahead({BATCHES, LOGS}) == frozenset()


def test_blocks_without_a_known_number_lie_above_the_batches() -> None:
    sync = _sync(range(1_000))
    for first in range(0, 1_000, 200):
        sync.read(_of(BATCHES, range(first, first + 200), BATCH))
    sync.read(_of(LOGS, range(990, 1_000)))
    assert sync.ahead({BATCHES, LOGS}) == frozenset()
    sync.read(_of(STATE, range(5_000, 5_000 + WINDOW)))
    assert sync.ahead({BATCHES, LOGS, STATE}) == frozenset()
    sync.read(_of(STATE, range(5_100, 5_110)))
    assert sync.ahead({BATCHES, LOGS, STATE}) == {STATE}


# --- in a reader ------------------------------------------------------------------------------------------------------

POLLED = 10


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Three partitions, each with its heartbeat."""
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        broker.create("block")
        yield broker


@pytest.fixture
def reader(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Of small polls, with the number of every block, and capacity for a hundred of them."""
    monkeypatch.setattr(partition_sync, "POLL_RECORDS", POLLED)
    reader = Reader(broker.url, Blocks(), wait=0.0, topics=["block"], room=100)
    reader.sync.use(lambda block_hash: int.from_bytes(block_hash, "big"), lambda: 0.0)
    yield reader
    reader.close()


def _fill(broker: MemoryBroker, partition: int, numbers: range) -> None:
    """A message of each of these blocks in this partition."""
    for number in numbers:
        keys = (b"\x03" + block(number) + b"/%d" % attempt for attempt in range(1_000))
        key = next(key for key in keys if fnv1a_partition(key, 3) == partition)
        assert broker.take(Routed("block", key, b""), ())


def _number(record: Record) -> int:
    return int.from_bytes(record[3][1:33], "big")


def _read(reader: Reader, records: int) -> list[Record]:
    """So many records with a key, or what came within the deadline."""
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while len(found) < records and time.monotonic() < deadline:
        found += [record for record in reader.poll() if record[3]]
    return found


def _begin(reader: Reader) -> None:
    reader.main.assign({tp: low for tp, (low, _) in reader.watermarks.query().items()})


def _ends(reader: Reader) -> dict[Partition, int]:
    """The ends as they are now, as a proof requires them."""
    reader.request_ends()
    deadline = time.monotonic() + DEADLINE
    while (ends := reader.answered_ends()) is None:
        assert time.monotonic() < deadline
    return ends


def test_a_partition_at_its_end_holds_up_no_other_one(broker: MemoryBroker, reader: Reader) -> None:
    """Partition 0 has its heartbeat and nothing else."""
    for partition in (1, 2):
        _fill(broker, partition, range(10, 110))
    _begin(reader)
    assert len(_read(reader, 200)) == 200


def test_a_partition_that_is_ahead_stays_paused_when_another_one_is_added(broker: MemoryBroker, reader: Reader) -> None:
    """Partition 0 is far ahead of partition 1; a fourth partition comes while it is paused."""
    _fill(broker, 1, range(1, 101))
    _fill(broker, 0, range(200, 300))
    _begin(reader)
    while ("block", 0) not in reader.sync.paused:
        assert reader.poll(), "partition 0 was never paused"
    ahead = reader.positions()["block", 0]
    broker.widen("block", 4)
    assert ("block", 3) in _ends(reader)
    while reader.positions()["block", 1] <= 90:
        reader.poll()
        assert reader.positions()["block", 0] == ahead, "it was resumed while the slowest was far behind"
    rest = _read(reader, 202 - sum(reader.positions()["block", number] for number in (0, 1)))
    numbers = [_number(record) for record in rest if record[1] == 0]
    assert numbers == list(range(300 - len(numbers), 300))


def test_partitions_that_were_paused_are_paused_again_when_one_is_added(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is assigned again for it, which resumes all."""
    _begin(reader)
    reader.sync.paused = paused = frozenset({("block", 0)})
    broker.widen("block", 4)
    pauses: list[frozenset[Partition]] = []
    monkeypatch.setattr(reader.main, "pause", lambda partitions: pauses.append(frozenset(partitions)))
    assert ("block", 3) in _ends(reader)
    assert ("block", 3) in reader.positions()
    assert pauses == [paused]


def test_partitions_are_in_sync_while_no_server_answers(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 is far ahead of partition 1, and both end where they ended at the opening."""
    _fill(broker, 1, range(1, 101))
    _fill(broker, 0, range(200, 300))
    _begin(reader)
    queries: list[int] = []
    silent = threading.Event()

    def watermarks() -> dict[Partition, tuple[int, int]]:
        queries.append(1)
        silent.wait(DEADLINE)
        return {}

    monkeypatch.setattr("cardinal.consuming.watermarks.LOOK_SECONDS", 0.0)
    monkeypatch.setattr(reader.main, "watermarks", watermarks)
    paused = False
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while len(found) < 200 and time.monotonic() < deadline:
        found += [record for record in reader.poll() if record[3]]
        paused = paused or ("block", 0) in reader.sync.paused
    silent.set()
    assert len(found) == 200
    assert paused, "no partition was ever ahead: this test shows nothing"
    assert len(queries) == 1, "one query at a time"
