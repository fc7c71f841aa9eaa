"""Receive buffer of a client: pauses, broken connections and bounds."""

from __future__ import annotations

import random

import pytest

from cardinal.errors import RemoteProtocolError
from cardinal.protocols.streams.types import Record
from cardinal_relay.transport import protocol
from cardinal_relay.transport.inbox import Inbox
from cardinal_relay.transport.protocol import ReceivedChunk, Request, decode_frame, encode_chunks, encode_frame
from examples import few

A, B = ("t", 0), ("t", 1)
Log = dict[tuple[str, int], list[Record]]
LIMIT = 1 << 20
READ = 2  # of an assignment and a connection


def _log(length: int = 200, size: int = 20) -> Log:
    return {tp: [Record(*tp, at, b"k%d" % at, bytes(size)) for at in range(length)] for tp in (A, B)}


class Server:
    """A server that follows the rules: it sends from positions, by its own sizes, while it has credit."""

    def __init__(self, log: Log, inbox: Inbox, seed: int) -> None:
        self.log = log
        self.inbox = inbox
        self.random = random.Random(seed)
        self.credit = 0
        self.positions: dict[tuple[str, int], int] = {}
        self.wanted: set[tuple[str, int]] = set()
        self.id = 0
        self.in_flight: list[bytes] = []

    def receive(self, requests: list[Request]) -> None:
        for request in requests:
            match request:
                case protocol.Read(number, positions):
                    self.id = number
                    self.positions = dict(protocol.by_partition(positions))
                    self.wanted = set(self.positions)
                case protocol.Pause(partitions):
                    self.wanted = self.positions.keys() - set(partitions)
                case protocol.Credit(size):
                    self.credit += size

    def send(self) -> None:
        while self.credit > 0 and self.random.random() < 0.8:
            ready = [tp for tp in sorted(self.wanted) if self.positions[tp] < len(self.log[tp])]
            if not ready:
                return
            before = {tp: self.positions[tp] for tp in ready}
            records = []
            for tp in ready:
                records += self.log[tp][before[tp] : before[tp] + self.random.randrange(5)]
            after = before | {record[:2]: record.offset + 1 for record in records}
            self.positions |= after
            if chunks := encode_chunks(records, before, after, compress=False):
                frame = encode_frame(self.id, chunks)
                self.credit -= len(frame)
                self.in_flight.append(frame)

    def arrive(self, count: int) -> None:
        for data in self.in_flight[:count]:
            self.inbox.add(*decode_frame(data), len(data))
        del self.in_flight[:count]


@pytest.mark.parametrize("seed", few(15, range(60)))
@pytest.mark.parametrize("window", [200, 3_000])
def test_pauses_and_breaks_at_any_time_lose_nothing_and_double_nothing(  # noqa: C901 - one case for each event
    seed: int, window: int
) -> None:
    rng = random.Random(seed)
    log = _log()
    inbox = Inbox(window, LIMIT)
    server = Server(log, inbox, seed)
    inbox.connected()
    inbox.assign({A: 0, B: 3})
    server.receive(inbox.requests())
    paused: set[tuple[str, int]] = set()
    waiting: list[list[Request]] = []
    delivered: Log = {A: [], B: []}
    for step in range(20_000):
        match rng.randrange(12 if step < 3_000 else 9):
            case 0 | 1 | 2:
                server.send()
            case 3 | 4:
                server.arrive(rng.randrange(1, 4))
            case 5 if waiting:
                server.receive(waiting.pop(0))
            case 6 | 7 | 8:
                for record in inbox.take(rng.choice([1, 3, 100]), 0):
                    assert record[:2] not in paused
                    delivered[record[:2]].append(record)
                waiting += filter(None, [inbox.requests()])
            case 9 | 10:
                paused = {tp for tp in (A, B) if rng.random() < 0.4}
                inbox.pause(paused)
                waiting += filter(None, [inbox.requests()])
            case 11 if rng.random() < 0.2:
                # The connection breaks: what was in flight is lost, and positions are named again.
                server.in_flight.clear()
                waiting.clear()
                server.positions.clear()
                server.credit = 0
                inbox.connected()
                server.receive(inbox.requests())
        if step == 3_000:
            paused = set()
            inbox.pause(())
            waiting += filter(None, [inbox.requests()])
        if step > 3_000 and inbox.positions() == {A: 200, B: 200}:
            break
    assert delivered == {A: log[A], B: log[B][3:]}
    assert inbox.positions() == {A: 200, B: 200}


def _opened(window: int, *tps: tuple[str, int]) -> Inbox:
    inbox = Inbox(window, LIMIT)
    inbox.assign(dict.fromkeys(tps, 0))
    inbox.connected()
    inbox.requests()
    return inbox


def _frame(records: list[Record], begin: int, read: int = READ) -> tuple[int, list[ReceivedChunk], int]:
    chunks = encode_chunks(records, {record[:2]: begin for record in records}, {}, compress=False)
    data = encode_frame(read, chunks)
    return *decode_frame(data), len(data)


def test_a_gap_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="left out the records from 0 to 5"):
        _opened(10_000, A).add(*_frame(_log()[A][5:9], 5))


def test_more_than_the_credit_is_refused() -> None:
    inbox, records = _opened(1_000, A), _log()[A]
    inbox.add(*_frame(records[:100], 0))
    with pytest.raises(RemoteProtocolError, match="beyond"):
        inbox.add(*_frame(records[100:101], 100))


def test_what_was_not_requested_is_ignored_and_its_credit_granted_again() -> None:
    inbox = _opened(500, A)
    for read, chunks, size in (_frame(_log()[B][:8], 0), _frame(_log()[A][:8], 0, 1)):
        inbox.add(read, chunks, size)
        assert inbox.take(100, 0) == []
        assert inbox.requests() == [protocol.Credit(size)]
    inbox.add(*_frame(_log()[A][:8], 0))
    assert len(inbox.take(100, 0)) == 8


def test_a_chunk_that_is_paused_in_its_midst_resumes_where_it_was() -> None:
    inbox = _opened(100_000, A, B)
    inbox.add(*_frame(_log()[A][:20], 0))
    found = []
    for count in (3, 5, 1):
        found += inbox.take(count, 0)
        inbox.pause({A})
        assert inbox.take(10, 0) == []
        inbox.pause(())
    assert found + inbox.take(100, 0) == _log()[A][:20]
