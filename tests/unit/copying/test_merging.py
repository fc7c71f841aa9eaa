"""One order of many partitions, whatever order they are read in and however stale the watermarks are."""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.copying.merging import Merge
from cardinal.protocols.streams import Record
from examples import examples

PLACES = [("block", 0), ("block", 1), ("logs", 0), ("logs", 1), ("txs", 0)]


def history(rng: random.Random, blocks: int, producers: int, *, skew: int) -> list[Record]:
    """What brokers appended, in the order in which they did; their clocks differ by up to ``skew``."""
    clocks = {where: rng.randint(-skew, skew) for where in PLACES}
    ends: defaultdict[tuple[str, int], int] = defaultdict(int)
    work = []
    for producer in range(producers):
        steps: list[tuple[str, bytes]] = []
        for number in range(blocks):
            block = number.to_bytes(32, "big")
            content = [
                (rng.choice(["logs", "txs", "block"]), b"\x03" + block + b"%d" % i) for i in range(rng.randrange(6))
            ]
            steps += [*content, ("block", b"\x00" + block)]
        work.append((b"%d" % producer, steps))
    records: list[Record] = []
    now = 1_000
    while any(steps for _, steps in work):
        name, steps = rng.choice([one for one in work if one[1]])
        topic, key = steps.pop(0)
        number = sum(key[1:]) % 2 if topic != "txs" else 0
        where = (topic, number)
        now += rng.choice([0, 0, 0, 1, 5])
        headers = (("cardinal-producer", name),)
        records.append(Record(*where, ends[where], key, name, now + clocks[where], headers))
        ends[where] += 1
    return records


class Reading:
    """A reader of partitions that grow, and watermarks that are taken one partition after the other."""

    def __init__(self, rng: random.Random, records: list[Record], skew: int = 0) -> None:
        self.rng = rng
        self.todo = list(records)
        self.logs: dict[tuple[str, int], list[Record]] = {where: [] for where in PLACES}
        self.positions = dict.fromkeys(PLACES, 0)
        self.merge = Merge(2 * skew)
        self.given: list[Record] = []

    def append(self) -> None:
        for record in self.todo[: self.rng.randrange(4)]:
            self.logs[record.topic, record.partition].append(record)
            self.todo.pop(0)

    def read(self) -> None:
        where = self.rng.choice(PLACES)
        at = self.positions[where]
        polled = self.logs[where][at : at + self.rng.randrange(5)]
        self.positions[where] += len(polled)
        self.merge.add(polled)

    def mark(self) -> None:
        ends = {}
        for where in self.rng.sample(PLACES, len(PLACES)):
            ends[where] = len(self.logs[where])
            if self.rng.random() < 0.3:
                self.append()
        self.merge.watermarks(ends)

    def take(self) -> None:
        self.given += self.merge.take(self.positions)

    def run(self) -> list[Record]:
        actions = (self.append, self.read, self.read, self.read, self.mark, self.take)
        while self.todo:
            self.rng.choice(actions)()
        for where, log in self.logs.items():
            self.merge.add(log[self.positions[where] :])
            self.positions[where] = len(log)
        for _ in range(2):
            self.mark()
        self.take()
        return self.given


def check(records: list[Record], given: list[Record]) -> None:
    assert sorted(given) == sorted(records)
    for where in PLACES:
        assert [r.offset for r in given if r[:2] == where] == list(range(sum(r[:2] == where for r in records)))
    seen = set()
    for record in given:
        if record.key[0] == 0:
            mine = [r for r in records if r.key[0] == 3 and (r.key[1:33], r.value) == (record.key[1:33], record.value)]
            assert seen.issuperset(mine)
        seen.add(record)


@given(st.integers(0, 1 << 32), st.integers(0, 12))
@settings(max_examples=examples(200))
def test_a_batch_follows_its_block_whatever_the_clocks(seed: int, blocks: int) -> None:
    rng = random.Random(seed)
    skew = rng.choice([0, 3, 1_000])
    records = history(rng, blocks, 1, skew=skew)
    check(records, Reading(rng, records, skew).run())


@given(st.integers(0, 1 << 32), st.integers(0, 8), st.integers(2, 3))
@settings(max_examples=examples(200))
def test_a_batch_follows_its_block_with_several_producers(seed: int, blocks: int, producers: int) -> None:
    rng = random.Random(seed)
    skew = rng.choice([0, 3])
    records = history(rng, blocks, producers, skew=skew)
    check(records, Reading(rng, records, skew).run())


@given(st.integers(0, 1 << 32), st.integers(1, 12))
@settings(max_examples=examples(200))
def test_every_record_is_released_while_partitions_ahead_are_paused(seed: int, blocks: int) -> None:
    """Also where a producer sent blocks again, much later: what is given waits for nothing that is not read."""
    rng = random.Random(seed)
    records = history(rng, blocks, 1, skew=0)
    for record in rng.sample(records, min(len(records), 5)):
        offset = sum(one[:2] == record[:2] for one in records)
        records.append(record._replace(offset=offset, timestamp_ms=records[-1].timestamp_ms + rng.choice([0, 9, 900])))
    reading = Reading(rng, records)
    while reading.todo:
        reading.append()
    for _ in range(2):
        reading.mark()
    while len(reading.given) < len(records):
        before = dict(reading.positions), len(reading.given)
        for where in frozenset(PLACES) - reading.merge.ahead:
            polled = reading.logs[where][reading.positions[where] :][:1]
            reading.positions[where] += len(polled)
            reading.merge.add(polled)
        reading.take()
        assert before != (reading.positions, len(reading.given)), "it stands still"
    assert sorted(reading.given) == sorted(records)


def test_held_records_are_counted_by_their_memory() -> None:
    """Small messages take mostly what is not their keys and values."""
    merge = Merge()
    tracemalloc.start()
    merge.add(
        Record(
            "logs",
            0,
            offset,
            b"\3" + bytes(40) + b"%d" % offset,
            b"%040d" % offset,
            1_700_000_000_000 + offset,
            (("cardinal-producer", b"one-%d" % offset),),
        )
        for offset in range(20_000)
    )
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert merge.size / 2 < taken < merge.size * 1.5


def test_no_record_is_released_before_a_second_query_of_the_ends() -> None:
    merge = Merge()
    batch = Record("block", 0, 0, b"\0" + bytes(32), b"", 5)
    merge.add([batch])
    assert merge.take({("block", 0): 1, ("logs", 0): 0}) == []
    merge.watermarks({("block", 0): 1, ("logs", 0): 0})  # taken before the content at logs:0 was seen
    assert merge.take({("block", 0): 1, ("logs", 0): 0}) == []
    merge.watermarks({("block", 0): 1, ("logs", 0): 1})
    assert merge.take({("block", 0): 1, ("logs", 0): 0}) == []
    content = Record("logs", 0, 0, b"\3" + bytes(32), b"", 9)
    merge.add([content])
    assert merge.take({("block", 0): 1, ("logs", 0): 1}) == []  # it was not below the first look: the next one frees it
    merge.watermarks({("block", 0): 1, ("logs", 0): 1})
    assert merge.take({("block", 0): 1, ("logs", 0): 1}) == [content, batch]
    assert (merge.size, merge.waiting) == (0, frozenset())
