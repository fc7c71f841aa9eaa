"""Seeded schedules: the real streams core beside its model, over everything that may happen to both.

    for outcome in run_schedules(100): ...          # outcome.difference is None, or one line that can be repeated
    run_schedule(4711, DEEP)

A schedule is a scenario (:mod:`.scenario`) and a sequence of steps: more of the topics can be read, records are read in
any interleaving, the consumer is restarted from a cursor's text, a node supplies what the topics lost. After every step
the laws are checked (:mod:`.laws`). Each step is a method of :class:`Schedule`, so that something else
than a seed can choose them too. In one of eight a quorum decides, and a minority of it lies (:mod:`.quorum_scenario`).

The first line of a failure is enough: ``python -m tests.model --seeds 1 --first N``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.following.follower import Follower
from cardinal.protocols.streams.types import Partition, Record, Routed, Row
from cardinal.protocols.streams.wire.messages import BATCH_MSG

from .laws import LawBrokenError, Laws, Told
from .quorum_model import model_of
from .scenario import QUICK, Profile, Scenario, make_scenario

_BURST: Final = 12
_MOST_RESTARTS: Final = 3
_MOST_READ: Final = 200
"""Times that a record is read on average; more is a rewind without end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one schedule: ``difference`` is one line, None where core, laws and model agree."""

    seed: int
    steps: int
    records: int
    difference: str | None


def run_schedule(seed: int, profile: Profile = QUICK, *, quorum: bool = False) -> Outcome:
    """Run the schedule of a seed to its end, or to the first step after which something differs."""
    schedule = Schedule(make_scenario(seed, profile, quorum=quorum))
    difference: str | None = None
    try:
        schedule.run()
    except LawBrokenError as broke:
        difference = str(broke)
    except Exception as error:  # noqa: BLE001 - whatever the core raises is a difference: it has to raise nothing
        difference = str(schedule.broken(f"the core raised {error!r}"))
    return Outcome(seed, schedule.step, schedule.read_count, difference)


def run_schedules(seeds: int, first: int = 0, profile: Profile = QUICK, *, quorum: bool = False) -> Iterator[Outcome]:
    """Run the schedules of so many seeds, one after the other; with ``quorum`` all of them are about one."""
    return (run_schedule(seed, profile, quorum=quorum) for seed in range(first, first + seeds))


class Schedule:
    """One scenario under way. Every step raises :class:`~.laws.LawBrokenError` where something differs."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.step = 0
        self.read_count = 0
        self.rewinds = 0
        self._random = random.Random(f"schedule/{scenario.profile.name}/{scenario.seed}")
        self._partitions: dict[Partition, list[Record]] = {}
        self._revealed = 0
        self._restarts = 0
        # Every other schedule gives rows in place of records where nobody asks whose a message is.
        self._plain = scenario.settings.policy == "first" and scenario.seed % 2 == 1
        self._open(None)

    # --- steps -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Steps in random order, then everything to the end."""
        choose = self._random
        self.reveal(choose.randint(1, len(self.scenario.records)))
        while self.unread or self.unrevealed:
            match choose.random():
                case chance if chance < 0.15:
                    self.reveal(choose.randint(1, 1 + len(self.scenario.records) // 2))
                case chance if chance < 0.2 and self._restarts < _MOST_RESTARTS:
                    self.restart(choose.randrange(1 << 16))
                case chance if chance < 0.23:
                    self.supply()
                case _:
                    self.read(choose.choice((1, 5, 20, 100)))
        self.finish()

    @property
    def unrevealed(self) -> int:
        """How many records were not appended yet."""
        return len(self.scenario.records) - self._revealed

    @property
    def unread(self) -> int:
        """How many records the consumer has not read."""
        return sum(len(records) - self._at.get(where, 0) for where, records in self._partitions.items())

    def reveal(self, count: int) -> None:
        """So many records more are appended to the topics."""
        self._begin()
        for record in self.scenario.records[self._revealed : self._revealed + count]:
            self._partitions.setdefault((record.topic, record.partition), []).append(record)
        self._revealed = min(self._revealed + count, len(self.scenario.records))

    def read(self, count: int) -> None:
        """The consumer reads up to so many records, of partitions that advance at very different speeds."""
        self._begin()
        part: list[Record] = []
        while len(part) < count and (left := self._left()):
            where = self._random.choices(left, [self._speed(one) for one in left])[0]
            most = min(self._random.randint(1, _BURST), count - len(part))
            part += self._partitions[where][self._at.get(where, 0) :][:most]
            self._at[where] = part[-1].offset + 1
        self.read_count += len(part)
        self._feed(part)
        if self.read_count > _MOST_READ * len(self.scenario.records):
            raise self.broken(f"{self.read_count} records were read, and there are {len(self.scenario.records)}")

    def supply(self) -> None:
        """A node supplies what it can of the blocks that lack something."""
        self._begin()
        lacking = [m for m in self.scenario.supplies if self._laws.lacks(m.key[1:33])]
        if lacking:
            records = [Record(topic, -1, -1, key, value) for topic, key, value in lacking]
            for piece in self._laws.reading(records):
                self._laws.told(Told(self._follower.supply(Routed(r.topic, r.key, r.value) for r in piece).items))
            self._step([])

    def restart(self, back: int) -> None:
        """The consumer is killed and begins again from a cursor's text: of now, or of an earlier update."""
        self._begin()
        self._restarts += 1
        self._laws.end_of_session()
        saved = self._laws.saved
        point = saved[-1 - back % len(saved)] if saved and back % 3 else None
        cursor = self._follower.cursor() if point is None else point.update.cursor
        text = str(cursor)
        if (again := str(Cursor.parse(text))) != text:
            raise self.broken(f"a cursor's text is not read back: {text} became {again}")
        if point is not None:
            self._laws.back_to(point)
        self._open(Cursor.parse(text))

    def finish(self) -> None:
        """Everything is appended, read and supplied."""
        self.reveal(self.unrevealed)
        while self.unread:
            self.read(1000)
        self.supply()
        for _ in range(4):  # whatever is proven lost is passed over after two looks at the watermarks
            self.read(1)
        while self.unread or self._rest():
            self.read(1000)
        self._laws.end_of_session()
        self._laws.end()

    def broken(self, what: str) -> LawBrokenError:
        """A failure: one line with the command that repeats it, the step and what differs."""
        return self._laws.broken(what)

    # --- inside ----------------------------------------------------------------------------------------------

    def _rest(self) -> bool:
        """Nothing comes for long; returns whether the reading was rewound."""
        return self._step([], waited=True)

    def _begin(self) -> None:
        self.step += 1
        self._laws.step = self.step

    def _open(self, cursor: Cursor | None) -> None:
        """A consumer begins to read."""
        scenario = self.scenario
        self._follower = Follower(scenario.settings, cursor)
        marks = {where: (0, len(records)) for where, records in self._partitions.items()}
        self._at = self._follower.begin_at(marks)
        self._speeds: dict[Partition, float] = {}
        self._resume = dict(cursor.next) if cursor is not None and cursor.ring else {}
        self._wanted: dict[Partition, int] | None = None
        quorum = scenario.quorum
        model = model_of(scenario.rules) if quorum is None else model_of(scenario.rules, quorum.k, quorum.producers)
        if cursor is None:
            self._laws = Laws(scenario, self._follower, model, {})
        else:
            self._laws = self._laws.resumed(self._follower, model, self._at)

    def _ends(self) -> dict[Partition, int]:
        return {where: len(records) for where, records in self._partitions.items()}

    def _left(self) -> list[Partition]:
        return [where for where, records in self._partitions.items() if self._at.get(where, 0) < len(records)]

    def _speed(self, where: Partition) -> float:
        """Speeds differ by orders of magnitude: one partition may be through before another begins."""
        return self._speeds.setdefault(where, 10.0 ** self._random.uniform(-2, 1))

    def _feed(self, part: list[Record]) -> None:
        at = {where: self._at.get(where, 0) for where in self._partitions}
        at |= {record[:2]: record.offset for record in reversed(part)}
        for piece in self._laws.reading(part):
            at |= {record[:2]: record.offset + 1 for record in piece}
            if self._step(piece, at):
                break
        self._step([])

    def _step(self, part: Sequence[Record], at: Mapping[Partition, int] | None = None, *, waited: bool = False) -> bool:
        """One step of the core; returns whether the reading was rewound.

        ``at`` is where the reading stands, where some of what was read is still to come: after a rewind it is read
        once more.
        """
        positions = {where: self._at.get(where, 0) for where in self._partitions} if at is None else at
        released = bool(self._resume) and all(positions.get(where, 0) >= end for where, end in self._resume.items())
        if released:
            self._resume = {}
        records = [*map(_row, part)] if self._plain else part
        step = self._follower.step(records, positions, self._wanted, waited=waited)
        self._wanted = self._ends() if step.requests.watermarks else None
        self._laws.told(Told(step.items, released=released, rest=at is None))
        if step.requests.rewind is None:
            return False
        self.rewinds += 1
        self._at = {**positions, **step.requests.rewind}
        return True


def _row(record: Record) -> Row:
    """What a source gives that leaves out what assembling does not need."""
    topic, partition, offset, key, value, _, headers = record
    return topic, partition, offset, key, value, 0, () if key[:1] == bytes((BATCH_MSG,)) else headers
