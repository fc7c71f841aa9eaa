"""Pending blocks of a publisher: every future ends once, as what became of its block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import DeliveryError, LocalProtocolError, OrphanedError
from cardinal.protocols.streams import BlockRef
from cardinal_ingest.publisher.pending import Pending, PendingBlock

_STEPS = st.lists(st.tuples(st.sampled_from(["add", "acknowledge", "turn"]), st.integers(0, 5)), max_size=60)


def block(number: int, branch: int, parent: bytes) -> PendingBlock:
    return PendingBlock(BlockRef(number, bytes([number, branch]) + bytes(30)), parent, (b"one", b"three"), 8)


@given(_STEPS)
def test_every_future_ends_once_and_as_its_block_did(steps: list[tuple[str, int]]) -> None:
    pending, chain, branch = Pending(), [], 0
    ended: dict[PendingBlock, str] = {}
    held: list[PendingBlock] = []
    for step, by in steps:
        if step == "add":
            parent = chain[-1].ref.hash if chain else bytes(32)
            chain.append(block(len(chain), branch, parent))
            assert not pending.turns(chain[-1].ref, parent)
            pending.append(chain[-1])
            held.append(chain[-1])
        elif step == "acknowledge" and held:
            last = held[min(by, len(held) - 1)].ref.number
            ended |= {one: "acknowledged" for one in held if one.ref.number <= last}
            held = [one for one in held if one.ref.number > last]
            pending.acknowledge(last)
        elif step == "turn" and chain:
            branch += 1
            ancestor = len(chain) - 1 - min(by + 1, len(chain))
            ended |= {one: "orphaned" for one in held if one.ref.number > ancestor}
            held = [one for one in held if one.ref.number <= ancestor]
            chain = chain[: ancestor + 1]
            pending.cut(ancestor)
        assert len(pending) == len(held) == pending.stats.in_flight
        assert pending.size == 8 * len(held)
        assert [future.done() for future in pending.futures] == [False] * len(held)
    pending.fail(lambda ref: DeliveryError("closed", block_hash=ref.hash))
    for one in held:
        assert isinstance(one.future.exception(0), DeliveryError)
    for one, end in ended.items():
        error = one.future.exception(0)
        assert error is None if end == "acknowledged" else isinstance(error, OrphanedError)
    assert pending.stats.blocks == list(ended.values()).count("acknowledged")
    assert (pending.stats.messages, pending.stats.bytes) == (2 * pending.stats.blocks, 8 * pending.stats.blocks)


def test_a_block_turns_above_its_parent_and_needs_that_parent() -> None:
    pending = Pending()
    one = block(1, 0, bytes(32))
    two = block(2, 0, one.ref.hash)
    for added in (one, two):
        assert not pending.turns(added.ref, added.parent)
        pending.append(added)
    with pytest.raises(LocalProtocolError, match="in flight already"):
        pending.turns(two.ref, two.parent)
    with pytest.raises(LocalProtocolError, match="not a child of block 1"):
        pending.turns(block(2, 1, bytes(32)).ref, bytes(32))
    with pytest.raises(LocalProtocolError, match="not a child of block 2"):
        pending.turns(block(3, 1, bytes(32)).ref, bytes(32))
    assert pending.turns(block(2, 1, one.ref.hash).ref, one.ref.hash)
    pending.acknowledge(2)
    assert not pending.turns(block(3, 0, two.ref.hash).ref, two.ref.hash)
    with pytest.raises(LocalProtocolError, match="not a child of block 2"):
        pending.turns(block(3, 1, bytes(32)).ref, bytes(32))
