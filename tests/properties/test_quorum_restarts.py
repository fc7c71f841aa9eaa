"""A consumer of `quorum:2`, killed again and again, beside two honest producers and one that lies arbitrarily.

The honest ones die and send again what they may have sent, one may be far behind the other, and both publish every
block in the end. The liar knows every block before anybody publishes it. Whatever it does: no wrong block is
delivered, and every block that both published is.

Where nobody lies, but the third comes late, dies for good or leaves messages out, nobody is said to contradict anybody.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.protocols.streams import Batch, BatchMsg, Incomplete, Payload, Reorg, Routed, Stale, encode
from cardinal.protocols.streams.following.follower import OnIncomplete
from cardinal.protocols.streams.types import BlockRef
from examples import examples
from quorums import LIES, SETTINGS, Reading, Topics, as_delivered, said, true, without_marks
from streams import h, replay

THRESHOLD = 4
HEIGHT = 30


def history() -> Iterator[Payload]:
    """History of a node: every fifth block comes second, after two of another branch."""
    for number in range(1, HEIGHT + 1):
        if number % 5 == 0 and number < HEIGHT:
            yield true(f"{number}b", f"{number - 1}a")
            yield true(f"{number + 1}b", f"{number}b")
        yield true(f"{number}a", f"{number - 1}a")


SEEN = list(history())
LENGTH = len(SEEN)
CHAIN = [payload for payload in SEEN if payload.hash.endswith(b"a")]
TRUTH = {payload.hash: without_marks(as_delivered(payload)) for payload in SEEN}
LAGS = st.sampled_from([3, 12, LENGTH])
"""Blocks that one honest producer may be ahead of the other."""


class Honest:
    """A producer that publishes every block of its node, and after a restart again what it may not have finished."""

    def __init__(self, name: str, topics: Topics, rng: random.Random, left_out: bytes = b"nothing") -> None:
        self.name, self._topics, self._rng = name, topics, rng
        self.block = 0
        self._left: list[Routed] = []
        self._left_out = left_out

    @property
    def done(self) -> bool:
        return self.block == LENGTH and not self._left

    def publish(self, messages: int) -> None:
        """Some messages more, in the order of the chain."""
        while messages > 0 and not self.done:
            if not self._left:
                payload = SEEN[self.block]
                seen = f"{self.name}{self._rng.random()}".encode()
                marks = {path: seen for path in payload.updates if path.startswith("head/")}
                whole = said(replace(payload, updates={**payload.updates, **marks}))
                self._left = [message for message in whole if not message.key.endswith(self._left_out)]
                self.block += 1
            part, self._left = self._left[:messages], self._left[messages:]
            self._topics.write(self.name, part)
            messages -= len(part)

    def die(self) -> None:
        """It is killed, perhaps within a block, and begins again with that one, or with one far below."""
        self.block = max(0, self.block - self._rng.choice((1, 2, 5, 25)))
        self._left = []


class Liar:
    """A producer that says anything, of blocks that are published, will be, or never were."""

    def __init__(self, topics: Topics, rng: random.Random) -> None:
        self._topics, self._rng = topics, rng

    def lie(self, around: int) -> None:
        """One of many lies, most about a block that is published about now."""
        rng = self._rng
        index = rng.randrange(LENGTH) if rng.random() < 0.2 else max(0, around + rng.randint(-8, 8))
        payload = SEEN[min(index, LENGTH - 1)]
        messages = self._said(payload)
        if rng.random() < 0.3:
            messages = rng.sample(messages, rng.randint(1, len(messages)))
        self._topics.write("c", messages)

    def _said(self, payload: Payload) -> list[Routed]:
        rng = self._rng
        match rng.randrange(9):
            case 0 | 1:
                return said(payload)
            case 2 | 3:
                return LIES[rng.choice(sorted(LIES))](payload)
            case 4 | 5:  # about where it lies
                return said(replace(payload, number=max(0, payload.number + rng.randint(-20, 20))))
            case 6:  # blocks of its own, on the chain of the others
                fantasy = [true(f"{payload.number + step}z{rng.random()}"[:20], "0a") for step in range(3)]
                parents = [payload.parent, fantasy[0].hash, fantasy[1].hash]
                heavy = [replace(one, parent=up, weight=10**6) for one, up in zip(fantasy, parents, strict=True)]
                return [message for one in heavy for message in said(one)]
            case 7:
                junk = [rng.randbytes(rng.randint(0, 60)) for _ in range(6)]
                return [Routed("tx", b"\3" + payload.hash + junk[0], junk[1]), Routed("blocks", junk[2], junk[3])]
            case _:
                batch = Batch(payload.hash, rng.choice((0, 2**40)), 2**60, h("0z"), {})
                other = BatchMsg(payload.hash, next(path for path in payload.updates if "/t/" in path), b"another")
                return [Routed("blocks", *encode(one)) for one in (batch, other, Reorg(payload.hash, payload.number))]


class Play:
    """Everything happens in random order, until everything is published and read."""

    def __init__(self, seed: int, most_lag: int) -> None:
        self.rng = rng = random.Random(seed)
        topics = Topics()
        self.reading = Reading(topics, replace(SETTINGS, reorg_threshold=THRESHOLD, on_incomplete=OnIncomplete.HALT))
        self.ahead, self.behind = (Honest(name, topics, rng) for name in rng.sample("ab", 2))
        self.liar = Liar(topics, rng)
        self.most_lag = most_lag

    def run(self, *third: Callable[[], None]) -> Reading:
        """Until both have published everything; ``third`` is what the third producer may do."""
        for honest in (self.ahead, self.behind):
            honest.publish(40)
        self.reading.read()
        steps = [self.lead, self.lead, self.follow, self.follow, self.die, self.read, self.kill, *third]
        while not (self.ahead.done and self.behind.done):
            self.rng.choice(steps)()
        self.reading.read()
        return self.reading

    def lead(self) -> None:
        if self.ahead.block - self.behind.block < self.most_lag:
            self.ahead.publish(self.rng.randint(1, 40))

    def follow(self) -> None:
        self.behind.publish(self.rng.randint(1, 40))

    def lie(self) -> None:
        self.liar.lie(self.rng.choice((self.ahead, self.behind)).block)

    def die(self) -> None:
        if self.rng.random() < 0.2:
            self.rng.choice((self.ahead, self.behind)).die()

    def read(self) -> None:
        """Everything, or a part of one partition."""
        unread = self.reading.unread()
        if unread and self.rng.random() < 0.5:
            place = self.rng.choice(unread)[:2]
            self.reading.take([each for each in unread if each[:2] == place][: self.rng.randint(1, 60)])
        else:
            self.reading.read(self.rng.choice((12, 100)))

    def kill(self) -> None:
        if self.rng.random() < 0.3 and self.reading.updates:
            self.reading.restart(-self.rng.randint(1, min(4, len(self.reading.updates))))


def check(seed: int, most_lag: int) -> None:
    play = Play(seed, most_lag)
    delivers_the_chain(play.run(play.lie, play.lie))


def delivers_the_chain(reading: Reading) -> None:
    for update in reading.updates:
        for added in update.added:
            assert isinstance(added, Payload)
            assert without_marks(replace(added, updates=dict(added.updates))) == TRUTH[added.hash]
    first = reading.updates[0].added[0].number
    assert replay(reading.updates) == [payload.hash for payload in CHAIN[first - 1 :]]
    reading.restart()
    reading.read()
    assert reading.follower.orderer.head == BlockRef(HEIGHT, CHAIN[-1].hash)


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(0, 10**9), LAGS)
def test_no_wrong_block_is_delivered_and_every_block_that_two_honest_producers_published_is(
    seed: int, most_lag: int
) -> None:
    check(seed, most_lag)


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(0, 10**9), LAGS, st.sampled_from([b"nothing", b"/t/0", b"state/gone"]), st.integers(0, 2 * LENGTH))
def test_without_lies_no_contradiction_is_reported(seed: int, most_lag: int, left_out: bytes, gone_after: int) -> None:
    """The third producer comes when it likes, leaves messages out perhaps, and is gone for good after a while."""
    play = Play(seed, most_lag)
    third = Honest("c", play.reading.topics, play.rng, left_out)

    def publish() -> None:
        if third.block < gone_after:
            third.publish(play.rng.randint(1, 80))

    delivers_the_chain(play.run(publish))
    # Blocks that came too late, and copies that were not whole when they were due; nothing else.
    assert {type(event) for event in play.reading.reports} <= {Stale, Incomplete}


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**9), LAGS)
def test_so_it_is_in_a_hundred_runs(seed: int, most_lag: int) -> None:
    check(seed, most_lag)


@pytest.mark.soak
@settings(deadline=None, max_examples=300)
@given(st.integers(0, 10**9), LAGS)
def test_so_it_is_in_three_hundred_runs(seed: int, most_lag: int) -> None:
    check(seed, most_lag)
