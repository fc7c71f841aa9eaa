"""Ring of recent chunks: any reader gets chunks that join on, or none; memory and messages are bounded."""

from __future__ import annotations

import random

import pytest

from cardinal.protocols.streams.types import Record
from cardinal_relay.server.ring import CHUNKS_MAX, FRAME_BYTES, Ring
from cardinal_relay.transport.protocol import Chunk, encode_chunks

TP = ("t", 0)
TPS = [TP, ("t", 1), ("u", 0)]
LIMIT = 3_000


def chunk(at: int, size: int) -> Chunk:
    return Chunk(TP, at, at + 1, 1, 0, 0, bytes(size))


def next_chunks(rng: random.Random, ends: dict[tuple[str, int], int]) -> list[Chunk]:
    """The next poll of a source: some records, gaps, positions that move without a record."""
    before = dict(ends)
    records = []
    for tp in TPS:
        for _ in range(rng.randrange(4)):
            ends[tp] += rng.choice([0, 0, 2])
            records.append(Record(*tp, ends[tp], b"k", bytes(rng.randrange(200))))
            ends[tp] += 1
        ends[tp] += rng.choice([0, 0, 0, 1])
    return encode_chunks(records, before, ends, compress=False)


@pytest.mark.parametrize("seed", range(10))
def test_a_reader_of_any_speed_gets_chunks_that_join_on_or_none(seed: int) -> None:
    rng = random.Random(seed)
    ends = {tp: rng.randrange(50) for tp in TPS}
    ring = Ring(LIMIT)
    ring.restart(ends)
    readers = [(dict(ends), speed, [0]) for speed in (1.0, 0.3, 0.02)]
    wanted = [set(TPS), {TPS[0]}, {TPS[1], TPS[2]}]
    late = served = 0
    for _ in range(600):
        ring.append(next_chunks(rng, ends))
        assert ring.size <= LIMIT
        assert ring.ends == ends
        for (positions, speed, index), tps in zip(readers, wanted, strict=True):
            if rng.random() > speed:
                continue
            own = {tp: positions[tp] for tp in tps}
            found = ring.after(index[0], own)
            assert (found is not None) == ring.holds(own)
            if found is None:
                late += 1
                positions.update(ends)  # a catch-up read up to here
                continue
            chunks, index[0] = found
            for one in chunks:
                assert one.tp in tps
                assert one.begin <= positions[one.tp] < one.next
                positions[one.tp] = one.next
            served += len(chunks)
            assert all(positions[tp] == ends[tp] for tp in tps)
    assert late > 3
    assert served > 1_000


def test_a_message_is_bounded_and_the_next_search_continues_after_it() -> None:
    ring = Ring(100 << 20)
    ring.restart({TP: 0})
    chunks = [chunk(at, 100_000) for at in range(10)]
    ring.append(chunks)
    seen: list[Chunk] = []
    index = 0
    while (found := ring.after(index, {TP: len(seen)})) and found[0]:
        assert sum(len(one.data) for one in found[0]) < FRAME_BYTES + 100_000
        seen += found[0]
        index = found[1]
    assert seen == chunks


def test_many_small_chunks_are_bounded_by_their_number() -> None:
    ring = Ring(100 << 20)
    ring.restart({TP: 0})
    for at in range(2 * CHUNKS_MAX):
        ring.append([chunk(at, 1)])
    assert ring.size == CHUNKS_MAX
    assert not ring.holds({TP: CHUNKS_MAX - 1})
    assert ring.holds({TP: CHUNKS_MAX})


def test_a_partition_is_held_from_when_it_is_added() -> None:
    ring = Ring(1_000)
    ring.restart({TP: 5})
    assert ring.after(0, {TP: 5, ("t", 1): 0}) is None
    ring.extend({("t", 1): 0})
    assert ring.after(0, {TP: 5, ("t", 1): 0}) is not None
    assert not ring.holds({TP: 4})
