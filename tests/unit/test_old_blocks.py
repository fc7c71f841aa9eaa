"""Blocks whose Batches lie before where the reading begins: parts of them are read, and nobody waits for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from cardinal.protocols.streams import (
    BlockRef,
    ChainUpdate,
    Completed,
    Follower,
    FollowerSettings,
    Incomplete,
    Record,
    Routed,
)
from cardinal.protocols.streams.assembler import Assembler
from cardinal.protocols.streams.quorum import QuorumReassembler
from cardinal.protocols.streams.reassembler import Reassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER
from streams import SCHEMA, Log, block, chain, h, messages, name

PREFIXES = tuple(SCHEMA)
SETTINGS = FollowerSettings("test", "test:1", prefixes=PREFIXES)
SENT_BY_A = ((PRODUCER_HEADER, b"a"),)
POLICIES = [
    pytest.param(lambda: Reassembler(prefixes=PREFIXES, deadline=3), id="first"),
    pytest.param(lambda: QuorumReassembler(1, ["a"], prefixes=PREFIXES, deadline=3), id="quorum"),
]


class Scene:
    """Assembled from records that follow one another."""

    def __init__(self, make: Callable[[], Assembler]) -> None:
        self.made = make()
        self._read = 0

    def read(self, sent: Iterable[Routed]) -> list[str]:
        """What was completed, and what was overdue with a question mark."""
        records = [
            Record(one.topic, 0, self._read + at, one.key, one.value, 1, SENT_BY_A) for at, one in enumerate(sent)
        ]
        self._read += len(records)
        events = self.made.receive(records)
        told = [f"{name(event.explanation.block)}?" for event in events if isinstance(event, Incomplete)]
        return told + [name(event.payload.hash) for event in events if isinstance(event, Completed)]

    def others(self, first: int, last: int) -> list[str]:
        """Whole blocks, for the deadline to pass."""
        blocks = chain(" ".join(f"{number}a" for number in range(first, last + 1)))
        return [one for each in blocks for one in self.read(messages(each)) if one.endswith("?")]


@pytest.mark.parametrize("make", POLICIES)
def test_nobody_waits_for_an_old_block_and_for_others_as_ever(make: Callable[[], Assembler]) -> None:
    scene = Scene(make)
    scene.made.old(frozenset({h("1x")}))
    for each in ("1x", "1y"):
        assert scene.read(messages(block(each, "0g"))[:-1]) == []
    assert scene.others(1, 40) == ["1y?"]
    assert scene.made.explain(h("1x")).state == "open"


@pytest.mark.parametrize("make", POLICIES)
@pytest.mark.parametrize("after", [2, 40])
def test_an_old_block_is_like_any_other_as_soon_as_a_batch_of_it_comes(
    make: Callable[[], Assembler], after: int
) -> None:
    scene = Scene(make)
    scene.made.old(frozenset({h("50x"), h("50y")}))
    lacking, *content, batch = messages(block("50x", "49a"))
    whole = messages(block("50y", "49a"))
    scene.read([*content, *whole[:-1]])
    assert scene.others(1, after) == []
    assert scene.read([whole[-1], batch]) == ["50y"]
    assert scene.others(after + 1, after + 10) == ["50x?"]
    assert scene.read([lacking]) == ["50x"]


def test_a_follower_whose_first_block_is_given_passes_over_old_blocks() -> None:
    """The rest of 4a lies behind the start; that of 4x, too, and its Batch may be lost."""
    log = Log()
    settings = replace(SETTINGS, start=BlockRef(4, h("4a")), old=frozenset({h("4a")}))
    follower = Follower(settings)
    for each in ("4a", "4x"):
        follower.receive(log.append(messages(block(each, "3a"))[:-1]))
    assert follower.reassembler.open_blocks() == [h("4x")]
    assert follower.explain(h("4a")).state == "delivered"
    assert follower.reassembler.explain(h("4a")).state == "done"
    out = follower.receive(log.append(messages(block("5a", "4a"))))
    assert [name(one.hash) for update in out if isinstance(update, ChainUpdate) for one in update.added] == ["5a"]


def test_a_quorum_passes_over_nothing_for_what_one_batch_says() -> None:
    """Somebody wrote a Batch with 5a's hash and a lower number, before where the reading begins."""
    settings = replace(SETTINGS, start=BlockRef(4, h("4a")), old=frozenset({h("5a")}), policy="quorum:1")
    scene = Scene(lambda: Follower(replace(settings, producers=("a",))).reassembler)
    assert scene.read(messages(block("5a", "4a"))) == ["5a"]


def test_a_follower_whose_first_block_is_found_takes_an_old_block_whose_batch_comes_again() -> None:
    log = Log()
    follower = Follower(replace(SETTINGS, old=frozenset({h("4a")})))
    *content, batch = messages(block("4a", "3a"))
    follower.receive(log.append(content))
    follower.receive(log.append([batch]))
    out = follower.progress(log.ends(), log.ends())
    assert [name(one.hash) for update in out if isinstance(update, ChainUpdate) for one in update.added] == ["4a"]
