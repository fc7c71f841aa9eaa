"""Updates withheld until they are final, over random chains: what comes out, and that any cursor of it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import ChainUpdate, Finality, MissingPayload
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.types import BlockRef, short
from cardinal_spark.source import withheld
from cardinal_spark.source.withheld import Withheld

if TYPE_CHECKING:
    from collections.abc import Iterable

STEPS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(0, 9)), max_size=25)
"""Blocks that leave, blocks that join, and how far the mark lies below the head."""
FINGERPRINT = b"settings"


@dataclass
class Reading:
    """The updates of a consumer whose blocks come, go, and are called final."""

    keeps_final: bool
    chain: list[MissingPayload] = field(default_factory=list)
    updates: list[ChainUpdate] = field(default_factory=list)
    mark: int | None = None
    seq: int = 0
    names: count[int] = field(default_factory=count)

    def step(self, leaving: int, joining: int, behind: int) -> None:
        chain = self.chain
        floor = 0 if self.mark is None or not self.keeps_final else self.mark + 1
        gone = min(leaving, max(0, len(chain) - floor))
        removed = chain[len(chain) - gone :][::-1]
        del chain[len(chain) - gone :]
        # Every other time the block that left comes back.
        added = [removed[-1]] if removed and leaving % 2 and joining else []
        while len(added) < joining:
            added.append(MissingPayload(len(chain) + len(added), next(self.names).to_bytes(32)))
        chain += added
        if behind < len(chain):
            self.mark = max(self.mark or 0, len(chain) - 1 - behind)
        if not removed and not added:
            return
        self.seq += len(removed) + len(added)
        seq, start = self.seq, self.updates[0].added[0] if self.updates else None
        first = None if start is None else BlockRef(start.number, start.hash)

        def cursor() -> Cursor:  # the weight says which of our updates it belongs to
            return Cursor(FINGERPRINT, "evm", "evm:1", seq, (), weight=seq, next={}, floor={}, start=first)

        self.updates.append(ChainUpdate(seq, tuple(removed), tuple(added), Finality(None, self.mark), cursor))


def rows(updates: Iterable[ChainUpdate]) -> list[tuple[int, int, bytes]]:
    found = []
    for update in updates:
        changes = [*((-1, block) for block in update.removed), *((1, block) for block in update.added)]
        found += [(seq, change, block.hash) for seq, (change, block) in enumerate(changes, update.first_seq)]
    return found


def replayed(found: Iterable[tuple[int, int, bytes]]) -> list[bytes]:
    chain: list[bytes] = []
    for due, (seq, change, name) in enumerate(found, 1):
        assert seq == due
        if change > 0:
            chain.append(name)
        else:
            assert chain.pop() == name
    return chain


@given(steps=STEPS, keeps=st.booleans())
def test_what_is_passed_on_is_the_final_part_of_the_chain(steps: list[tuple[int, int, int]], *, keeps: bool) -> None:
    reading, held = Reading(keeps_final=keeps), Withheld("finalized")
    passed: list[ChainUpdate] = []
    for step in steps:
        before = len(reading.updates)
        reading.step(*step)
        passed += held.passed(reading.updates[before:])
        chain = [block.hash for block in reading.chain]
        seen = replayed(rows(passed))
        if keeps:
            assert chain[: len(seen)] == seen
            assert not any(update.removed for update in passed)
            assert not seen or (reading.mark is not None and len(seen) - 1 <= reading.mark)
        assert held.blocks >= len(chain) - len(seen)
        if held.mark is not None and held.mark >= len(chain) - 1:
            assert seen == chain
            assert not held.blocks


@given(STEPS)
def test_any_cursor_continues_to_the_same_rows(steps: list[tuple[int, int, int]]) -> None:
    reading = Reading(keeps_final=True)
    for step in steps:
        reading.step(*step)
    passed = list(Withheld("finalized").passed(reading.updates))
    for at, update in enumerate(passed):
        first = passed[0].added[0]
        cursor = update.cursor
        assert (cursor.seq, cursor.start) == (update.seq, BlockRef(first.number, first.hash))
        assert cursor.lineage == FINGERPRINT + short(first.hash)
        # The consumer that is made of the cursor reads what came after the update, and counts on.
        later = [
            ChainUpdate(each.seq - cursor.weight + update.seq, each.removed, each.added, each.finality, None)
            for each in reading.updates
            if each.seq > cursor.weight
        ]
        again = Withheld("finalized").passed(later)
        assert rows(again) == rows(passed[at + 1 :])


def test_a_reorg_of_many_withheld_blocks_is_one_update() -> None:
    reading, held = Reading(keeps_final=True), Withheld("finalized")
    for _ in range(2_000):
        reading.step(0, 1, 100_000)
    reading.step(1_999, 2_100, 0)
    (*_, last) = held.passed(reading.updates)
    assert last.cursor.seq == 2_101
    assert not any(update.removed for update in held.passed(reading.updates[:0]))


def test_without_marks_nothing_is_passed_on_and_more_than_can_be_held_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(withheld, "BLOCKS_MAX", 9)
    reading, held = Reading(keeps_final=True), Withheld("safe")
    reading.step(0, 9, 0)
    assert not list(held.passed(reading.updates))
    assert str(held) == "9 blocks are not safe yet, no block carries the mark safe"
    reading.step(0, 1, 0)
    with pytest.raises(ConfigurationError, match=r"^10 blocks are not safe yet.*finality=latest"):
        list(held.passed(reading.updates[1:]))
