"""Publications that are sent one at a time: what stands in line is left to others who were quicker."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from cardinal.errors import DeliveryError, TransportError
from cardinal.producing.inflight import InFlight, Part, Publication
from cardinal.protocols.streams.publishing.standby import Verdict
from cardinal.protocols.streams.types import Routed
from clocks import Clock

Done = Callable[[BaseException | None], None]


class Line:
    """A transport that finishes one publication after the other, when it is told to."""

    serve = None

    def __init__(self, *, one_at_a_time: bool = True) -> None:
        self.one_at_a_time = one_at_a_time
        self.finishing: list[tuple[Publication, Done]] = []
        self.finished: list[int] = []
        self.done: set[bytes] = set()
        self.in_flight = InFlight(self, 5_000, 1 << 30)
        self.waits = False
        self.in_flight.turn = self._turn

    def _turn(self, block_hash: bytes) -> Verdict:
        if block_hash in self.done:
            return Verdict.SKIP
        return Verdict.WAIT if self.waits else Verdict.SEND

    def add(self, number: int) -> Publication:
        publication = _publication(number)
        self.in_flight.admit(publication)
        self.in_flight.begin(publication)
        return publication

    def start(self, publication: Publication, done: Done) -> None:
        del publication
        done(None)

    def finish(self, publication: Publication, done: Done) -> None:
        self.finishing.append((publication, done))

    def end(self, error: BaseException | None = None) -> None:
        """The one that is being finished has ended."""
        unit, done = self.finishing.pop()
        self.finished.append(int.from_bytes(unit.hash, "big"))
        done(error)


def _publication(number: int, announced: set[bytes] | None = None) -> Publication:
    part = Part([], Routed("block", _hash(number), b""))
    return Publication(_hash(number), _hash(number - 1), [part], 2, 10, announced=announced or set())


def _hash(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_blocks_that_others_published_are_skipped() -> None:
    """Two thousand of them at once: there is no depth to it."""
    line = Line()
    units = [line.add(number) for number in range(1, 2_003)]
    assert len(line.finishing) == 1
    line.done |= {unit.hash for unit in units[1:2_001]}
    line.end()
    assert [unit.future.done() for unit in units] == [True] * 2_001 + [False]
    line.end()
    assert line.finished == [1, 2_002]
    stats = line.in_flight.stats
    assert (stats.blocks, stats.messages, stats.skipped, stats.in_flight) == (2, 4, 2_000, 0)


@pytest.mark.parametrize("seed", range(20))
def test_every_unit_ends_once_and_parents_first(seed: int) -> None:
    rng, line = random.Random(seed), Line()
    ended: list[int] = []
    units: list[Publication] = []
    for number in range(1, 60):
        unit = line.add(number)
        unit.future.add_done_callback(lambda _, number=number: ended.append(number))
        units.append(unit)
        line.done |= {_hash(rng.randint(1, 60)) for _ in range(rng.randint(0, 3))}
        if rng.random() < 0.5 and line.finishing:
            line.end()
    while line.finishing:
        line.end()
    assert sorted(ended) == list(range(1, 60))
    assert line.finished == sorted(line.finished)
    assert line.in_flight.stats.blocks == len(line.finished)
    assert line.in_flight.stats.skipped == 59 - len(line.finished)


def test_queued_units_wait_while_others_make_progress() -> None:
    line = Line()
    units = [line.add(number) for number in range(1, 6)]
    line.waits = True
    line.end()
    assert line.finishing == [], "the next one is not begun"
    line.done |= {units[1].hash, units[2].hash}
    line.in_flight.proceed()
    assert [unit.future.done() for unit in units] == [True, True, True, False, False]
    assert line.finishing == []
    line.waits = False
    line.in_flight.proceed()
    line.end()
    line.end()
    assert line.finished == [1, 4, 5]


def test_a_failed_unit_holds_its_descendants_also_published_ones() -> None:
    """They are asked when their turn comes; until the one that failed goes again, nothing is told of them."""
    line = Line()
    first, second = line.add(1), line.add(2)
    line.done.add(second.hash)
    line.end(DeliveryError("no", block_hash=first.hash))
    assert first.future.exception() is not None
    assert not second.future.done()
    line.add(1)
    line.end()
    assert second.future.done()
    assert line.finished == [1, 1]


@pytest.mark.parametrize("one_at_a_time", [True, False])
def test_sub_batches_are_waited_for_once_sent_before_or_after_their_unit_began(
    one_at_a_time: bool,  # noqa: FBT001 - pytest names it
) -> None:
    line = Line(one_at_a_time=one_at_a_time)
    early, late = _hash(101), _hash(102)
    unit = _publication(1, {early, late})
    line.in_flight.admit(unit)
    line.in_flight.sub_batch_sent(unit, early)
    line.in_flight.begin(unit)
    assert line.finishing == [], "the other one is still to come"
    line.in_flight.sub_batch_sent(unit, late)
    line.end(DeliveryError("no", block_hash=unit.hash))
    again = _publication(1, {early})
    line.in_flight.admit(again)
    line.in_flight.sub_batch_sent(unit, early)
    line.in_flight.begin(again)
    assert line.finishing == [], "it goes again, and so does its sub batch"
    line.in_flight.sub_batch_sent(again, early)
    line.end()
    assert again.future.done()


def test_concurrent_units_do_not_take_turns() -> None:
    """Their content has gone already."""
    line = Line(one_at_a_time=False)
    line.done.add(_hash(1))
    line.add(1)
    line.end()
    assert line.finished == [1]


def test_flush_ends_at_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever waits is woken after nine of ten seconds, and nothing was sealed: there is one second left."""
    line, clock, waits = Line(), Clock(), list[float | None]()
    line.add(1)

    def wait(seconds: float | None = None) -> bool:
        waits.append(seconds)
        clock.now += 9.0 if len(waits) == 1 else seconds or 0.1
        return len(waits) == 1

    monkeypatch.setattr("cardinal.producing.inflight.time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(line.in_flight._changed, "wait", wait)
    with pytest.raises(TransportError, match="not sealed after 10 s"):
        line.in_flight.flush(10.0)
    assert waits[:2] == [10.0, 1.0]
