from __future__ import annotations

import gc
import random
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import RemoteProtocolError
from cardinal.protocols.streams.types import Record
from cardinal.transports.websocket.chunks import encode_chunks
from cardinal.transports.websocket.frames import GO_ON, Records
from cardinal.transports.websocket.inbox import Inbox
from cardinal.transports.websocket.wire import decode_answer, encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

A, B = ("t", 0), ("t", 1)
Log = dict[tuple[str, int], list[Record]]


def _log(length: int = 200, size: int = 20) -> Log:
    return {where: [Record(*where, at, b"k%d" % at, bytes(size)) for at in range(length)] for where in (A, B)}


class Server:
    """A server by the rules: it sends from positions, by its own sizes, while it has credit."""

    def __init__(self, log: Log, inbox: Inbox, seed: int) -> None:
        self.log = log
        self.inbox = inbox
        self.random = random.Random(seed)
        self.credit = 0
        self.positions: dict[tuple[str, int], int] = {}
        self.wanted: set[tuple[str, int]] = set()
        self.id = 0
        self.on_the_way: list[bytes] = []

    def read(self, number: int, positions: dict[tuple[str, int], int]) -> None:
        self.id = number
        self.wanted = set(positions)
        for where, position in positions.items():
            if position != GO_ON:
                self.positions[where] = position

    def send(self) -> None:
        while self.credit > 0 and self.random.random() < 0.8:
            ready = [where for where in sorted(self.wanted) if self.positions[where] < len(self.log[where])]
            if not ready:
                return
            before = {where: self.positions[where] for where in ready}
            records = []
            for where in ready:
                count = self.random.randrange(5)
                records += self.log[where][before[where] : before[where] + count]
            after = before | {record[:2]: record.offset + 1 for record in records}
            self.positions |= after
            frame = encode_records(self.id, [chunk.data for chunk in encode_chunks(records, before, after)])
            self.credit -= len(frame)
            self.on_the_way.append(frame)

    def arrive(self, count: int) -> None:
        for data in self.on_the_way[:count]:
            frame = decode_answer(data)
            assert isinstance(frame, Records)
            self.inbox.add(frame, len(data))
        del self.on_the_way[:count]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("window", [200, 3_000])
def test_pauses_and_breaks_at_any_time_lose_nothing_and_double_nothing(  # noqa: C901 - one case for each event
    seed: int, window: int
) -> None:
    rng = random.Random(seed)
    log = _log()
    inbox = Inbox(window)
    server = Server(log, inbox, seed)
    number = 1
    server.credit = inbox.start_again()
    inbox.assign({A: 0, B: 3}, number)
    server.read(number, {A: 0, B: 3})
    paused: set[tuple[str, int]] = set()
    waiting: list[tuple[int, dict[tuple[str, int], int]]] = []
    given: Log = {A: [], B: []}
    for step in range(20_000):
        match rng.randrange(12 if step < 3_000 else 9):
            case 0 | 1 | 2:
                server.send()
            case 3 | 4:
                server.arrive(rng.randrange(1, 4))
            case 5 if waiting:
                server.read(*waiting.pop(0))
            case 6 | 7 | 8:
                for record in inbox.take(rng.choice([1, 3, 100])):
                    assert record[:2] not in paused
                    given[record[:2]].append(record)
                server.credit += inbox.credit()
            case 9 | 10:
                paused = {where for where in (A, B) if rng.random() < 0.4}
                if inbox.pause(frozenset(paused)):
                    number += 1
                    waiting.append((number, inbox.wanted(number)))
            case 11 if rng.random() < 0.2:
                # The connection breaks: what was on the way is gone, and all is said anew.
                server.on_the_way.clear()
                waiting.clear()
                number += 1
                server.positions.clear()
                server.credit = inbox.start_again()
                server.read(number, inbox.wanted(number))
        if step == 3_000:
            paused = set()
            if inbox.pause(frozenset()):
                number += 1
                waiting.append((number, inbox.wanted(number)))
        if step > 3_000 and inbox.positions == {A: 200, B: 200}:
            break
    assert given == {A: log[A], B: log[B][3:]}
    assert inbox.positions == {A: 200, B: 200}


def _frame(records: list[Record], begin: int, number: int = 1) -> tuple[Records, int]:
    before = {record[:2]: begin for record in records}
    data = encode_records(number, [chunk.data for chunk in encode_chunks(records, before, {})])
    frame = decode_answer(data)
    assert isinstance(frame, Records)
    return frame, len(data)


def test_a_gap_is_refused() -> None:
    inbox = Inbox(10_000)
    inbox.start_again()
    inbox.assign({A: 0}, 1)
    inbox.add(*_frame(_log()[A][5:9], 5))
    with pytest.raises(RemoteProtocolError, match="left out the records from 0 to 5"):
        inbox.take(10)


def test_more_than_was_given_leave_for_is_refused() -> None:
    inbox = Inbox(1_000)
    inbox.start_again()
    inbox.assign({A: 0}, 1)
    records = _log()[A]
    frame, size = _frame(records[:100], 0)
    assert size > 1_000
    inbox.add(frame, size)
    with pytest.raises(RemoteProtocolError, match="beyond"):
        inbox.add(*_frame(records[100:101], 100))


def test_what_was_not_asked_for_is_passed_over_and_its_credit_given_back() -> None:
    inbox = Inbox(500)
    inbox.start_again()
    inbox.assign({A: 0}, 4)
    for frame, size in (_frame(_log()[B][:8], 0, 4), _frame(_log()[A][:8], 0, 3)):
        inbox.add(frame, size)
        assert inbox.take(100) == []
        assert inbox.credit() == size
    inbox.add(*_frame(_log()[A][:8], 0, 4))
    assert len(inbox.take(100)) == 8


@contextmanager
def _memory_taken() -> Iterator[Callable[[], int]]:
    """How many bytes of memory were taken since, and not given back."""

    def taken() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    before = 0
    tracemalloc.start()
    try:
        before = taken()
        yield taken
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_what_is_held_of_paused_partitions_is_bounded_by_the_window() -> None:
    window = 100_000
    log = _log(size=2_000)[A]
    inbox = Inbox(window)
    inbox.start_again()
    inbox.assign({A: 0, B: 0}, 1)
    inbox.pause(frozenset({A}))
    inbox.wanted(2)
    sent = 0
    with _memory_taken() as taken:
        for at in range(0, 200, 10):
            frame, size = _frame(log[at : at + 10], at, 1)
            inbox.add(frame, size)
            sent += size
            assert inbox.take(100) == []
            inbox.credit()
            assert taken() < window + 2 * size
    assert sent > 2 * window
    inbox.pause(frozenset())
    assert inbox.wanted(3) == {A: 0, B: GO_ON}


def test_what_is_held_of_large_frames_keeps_nothing_else_of_them_in_memory() -> None:
    window = 64 << 10
    inbox = Inbox(window)
    inbox.start_again()
    inbox.assign({A: 0, B: 0}, 1)
    inbox.pause(frozenset({A}))
    with _memory_taken() as taken:
        for at in range(100):
            inbox.add(*_frame([Record(*A, at, b"k", b"v"), Record(*B, at, b"k", bytes(window // 2))], at))
            assert len(inbox.take(10)) == 1
            inbox.credit()
        assert taken() < 2 * window
    inbox.pause(frozenset())
    assert [record.offset for record in inbox.take(1_000)] == list(range(100))


def test_a_chunk_that_is_paused_when_half_of_it_is_taken_goes_on_where_it_was() -> None:
    inbox = Inbox(100_000)
    inbox.start_again()
    inbox.assign({A: 0, B: 0}, 1)
    inbox.add(*_frame(_log()[A][:20], 0))
    found = []
    for count in (3, 5, 1):
        found += inbox.take(count)
        inbox.pause(frozenset({A}))
        assert inbox.take(10) == []
        inbox.pause(frozenset())
    assert found + inbox.take(100) == _log()[A][:20]
