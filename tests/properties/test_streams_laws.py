"""The laws of ``schemas/SPEC.md``, sections 6 to 8, over random chains, interleavings, copies and crashes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256

from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.protocols.streams import (
    BlockRef,
    ChainUpdate,
    Cursor,
    Follower,
    FollowerSettings,
    ForkBelowStart,
    MissingPayload,
    Payload,
    Record,
    Routed,
    split_reorg,
)
from channels import THRESHOLD, Stream, line
from examples import examples
from streams import SCHEMA, TOPIC, WIDTH, Log, block, h, messages, replay

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
    return [hashed(payload) for payload in [block("0r", "none", 0), *blocks]]


def hashed(payload: Payload) -> Payload:
    """The same block with hashes whose beginnings differ, as real ones' do."""
    return replace(payload, hash=sha256(payload.hash).digest(), parent=sha256(payload.parent).digest())


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
        for record in part:
            at[record.topic, record.partition] = record.offset + 1
        updates += follower.step(part, at, log.ends()).updates
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


@settings(max_examples=examples(60), deadline=None)
@given(trees(), st.integers(0, 999), st.integers(1, 2), st.data())
def test_resuming_from_any_cursor_continues_without_gap_or_double(
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


def resumed(log: Log, cursor: Cursor | None, seed: int, step: int, stop: int) -> tuple[list[ChainUpdate], Cursor, bool]:
    """A consumer that reads from a cursor and is killed after so many steps: updates, last cursor, whether all is read.

    The cursor is that of its last update, or, where it had none, of the moment: also while it still resumes.
    """
    follower = Follower(SETTINGS, cursor)
    at = follower.begin_at({place: (0, len(records)) for place, records in log.partitions.items()})
    records = log.read(seed, at)
    updates: list[ChainUpdate] = []
    stop = min(stop, len(records) // step + 1)
    for index in range(0, stop * step, step):
        part = records[index : index + step]
        at |= {(record.topic, record.partition): record.offset + 1 for record in part}
        updates += follower.step(part, at, log.ends()).updates
    stored = updates[-1].cursor if updates and seed % 2 else follower.cursor()
    return updates, Cursor.parse(str(stored)), stop * step >= len(records)


class WiderLog(Log):
    """Topics that got more partitions from some message on."""

    def __init__(self) -> None:
        super().__init__()
        self.width = dict(WIDTH)

    def widen(self) -> None:
        for topic in self.width:
            self.partitions[topic, self.width[topic]] = []
            self.width[topic] += 1

    def append(self, routed: Iterable[Routed]) -> list[Record]:
        out = []
        for message in routed:
            place = (message.topic, sum(message.key) % self.width[message.topic])
            records = self.partitions[place]
            records.append(Record(*place, len(records), message.key, message.value, 1_000 + len(records)))
            out.append(records[-1])
        return out


@settings(max_examples=examples(60), deadline=None)
@given(trees(), st.integers(0, 999), st.integers(1, 2), st.data())
def test_killed_again_and_again_a_consumer_comes_to_the_same_chain(
    tree: list[Payload], seed: int, copies: int, data: st.DataObject
) -> None:
    """Also killed while it resumes, before it has read again what it delivered."""
    log = written(tree, seed, copies)
    step = data.draw(st.integers(1, 40))
    updates: list[ChainUpdate] = []
    cursor: Cursor | None = None
    for _ in range(data.draw(st.integers(1, 6))):
        more, cursor, _ = resumed(log, cursor, data.draw(st.integers(1, 999)), step, data.draw(st.integers(1, 12)))
        updates += more
    more, _, whole = resumed(log, cursor, seed + 1, step, 10_000)
    assert whole
    chain = replay([*updates, *more])
    by_hash = {payload.hash: payload for payload in tree}
    assert by_hash[chain[-1]].weight == heaviest(tree)
    delivered = {added.hash: added for update in updates for added in update.added}
    for update in more:
        for removed in update.removed:
            assert delivered.get(removed.hash, removed) == removed


@settings(max_examples=examples(40), deadline=None)
@given(trees(), st.integers(0, 999), st.integers(1, 2), st.data())
def test_partitions_may_be_added_between_a_cursor_and_its_resuming(
    tree: list[Payload], seed: int, copies: int, data: st.DataObject
) -> None:
    log = WiderLog()
    cut = data.draw(st.integers(1, len(tree)))
    for payload in tree[:cut]:
        log.append(messages(payload))
    before, cursor, _ = resumed(log, None, seed, 7, data.draw(st.integers(1, 60)))
    log.widen()
    rest = [payload for _ in range(copies) for payload in tree[data.draw(st.integers(0, cut)) :]]
    rest += tree[cut:]
    for payload in rest:
        log.append(messages(payload))
    after, _, _ = resumed(log, cursor, seed + 1, data.draw(st.integers(1, 40)), 10_000)
    chain = replay([*before, *after])
    by_hash = {payload.hash: payload for payload in tree}
    assert by_hash[chain[-1]].weight == heaviest(tree)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_deep_reorg_survives_any_number_of_kills(data: st.DataObject) -> None:
    """A chain, a channel with a better one from up to two producers, and children of both tips on the main topics."""
    length = data.draw(st.integers(THRESHOLD + 2, 14))
    ancestor = data.draw(st.integers(1, length - 2))
    # Fewer than the threshold, so that the channel is not given up while its producers dawdle.
    more, later = data.draw(st.integers(0, 1)), data.draw(st.integers(0, THRESHOLD - 2))
    stream = Stream()
    stream.publish([block("0r", "none", 0), *line("a", 1, length, "0r")])
    new = line("b", ancestor + 1, length + more + 1, f"{ancestor}a", 1)
    announced, content = split_reorg(BlockRef(ancestor, h(f"{ancestor}a")), new, SCHEMA, TOPIC)
    dies = data.draw(st.integers(0, len(content)))
    producers = [list(content), list(content[:dies])]
    main = [messages(payload) for payload in line("a", length + 1, length + more, f"{length}a")]
    tip = length + more + 1
    children = line("b", tip + 1, tip + later, f"{tip}b", 1)
    main += map(messages, children)
    stream.read(seed=data.draw(st.integers(1, 999)), step=5)
    stream.write([announced])
    while any(producers) or main:
        turn = data.draw(st.integers(0, len(producers)))
        if turn < len(producers):
            count = data.draw(st.integers(1, 20))
            stream.write(producers[turn][:count], f"p{turn}")
            del producers[turn][:count]
        elif main:
            stream.write(main.pop(0))
        if data.draw(st.booleans()):
            stream.read(seed=data.draw(st.integers(1, 999)), step=4, steps=data.draw(st.integers(1, 6)))
        if data.draw(st.integers(0, 3)) == 0:
            stream.restart(stream.updates[-1].cursor if data.draw(st.booleans()) and stream.updates else None)
    stream.read(seed=data.draw(st.integers(1, 999)), step=30)
    blocks: list[bytes] = []
    assert [update.first_seq for update in stream.updates] == [1, *(update.seq + 1 for update in stream.updates[:-1])]
    for update in stream.updates:
        for removed in update.removed:
            assert blocks.pop() == removed.hash
        assert not any(isinstance(added, MissingPayload) for added in update.added)
        blocks += [added.hash for added in update.added]
    kept = [h("0r"), *(h(f"{number}a") for number in range(1, ancestor + 1))]
    assert blocks == [*kept, *(payload.hash for payload in (*new, *children))]
    assert sum(bool(update.removed) for update in stream.updates) == 1
    assert not stream.named(ForkBelowStart)


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
