"""Partitions are kept in step by the numbers of their blocks where the times of their records prove to be wrong."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.protocols.streams.types import Partition, Record
from cardinal.protocols.streams.wire.keys import block_key
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG
from cardinal.transports.pace import Pace

WINDOW = 16
CHUNK = 24
ROOM = 640
DAY = 24 * 3_600_000
BATCHES, LOGS, STATE = ("t", 0), ("t", 1), ("t", 2)

Part = tuple[int, int, list[tuple[int, int]]]
"""Every how many blocks it has a message, how many of each, and the jumps of its clock: at which block, by how much."""


def block(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Topics:
    """Partitions that hold the same blocks in the same order, one every ten milliseconds; the first has the Batches."""

    def __init__(self, blocks: int, parts: list[Part], base: int = 0) -> None:
        self.base = base
        self.records: dict[Partition, list[Record]] = {}
        self.holds: dict[int, set[Partition]] = {}
        for index, (every, messages, jumps) in enumerate([(1, 1, parts[0][2]), *parts[1:]]):
            where = ("t", index)
            rows = self.records[where] = []
            for at in range(0, blocks, every):
                wrong = sum(by for since, by in jumps if since <= at)
                key = block_key(BATCH if index == 0 else BATCH_MSG, block(base + at))
                self.holds.setdefault(base + at, set()).add(where)
                rows += [Record(*where, len(rows) + n, key, b"", 10**12 + at * 10 + wrong) for n in range(messages)]

    def read(self, pace: Pace, seed: int, room: int = 10**9) -> int:
        """Everything, chunks of whatever is not paused; returns how many blocks were open at most, of ``room``."""
        rng = random.Random(seed)
        numbers: dict[bytes, int] = {}
        pace.heights.number_of = numbers.get
        at = dict.fromkeys(self.records, 0)
        reached: dict[int, set[Partition]] = {number: set() for number in self.holds}
        open_blocks: set[int] = set()
        pace.fullness = lambda: len(open_blocks) / room
        most = 0
        while behind := sorted(where for where, rows in self.records.items() if at[where] < len(rows)):
            pace.paused = pace.ahead(behind)
            where = rng.choice([where for where in behind if where not in pace.paused])
            found = self.records[where][at[where] :][: rng.randint(1, CHUNK)]
            at[where] += len(found)
            pace.seen(found)
            for record in found:
                number = int.from_bytes(record.key[1:], "big")
                if record.key[0] == BATCH:
                    numbers[block(number)] = number
                reached[number].add(where)
                if reached[number] == self.holds[number]:
                    open_blocks.discard(number)
                else:
                    open_blocks.add(number)
            most = max(most, len(open_blocks))
        return most


JUMPS = st.lists(st.tuples(st.integers(0, 1_500), st.sampled_from([-DAY, -3_600_000, 3_600_000, DAY])), max_size=6)
PARTS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), JUMPS), min_size=2, max_size=6)


@settings(max_examples=60, deadline=None)
@given(PARTS, st.integers(0, 2**32), st.sampled_from([0, 20_000_000]))
def test_whatever_the_clocks_say_everything_is_read_and_there_is_room_for_what_is_open(
    parts: list[Part], seed: int, base: int
) -> None:
    most = Topics(1_500, parts, base).read(Pace(10 * WINDOW, ROOM), seed, ROOM)
    assert most <= ROOM, f"{most} blocks were open at once"


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.just([])), min_size=2, max_size=6), st.integers(0, 9)
)
def test_right_clocks_are_trusted(parts: list[Part], seed: int) -> None:
    pace = Pace(10 * WINDOW, WINDOW)
    Topics(1_500, parts).read(pace, seed)
    assert not pace.by_number


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.just([])), min_size=2, max_size=6), st.integers(0, 9)
)
def test_where_many_blocks_lie_in_a_window_of_time_numbers_decide(parts: list[Part], seed: int) -> None:
    pace = Pace(10**9, ROOM)
    most = Topics(1_500, parts).read(pace, seed, ROOM)
    assert most <= ROOM, f"{most} blocks were open at once"
    assert pace.by_number == (most > ROOM // 4)


def _of(where: Partition, numbers: range, time: int, kind: int = BATCH_MSG) -> list[Record]:
    return [Record(*where, 0, block_key(kind, block(number)), b"", time) for number in numbers]


def _pace(known: range) -> Pace:
    pace = Pace(1_000, 4 * WINDOW)
    pace.heights.number_of = {block(number): number for number in known}.get
    return pace


def test_the_window_of_blocks_shrinks_with_the_room_that_is_left() -> None:
    pace = _pace(range(100))
    pace.by_number = True
    pace.seen(_of(BATCHES, range(90), 1_000, BATCH))
    pace.seen(_of(LOGS, range(80), 1_000))
    assert pace.ahead({BATCHES, LOGS}) == frozenset()
    assert not pace.strict
    pace.fullness = lambda: 0.6
    assert pace.ahead({BATCHES, LOGS}) == {BATCHES}
    assert pace.strict


def test_times_that_go_back_by_more_than_a_window_are_trusted_no_more() -> None:
    pace = _pace(range(100))
    pace.seen(_of(LOGS, range(10), 50_000))
    pace.seen(_of(LOGS, range(10, 20), 49_000))
    assert not pace.by_number
    pace.seen(_of(LOGS, range(20, 30), 47_999))
    assert pace.by_number


def test_one_that_is_ahead_by_its_clock_and_provably_behind_is_not_paused_and_the_others_are() -> None:
    pace = _pace(range(100))
    pace.seen(_of(BATCHES, range(90), 1_000, BATCH))
    pace.seen(_of(LOGS, range(20), DAY))
    pace.seen(_of(STATE, range(20 + WINDOW), 1_000))
    assert pace.ahead({BATCHES, LOGS, STATE}) == {BATCHES}
    assert pace.by_number


def test_one_that_is_ahead_by_its_clock_is_paused_where_nobody_knows_its_blocks() -> None:
    """Retention has left less of it: its blocks are of days later, and the Batches have not come there."""
    pace = _pace(range(100))
    pace.seen(_of(BATCHES, range(90), 1_000, BATCH))
    pace.seen(_of(LOGS, range(50_000, 50_010), DAY))
    assert pace.ahead({BATCHES, LOGS}) == {LOGS}
    assert not pace.by_number


def test_by_numbers_a_partition_that_has_said_nothing_yet_is_the_slowest_and_one_at_its_end_is_not() -> None:
    pace = _pace(range(100))
    pace.by_number = True
    pace.seen(_of(BATCHES, range(90), 1_000, BATCH))
    assert pace.ahead({BATCHES, LOGS}) == {BATCHES}
    assert pace.ahead({BATCHES}) == frozenset()


def test_what_is_no_message_of_a_block_says_nothing_of_where_a_partition_stands() -> None:
    pace = _pace(range(100))
    pace.by_number = True
    pace.seen(_of(BATCHES, range(90), 1_000, BATCH))
    pace.seen([Record(*LOGS, 0, b"", b"", 0), Record(*LOGS, 1, b"\x07" + bytes(64), b"", 0)])
    assert pace.ahead({BATCHES, LOGS}) == {BATCHES}


def test_one_false_number_moves_nobody() -> None:
    pace = _pace(range(100))
    pace.by_number = True
    pace.heights.number_of = ({block(number): number for number in range(99)} | {block(99): 10**18}).get
    pace.seen(_of(BATCHES, range(90, 100), 1_000, BATCH))
    pace.seen(_of(LOGS, range(90, 97), 1_000))
    assert pace.ahead({BATCHES, LOGS}) == frozenset()


def test_blocks_of_no_known_number_lie_above_the_batches() -> None:
    pace = _pace(range(1_000))
    pace.by_number = True
    pace.seen(_of(BATCHES, range(1_000), 1_000, BATCH))
    pace.seen(_of(LOGS, range(990, 1_000), 1_000))
    assert pace.ahead({BATCHES, LOGS}) == frozenset()
    pace.seen(_of(STATE, range(5_000, 5_000 + WINDOW), 1_000))
    assert pace.ahead({BATCHES, LOGS, STATE}) == frozenset()
    pace.seen(_of(STATE, range(5_100, 5_110), 1_000))
    assert pace.ahead({BATCHES, LOGS, STATE}) == {STATE}


def test_a_ping_long_after_the_last_block_of_a_partition_proves_nothing_against_clocks() -> None:
    pace = _pace(range(100))
    pace.seen(_of(BATCHES, range(90), 90_000, BATCH))
    pace.seen(_of(LOGS, range(20), 20_000))
    pace.seen([Record(*LOGS, 20, b"\x07" + bytes(64), b"", 900_000)])
    pace.seen(_of(STATE, range(20 + 2 * WINDOW), 60_000))
    assert pace.ahead({BATCHES, LOGS, STATE}) == {BATCHES, LOGS}
    assert not pace.by_number
