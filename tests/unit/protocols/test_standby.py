"""Whose turn it is to publish a block: the pure state machine, and many of them around one log."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.publishing.standby import REMEMBERED, Peers, Standby, Verdict
from examples import examples
from streams import h

STEP = 0.25
ALIVE = 3_000


def standby(me: str, *others: str) -> tuple[Standby, Peers]:
    peers = Peers(ALIVE)
    for name in (me, *others):
        peers.heard(name, 1_000)
    machine = Standby(me, STEP, peers)
    machine.advance(0.0)
    return machine, peers


def test_the_lowest_live_id_sends_at_once_and_rank_r_waits_r_steps() -> None:
    for me, delay in (("a", 0.0), ("b", STEP), ("c", 2 * STEP)):
        machine, _ = standby(me, "a", "b", "c")
        machine.advance(10.0)
        if not delay:
            assert machine.offer(h("1a"), 10.0) is Verdict.SEND
            continue
        assert machine.offer(h("1a"), 10.0) is Verdict.WAIT
        assert machine.due() == 10.0 + delay
        assert machine.advance(10.0 + delay - 0.001) == []
        assert machine.advance(10.0 + delay) == [(h("1a"), Verdict.SEND)]
        assert machine.due() is None


def test_what_others_have_done_is_skipped_whether_it_comes_before_or_after_the_offer() -> None:
    machine, _ = standby("b", "a")
    assert machine.offer(h("1a"), 0.0) is Verdict.WAIT
    machine.done(h("1a"))
    assert machine.advance(0.01) == [(h("1a"), Verdict.SKIP)]
    machine.done(h("2a"))
    assert machine.is_done(h("2a"))
    assert machine.offer(h("2a"), 0.0) is Verdict.SKIP
    lowest, _ = standby("a", "b")
    lowest.done(h("1a"))
    assert lowest.offer(h("1a"), 0.0) is Verdict.SKIP


def test_a_hole_below_a_done_block_is_sent() -> None:
    machine, _ = standby("b", "a")
    for name in ("1a", "2a", "3a"):
        machine.offer(h(name), 0.0)
    machine.done(h("3a"))
    machine.done(h("1a"))
    assert machine.advance(0.1) == [(h("3a"), Verdict.SKIP), (h("1a"), Verdict.SKIP)]
    assert machine.advance(STEP) == []
    assert machine.advance(0.1 + STEP) == [(h("2a"), Verdict.SEND)]


def test_one_that_has_much_to_send_and_is_at_it_is_not_overtaken() -> None:
    machine, _ = standby("b", "a")
    names = [f"{number}a" for number in range(1, 30)]
    for name in names:
        machine.offer(h(name), 0.0)
    for at, name in enumerate(names[:-2], 1):
        machine.done(h(name))
        assert machine.advance(at * 0.2) == [(h(name), Verdict.SKIP)]
    machine.done(h(names[-1]))  # which shows nothing: the one before it may have been left out
    assert machine.advance(27 * 0.2 + 0.1) == [(h(names[-1]), Verdict.SKIP)]
    assert machine.advance(27 * 0.2 + STEP) == [(h(names[-2]), Verdict.SEND)]


def test_no_block_overtakes_one_that_was_offered_earlier() -> None:
    machine, peers = standby("b", "a")
    machine.offer(h("1a"), 0.0)
    peers.heard("b", 1_001 + ALIVE)  # "a" is dead from here on: we are the lowest
    assert machine.offer(h("2a"), 0.05) is Verdict.WAIT
    assert machine.advance(0.05) == [(h("1a"), Verdict.SEND), (h("2a"), Verdict.SEND)]
    assert machine.offer(h("3a"), 0.06) is Verdict.SEND


def test_who_is_silent_for_longer_than_alive_is_dead_by_the_topics_clock() -> None:
    machine, peers = standby("b", "a")
    peers.heard("b", 1_000 + ALIVE)
    assert machine.offer(h("1a"), 0.0) is Verdict.WAIT
    peers.heard("b", 1_001 + ALIVE)
    assert machine.due() == 0.0
    peers.heard("a", 1_001 + ALIVE)
    assert machine.due() == STEP
    assert peers.count("b").live == ("a", "b")


def test_what_is_remembered_is_bounded() -> None:
    machine, peers = standby("b", "a")
    for number in range(REMEMBERED + 10):
        machine.done(number.to_bytes(32, "big"))
        peers.batch(number.to_bytes(32, "big"), "a")
    assert not machine.is_done((9).to_bytes(32, "big"))
    assert machine.is_done((10).to_bytes(32, "big"))
    for number in range(10_000):
        peers.heard(f"p{number}", 10_000 * number)
        peers.batch(b"%032d" % number, f"p{number}")
        peers.batch(b"%032d" % number, "a")
    assert len(peers._last) < 200
    assert len(peers._first) == 1_024


def test_who_was_first() -> None:
    peers = Peers(ALIVE)
    assert peers.count("me").live == ("me",)  # before anything of ours was read
    for name in ("a", "b"):
        peers.heard(name, 1_000)
    peers.heard("0x07", 1_000, named=False)
    peers.batch(h("1a"), "b")
    peers.batch(h("1a"), "b")  # sent again by the same one
    peers.batch(h("1a"), "a")
    peers.batch(h("2a"), "b")
    peers.batch(h("2a"), "a")
    peers.batch(h("3a"), "a")
    count = peers.count("b")
    assert count.live == ("a", "b", "0x07")
    assert (count.count, count.rank) == (3, 1)
    assert count.first == {"b": 2, "a": 1}


def test_a_lowest_producer_that_has_not_read_for_long_reads_before_it_sends() -> None:
    machine, _ = standby("a", "b")
    assert machine.offer(h("1a"), STEP) is Verdict.SEND
    assert machine.offer(h("2a"), STEP + 0.001) is Verdict.WAIT
    assert machine.offer(h("3a"), STEP + 0.001) is Verdict.WAIT
    machine.done(h("2a"))
    assert machine.advance(0.3) == [(h("2a"), Verdict.SKIP), (h("3a"), Verdict.SEND)]
    assert machine.offer(h("4a"), 0.3) is Verdict.SEND


def test_a_step_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Standby("a", 0.0, Peers(ALIVE))


# --- many around one log -------------------------------------------------------------------------------------


@dataclass
class _Member:
    """A producer of the model: reads the log with a lag, is killed and starts again from the log's end."""

    name: str
    at: int = 0
    offered: int = 0
    machine: Standby = field(init=False)
    peers: Peers = field(init=False)
    alive: bool = True
    under_way: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start(0)

    def start(self, first: int) -> None:
        self.peers = Peers(ALIVE)
        self.machine = Standby(self.name, STEP, self.peers)
        self.alive, self.at, self.offered, self.under_way = True, 0, first, []


class _World:
    """A log, a chain that grows, and members; time in ticks of 50 ms."""

    def __init__(self, members: int, seed: int, blocks: int) -> None:
        self.rng = random.Random(seed)
        self.log: list[tuple[int, str, int | None, bool]] = []
        self.members = [_Member(f"p{number}") for number in range(members)]
        self.blocks = blocks
        self.tick = 0
        self.sent: Counter[int] = Counter()
        self.sealed: set[int] = set()

    def step(self, *, faults: bool) -> None:
        self.tick += 1
        head = min(self.blocks, self.tick // 2)
        for member in self.members:
            if not member.alive:
                if not faults or self.rng.random() < 0.05:
                    first = next((n for n in range(self.blocks) if n not in self.sealed), self.blocks)
                    member.start(first)
                continue
            if faults and self.rng.random() < 0.01 and sum(one.alive for one in self.members) > 1:
                member.alive = False  # what it had under way is on the log without its seal, or not at all
                self.log += [(self.tick, member.name, n, False) for n in member.under_way if self.rng.random() < 0.5]
                continue
            self._seal(member)
            if self.tick % 20 == 0:
                self.log.append((self.tick, member.name, None, False))
            if faults and self.rng.random() < 0.2:
                continue  # it reads nothing this time
            self._read(member)
            now = self.tick * 0.05
            for block_hash, verdict in member.machine.advance(now):
                self._take(member, int.from_bytes(block_hash, "big"), verdict)
            while member.offered < head:
                number = member.offered
                member.offered += 1
                self._take(member, number, member.machine.offer(number.to_bytes(32, "big"), now))

    def _take(self, member: _Member, number: int, verdict: Verdict) -> None:
        if verdict is Verdict.SKIP:
            assert number in self.sealed, "a block was skipped that nobody had sealed"
        elif verdict is Verdict.SEND:
            assert not member.under_way or number > member.under_way[-1], "a block overtook another"
            member.under_way.append(number)

    def _seal(self, member: _Member) -> None:
        for number in member.under_way:
            self.log.append((self.tick, member.name, number, True))
            self.sealed.add(number)
            self.sent[number] += 1
        member.under_way = []

    def _read(self, member: _Member) -> None:
        for tick, name, number, sealed in self.log[member.at :]:
            member.peers.heard(name, tick * 50)
            if number is not None:
                member.peers.batch(number.to_bytes(32, "big"), name)
                if sealed:
                    member.machine.done(number.to_bytes(32, "big"))
        member.at = len(self.log)


def test_a_producer_that_ended_lives_again_with_a_later_record_only() -> None:
    peers = Peers(ALIVE)
    for name in ("a", "b"):
        peers.heard(name, 1_000)
    peers.ended("a", 2_000)
    peers.heard("a", 1_900)  # of another partition, read later
    assert peers.count("me").live == ("b", "me")
    peers.heard("a", 2_001)
    assert peers.count("me").live == ("a", "b", "me")


@settings(deadline=None, max_examples=examples(60))
@given(members=st.integers(2, 5), seed=st.integers(0, 10**6))
def test_around_one_log_every_block_is_sealed_and_most_are_sent_once(members: int, seed: int) -> None:
    world = _World(members, seed, blocks=300)
    for _ in range(700):
        world.step(faults=True)
    for _ in range(400):
        world.step(faults=False)
    assert world.sealed == set(range(300))
    assert sum(world.sent.values()) < 1.3 * 300, "much was sent twice"
