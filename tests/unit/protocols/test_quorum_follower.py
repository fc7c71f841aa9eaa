"""A whole consumer under policy `quorum:2`: one of three producers lies, and the consumer is killed and resumed."""

from __future__ import annotations

import random

import pytest

from cardinal.protocols.streams import ChainUpdate, Cursor, Follower, FollowerSettings, Payload, Record
from cardinal.protocols.streams.events import Event
from quorums import LIES, NAMES, SILENT, Topics, as_delivered, reported, said, true, without_marks
from streams import SCHEMA, replay

SETTINGS = FollowerSettings(
    "test",
    "test:1",
    prefixes=tuple(SCHEMA),
    reorg_threshold=16,
    policy="quorum:2",
    producers=NAMES,
    volatile=("^head/",),
)


def written(lies: dict[int, str], blocks: int, seed: int) -> tuple[Topics, list[Payload]]:
    chain = [true(f"{number}a", f"{number - 1}a") for number in range(1, blocks + 1)]
    rng = random.Random(seed)
    topics = Topics()
    streams = {}
    for name in NAMES:
        stream = []
        for payload in chain:
            lie = lies.get(payload.number) if name == "c" else None
            stream += said(payload) if lie is None else LIES[lie](payload)
        streams[name] = stream
    topics.mix(streams, rng)
    return topics, chain


def read(
    topics: Topics, seed: int, cursor: Cursor | None = None, kill: int | None = None
) -> tuple[list[ChainUpdate], set[bytes]]:
    """Read from the cursor to the end, or until so many updates came: those, and the blocks that are reported."""
    follower = Follower(SETTINGS, cursor)
    ends = {place: len(log) for place, log in topics.partitions.items()}
    at = dict(follower.begin_at({place: (0, end) for place, end in ends.items()}))
    records: list[Record] = [r for r in topics.read(random.Random(seed)) if r.offset >= at[r.topic, r.partition]]
    updates: list[ChainUpdate] = []
    reports: list[Event] = []
    for index in range(0, len(records), 9):
        part = records[index : index + 9]
        at |= {(record.topic, record.partition): record.offset + 1 for record in part}
        for value in follower.step(part, at, ends).items:
            if isinstance(value, ChainUpdate):
                updates.append(value)
            else:
                reports.append(value)
        if kill is not None and len(updates) >= kill:
            break
    return updates[:kill], reported(reports)


@pytest.mark.parametrize("seed", range(6))
def test_a_liar_changes_nothing_and_a_killed_consumer_goes_on(seed: int) -> None:
    rng = random.Random(seed)
    lies = {number: rng.choice(sorted(LIES)) for number in range(2, 30, 3)} | {1: "value"}
    topics, chain = written(lies, 40, seed)
    lied = {chain[number - 1].hash: lie for number, lie in lies.items()}
    whole, seen = read(topics, seed)
    assert {block for block, lie in lied.items() if lie not in SILENT} <= seen <= lied.keys()
    assert replay(whole) == [payload.hash for payload in chain]
    added = [block for update in whole for block in update.added]
    assert [without_marks(block) for block in added if isinstance(block, Payload)] == [
        without_marks(as_delivered(payload)) for payload in chain
    ]
    for kill in range(1, len(whole), 7):
        first, _ = read(topics, seed, kill=kill)
        rest, _ = read(topics, seed + kill, Cursor.parse(str(first[-1].cursor)))
        assert replay([*first, *rest]) == [payload.hash for payload in chain]
