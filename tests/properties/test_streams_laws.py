"""The laws of DESIGN §5, over random chains, interleavings, copies and crashes."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.protocols.streams import ChainUpdate, Cursor, Follower, FollowerSettings, Payload
from streams import SCHEMA, Log, block, messages, replay

SETTINGS = FollowerSettings("test", "test:1", prefixes=tuple(SCHEMA), reorg_threshold=16)


@st.composite
def trees(draw: st.DrawFn) -> list[Payload]:
    """A random tree of blocks on one root, in an order in which parents come first; weights rise along a chain."""
    blocks: list[Payload] = []
    names = ["0r"]
    depth = {"0r": 0}
    weight = {"0r": 0}
    for index in range(draw(st.integers(1, 24))):
        parent = names[draw(st.integers(max(0, len(names) - 4), len(names) - 1))]
        child = f"{depth[parent] + 1}x{'abcdefghijklmnopqrstuvwxyz'[index]}"
        child = child.replace("x", "")
        depth[child] = depth[parent] + 1
        weight[child] = weight[parent] + draw(st.integers(1, 3))
        names.append(child)
        blocks.append(block(child, parent, weight[child], txs=draw(st.integers(0, 3)), sub=draw(st.booleans())))
    return [block("0r", "none", 0), *blocks]


def written(tree: list[Payload], seed: int, copies: int) -> Log:
    """The tree on the topics: `copies` producers, each shuffling within a block, the Batch last."""
    rng = random.Random(seed)
    log = Log()
    streams = []
    for _ in range(copies):
        stream = []
        for payload in tree:
            *rest, batch = messages(payload)
            rng.shuffle(rest)
            stream.append([*rest, batch])
        streams.append([message for part in stream for message in part])
    while any(streams):
        stream = rng.choice([candidate for candidate in streams if candidate])
        count = rng.randint(1, 12)
        log.append(stream[:count])
        del stream[:count]
    return log


def follow(log: Log, seed: int, cursor: Cursor | None = None, step: int = 7) -> list[ChainUpdate]:
    """A consumer that reads the log from the cursor to its end."""
    follower = Follower(SETTINGS, cursor)
    at = dict.fromkeys(log.partitions, 0) | (dict(cursor.floor) if cursor else {})
    records = log.read(seed, at)
    updates: list[ChainUpdate] = []
    for index in range(0, max(1, len(records)), step):
        part = records[index : index + step]
        out = follower.receive(part)
        for record in part:
            at[record.topic, record.partition] = record.offset + 1
        out += follower.progress(at, log.ends())
        updates += [value for value in out if isinstance(value, ChainUpdate)]
    return updates


def heaviest(tree: list[Payload]) -> int:
    return max(payload.weight for payload in tree)


@given(trees(), st.integers(0, 999), st.integers(1, 3))
def test_any_interleaving_ends_at_a_heaviest_block(tree: list[Payload], seed: int, copies: int) -> None:
    chain = replay(follow(written(tree, seed, copies), seed + 1))
    by_hash = {payload.hash: payload for payload in tree}
    assert by_hash[chain[-1]].weight == heaviest(tree)


@given(trees(), st.integers(0, 999), st.integers(0, 999))
def test_where_one_block_is_heaviest_all_consumers_agree(tree: list[Payload], seed: int, other: int) -> None:
    top = block("99z", "none", 0)
    best = max(tree, key=lambda payload: payload.weight)
    top = Payload(best.number + 1, top.hash, best.hash, best.weight + 1, top.updates, top.deletes)
    tree = [*tree, top]
    one, two = written(tree, seed, 1), written(tree, other, 3)
    assert replay(follow(one, seed)) == replay(follow(two, other))


@given(trees(), st.integers(0, 999), st.integers(1, 3))
def test_the_same_records_give_the_same_updates(tree: list[Payload], seed: int, copies: int) -> None:
    log = written(tree, seed, copies)
    assert follow(log, seed) == follow(log, seed)


@given(trees(), st.integers(0, 999), st.integers(1, 2))
def test_what_is_delivered_is_what_was_published(tree: list[Payload], seed: int, copies: int) -> None:
    by_hash = {payload.hash: payload for payload in tree}
    for update in follow(written(tree, seed, copies), seed):
        for got in update.added:
            want = by_hash[got.hash]
            assert isinstance(got, Payload)
            expected = dict(want.updates)
            deletes = set(want.deletes)
            for sub in want.sub_batches.values():
                assert sub is not None
                expected |= dict(sub.updates)
                deletes |= sub.deletes
            assert dict(got.updates) == expected
            assert got.deletes == deletes
            assert (got.number, got.parent, got.weight) == (want.number, want.parent, want.weight)


@settings(max_examples=60)
@given(trees(), st.integers(0, 999), st.integers(1, 2), st.data())
def test_resuming_from_any_cursor_goes_on_without_gap_or_double(
    tree: list[Payload], seed: int, copies: int, data: st.DataObject
) -> None:
    log = written(tree, seed, copies)
    whole = follow(log, seed, step=data.draw(st.integers(1, 40)))
    cut = data.draw(st.integers(0, len(whole) - 1))
    cursor = Cursor.parse(str(whole[cut].cursor))
    rest = follow(log, data.draw(st.integers(0, 999)), cursor, step=data.draw(st.integers(1, 40)))
    before = whole[: cut + 1]
    delivered = {added.hash: added for update in before for added in update.added}
    chain = replay([*before, *rest])
    by_hash = {payload.hash: payload for payload in tree}
    assert by_hash[chain[-1]].weight == heaviest(tree)
    for update in rest:
        for removed in update.removed:
            assert delivered.get(removed.hash, removed) == removed


@given(trees(), st.integers(0, 999))
def test_an_update_and_its_inverse_leave_the_chain_as_it_was(tree: list[Payload], seed: int) -> None:
    blocks: list[bytes] = []

    def apply(update: ChainUpdate) -> None:
        for removed in update.removed:
            assert blocks.pop() == removed.hash
        blocks.extend(added.hash for added in update.added)

    for update in follow(written(tree, seed, 1), seed):
        before = list(blocks)
        apply(update)
        apply(update.inverted())
        assert blocks == before
        apply(update)
