"""The laws of development chains, over seeds and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.protocols.streams import BlockRef, ChainUpdate, Completed, Orderer, Payload
from cardinal_devkit.devchain import DevChain, DevFeed, DevSettings
from cardinal_devkit.devchain.chain import ChainStep
from cardinal_devkit.testing.forks import ForkSettings, HeadMove, PlannedBlock, fork_script
from cardinal_ethereum import chain_of, payload_from_rpc, verify, verify_payload
from examples import examples

scripts = st.builds(
    ForkSettings,
    seed=st.integers(),
    blocks=st.integers(0, 80),
    reorg_rate=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    max_depth=st.integers(1, 10),
    difficulty=st.sampled_from([0, 1000, 1 << 20]),
)
long_scripts = st.builds(
    ForkSettings,
    seed=st.integers(),
    blocks=st.integers(24, 120),
    reorg_rate=st.floats(0.0001, 1.0),
    max_depth=st.integers(3, 10),
)
chains = st.builds(
    DevSettings,
    seed=st.integers(),
    blocks=st.integers(0, 40),
    reorg_rate=st.sampled_from([0.0, 0.15, 0.8]),
    max_depth=st.integers(1, 6),
    transactions=st.integers(0, 5),
    chain_id=st.sampled_from([1, 1337, 1 << 40]),
    merged=st.booleans(),
)


@given(scripts)
def test_a_script_is_a_function_of_its_settings(script: ForkSettings) -> None:
    assert list(fork_script(script)) == list(fork_script(script))


@given(scripts)
def test_blocks_are_linked_to_parents_that_were_mined_before(script: ForkSettings) -> None:
    blocks: dict[str, PlannedBlock] = {}
    for move in fork_script(script):
        for block in move.mined:
            assert block.name not in blocks
            if block.parent:
                parent = blocks[block.parent]
                assert block.number == parent.number + 1
                assert block.weight == (parent.weight + block.difficulty if script.difficulty else block.number)
                assert (block.difficulty > 0) == (script.difficulty > 0)
            blocks[block.name] = block


@given(scripts)
def test_only_the_last_block_of_a_move_outweighs_every_block_before(script: ForkSettings) -> None:
    heaviest = -1
    for move in fork_script(script):
        for block in move.mined:
            assert (block.weight > heaviest) == (block is move.mined[-1])
        assert move.head is move.mined[-1]
        heaviest = move.head.weight


@given(scripts)
def test_moves_undo_the_newest_blocks_and_stay_within_the_depth(script: ForkSettings) -> None:
    chain: list[str] = []
    highest = 0
    move: HeadMove | None = None
    for move in fork_script(script):
        assert len(move.removed) <= script.max_depth
        assert script.reorg_rate or not move.removed
        for name in move.removed:
            assert chain.pop() == name
        chain += move.added
        highest = max(highest, move.head.number)
        assert chain[0] == "0a"
        assert chain[-1] == move.head.name
        assert len(chain) == move.head.number + 1 >= highest + 1 - script.max_depth
    assert move is not None
    assert move.head.number == script.blocks


@given(long_scripts)
def test_every_long_script_has_a_deep_reorg_one_to_a_shorter_chain_and_a_return(script: ForkSettings) -> None:
    reorgs = [move for move in fork_script(script) if move.removed]
    assert len(reorgs) >= 3
    assert any(len(move.removed) >= 3 for move in reorgs)
    assert any(len(move.removed) > len(move.added) for move in reorgs)
    assert any(move.kind == "return" and len(move.added) > len(move.mined) for move in reorgs)


@settings(max_examples=examples(40), deadline=None)
@given(chains)
def test_equal_settings_build_equal_blocks_that_all_verify(chain: DevSettings) -> None:
    first, second = list(DevChain(chain)), list(DevChain(chain))
    assert first == second
    for step in first:
        for block in step.mined:
            verify(block.block, block.receipts)
            payload = payload_from_rpc(block.block, block.receipts, chain_id=chain.chain_id)
            verify_payload(payload, chain_of(chain.chain_id))
    hashes = [block.hash for step in first for block in step.mined]
    assert len(set(hashes)) == len(hashes)


@settings(max_examples=examples(40), deadline=None)
@given(chains)
def test_a_feed_is_ordered_into_exactly_the_moves_of_the_script(chain: DevSettings) -> None:
    steps = list(DevChain(chain))
    orderer = Orderer(reorg_threshold=16)
    updates: list[ChainUpdate] = []
    for index, payload in enumerate(_follow(chain)):
        updates += orderer.receive(Completed(payload, {}))
        if index == 0:
            updates += orderer.caught_up()
    names = {block.hash: block.plan.name for step in steps for block in step.mined}
    assert [
        (tuple(names[one.hash] for one in update.removed), tuple(names[one.hash] for one in update.added))
        for update in updates
    ] == [(step.move.removed, step.move.added) for step in steps]


@settings(max_examples=examples(40), deadline=None)
@given(chains, st.integers(0, 60), st.integers(1, 8))
def test_a_feed_that_continues_after_a_crash_misses_nothing(chain: DevSettings, given_before: int, kept: int) -> None:
    whole = _follow(chain)
    before = whole[:given_before] or whole[:1]
    published = _branch(before)[-kept - chain.max_depth :]
    after = _follow(chain, published)
    known = {ref.hash for ref in published}
    for payload in after:
        assert payload.parent in known
        known.add(payload.hash)
    # Orphans that a return builds on may come again: they are published, and outside of the reported chain.
    had = {payload.hash for payload in before}
    assert [one.hash for one in after if one.hash not in had] == [one.hash for one in whole[len(before) :]]


@settings(max_examples=examples(25), deadline=None)
@given(chains, st.data())
def test_a_feed_ends_when_the_chain_has_the_block_that_until_names(chain: DevSettings, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, chain.blocks))
    until = data.draw(st.integers(start, chain.blocks))
    payloads = _follow(chain, start=start, until=until)
    assert payloads[-1].number == until
    assert min(payload.number for payload in payloads) == payloads[0].number == start
    reached = _chain_when(list(DevChain(chain)), until)
    assert reached[start : until + 1] == [one.hash for one in _ancestry(payloads)]


def _follow(
    chain: DevSettings, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
) -> list[Payload]:
    async def follow() -> list[Payload]:
        return [payload async for payload in DevFeed(chain).follow(published, start=start, until=until)]

    return asyncio.run(follow())


def _ancestry(payloads: Sequence[Payload]) -> list[Payload]:
    """The last payload and its ancestors among the payloads, oldest first."""
    by_hash = {payload.hash: payload for payload in payloads}
    path = [payloads[-1]]
    while (parent := by_hash.get(path[-1].parent)) is not None:
        path.append(parent)
    return path[::-1]


def _branch(payloads: Sequence[Payload]) -> list[BlockRef]:
    return [payload.ref for payload in _ancestry(payloads)]


def _chain_when(steps: Sequence[ChainStep], height: int) -> list[bytes]:
    """The chain when its head first has this number or a higher one."""
    hashes = {block.plan.name: block.hash for step in steps for block in step.mined}
    chain: list[bytes] = []
    for step in steps:
        del chain[len(chain) - len(step.move.removed) :]
        chain += [hashes[name] for name in step.move.added]
        if step.head.plan.number >= height:
            break
    return chain
