"""Seeded schedules of a writer and a reader on one folder, beside a model that is a list."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

from cardinal.errors import CursorExpiredError
from cardinal.protocols.streams import Record
from cardinal.transports.file import FileSettings, FileSource, LogWriter
from cardinal.transports.file.folders import numbers_of, path_of

PLACES = [("block", 0), ("block", 1), ("logs", 0), ("logs", 64)]


class Schedule:
    """Random appends, segments, gaps, removed segments and restarts; random assignments, pauses and polls."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.settings = FileSettings(segment_bytes=1_000 + self.rng.randrange(3_000))
        self.writer = LogWriter(folder, self.settings)
        self.writer.declare(dict.fromkeys(PLACES, 0))
        self.log: list[Record] = []
        self.lows = dict.fromkeys(PLACES, 0)
        self.source = FileSource(folder, None)
        self.given: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.paused: set[tuple[str, int]] = set()

    def run(self, steps: int) -> None:
        actions = [self.append] * 5 + [self.poll] * 8 + [self.pause, self.look, self.skip, self.restart, self.assign]
        self.assign()
        for _ in range(steps):
            self.rng.choice(actions)()
        self.paused = set()
        self.source.pause(())
        while self.poll():
            pass
        assert self.given == {where: self.writer.offsets[where] for where in self.given}
        self.source.close()
        self.writer.close()

    def append(self) -> None:
        blocks = []
        offsets = dict(self.writer.offsets)
        for _ in range(self.rng.randrange(1, 4)):
            block = []
            for _ in range(self.rng.randrange(1, 6)):
                where = self.rng.choice(PLACES)
                block.append(Record(*where, offsets[where], self.rng.randbytes(40), b"v", len(self.log), ()))
                offsets[where] += 1
            blocks.append(block)
        assert self.writer.append(blocks) == (len(blocks), None)
        self.log += [record for block in blocks for record in block]

    def skip(self) -> None:
        where = self.rng.choice(PLACES)
        self.writer.declare({where: self.writer.offsets[where] + self.rng.randrange(3)})

    def restart(self) -> None:
        self.writer.close()
        if self.rng.random() < 0.5:
            with path_of(self.folder, numbers_of(self.folder)[-1]).open("ab") as file:
                file.write(self.rng.randbytes(self.rng.randrange(60)))
        self.writer = LogWriter(self.folder, self.settings)

    def look(self) -> None:
        marks = self.source.watermarks()
        assert marks == {where: (self.lows[where], self.writer.offsets[where]) for where in PLACES}

    def assign(self) -> None:
        ends = self.writer.offsets
        self.given.clear()
        for where in self.rng.sample(PLACES, self.rng.randrange(1, len(PLACES) + 1)):
            self.given[where] = self.rng.randint(self.lows[where], ends[where])
        self.source.assign(self.given)
        self.paused = set()

    def pause(self) -> None:
        self.paused = {where for where in self.given if self.rng.random() < 0.4}
        self.source.pause(self.paused)

    def poll(self) -> bool:
        """One poll; whether it gave anything."""
        limit = self.rng.randrange(1, 12)
        polled = self.source.poll(limit, 0.0)
        assert len(polled) <= limit
        for record in polled:
            where = (record.topic, record.partition)
            assert where not in self.paused
            assert record == self.next_of(where)
            self.given[where] = record.offset + 1
        for where, at in self.source.positions().items():
            following = self.next_of(where)
            assert self.given[where] <= at
            assert following is None or at <= following.offset  # a gap may be passed, a record not
            self.given[where] = at
        if not polled:
            assert all(self.next_of(where) is None for where in self.given.keys() - self.paused)
        return bool(polled)

    def next_of(self, where: tuple[str, int]) -> Record | None:
        found = (record for record in self.log if record[:2] == where and record.offset >= self.given[where])
        return next(found, None)


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(s, marks=pytest.mark.soak) for s in range(40, 2_000))])
def test_a_reader_gets_what_a_list_would_give(tmp_path: Path, seed: int) -> None:
    Schedule(seed, tmp_path).run(150)


def test_a_reader_that_paused_below_what_retention_took_is_told_when_it_goes_on(tmp_path: Path) -> None:
    schedule = Schedule(1, tmp_path)
    source = schedule.source
    source.assign(dict.fromkeys(PLACES, 0))
    source.pause([PLACES[0]])
    for _ in range(60):
        schedule.append()
        source.poll(1_000, 0.0)
    numbers = numbers_of(tmp_path)
    assert len(numbers) > 12
    for number in numbers[:-1]:
        path_of(tmp_path, number).unlink()
    source.pause(())
    with pytest.raises(CursorExpiredError) as caught:
        read_on(source)
    assert set(caught.value.missing) == {PLACES[0]}
    source.close()
    schedule.writer.close()


def read_on(source: FileSource) -> None:
    while source.poll(1_000, 0.0):
        pass
