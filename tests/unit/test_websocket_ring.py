from __future__ import annotations

import random

import pytest

from cardinal.protocols.streams.types import Record
from cardinal.server.serving.ring import CHUNKS_MAX, FRAME_BYTES, Ring
from cardinal.transports.websocket.chunks import Chunk, encode_chunks

WHERES = [("t", 0), ("t", 1), ("u", 0)]
LIMIT = 3_000


def _chunks(rng: random.Random, ends: dict[tuple[str, int], int]) -> list[Chunk]:
    """What a source may give next: some records, gaps, positions that move without a record."""
    before = dict(ends)
    records = []
    for where in WHERES:
        for _ in range(rng.randrange(4)):
            ends[where] += rng.choice([0, 0, 2])
            records.append(Record(*where, ends[where], b"k", bytes(rng.randrange(200))))
            ends[where] += 1
        ends[where] += rng.choice([0, 0, 0, 1])
    return encode_chunks(records, before, ends)


@pytest.mark.parametrize("seed", range(30))
def test_a_reader_of_any_speed_gets_chunks_that_join_on_or_is_told_that_it_is_too_old(seed: int) -> None:
    rng = random.Random(seed)
    ends = {where: rng.randrange(50) for where in WHERES}
    ring = Ring(LIMIT)
    ring.begin(ends)
    readers = [(dict(ends), speed, [0]) for speed in (1.0, 0.3, 0.02)]
    wanted = [set(WHERES), {WHERES[0]}, {WHERES[1], WHERES[2]}]
    late = served = 0
    for _ in range(600):
        ring.append(_chunks(rng, ends))
        assert ring.size <= LIMIT
        assert ring.ends() == ends
        for (positions, speed, place), topics in zip(readers, wanted, strict=True):
            if rng.random() > speed:
                continue
            mine = {where: positions[where] for where in topics}
            found = ring.after(place[0], mine)
            assert (found is not None) == ring.holds(mine)
            if found is None:
                late += 1
                positions.update(ends)  # it reads elsewhere up to here
                continue
            place[0] = found.place
            for chunk in found.chunks:
                assert chunk.where in topics
                assert chunk.begin <= positions[chunk.where] < chunk.next
                positions[chunk.where] = chunk.next
            served += len(found.chunks)
            assert all(positions[where] == ends[where] for where in topics)
    assert late > 3
    assert served > 1_000


def test_a_frame_is_bounded_and_the_next_look_goes_on_behind_it() -> None:
    ring = Ring(100 << 20)
    ring.begin({("t", 0): 0})
    chunks = [Chunk(("t", 0), at, at + 1, bytes(100_000)) for at in range(10)]
    ring.append(chunks)
    seen: list[Chunk] = []
    place = 0
    while found := ring.after(place, {("t", 0): len(seen)}):
        if not found.chunks:
            break
        assert sum(len(chunk.data) for chunk in found.chunks) < FRAME_BYTES + 100_000
        seen += found.chunks
        place = found.place
    assert seen == chunks


def test_many_small_chunks_are_bounded_too() -> None:
    ring = Ring(100 << 20)
    ring.begin({("t", 0): 0})
    for at in range(2 * CHUNKS_MAX):
        ring.append([Chunk(("t", 0), at, at + 1, b"x")])
    assert ring.size == CHUNKS_MAX
    assert not ring.holds({("t", 0): CHUNKS_MAX - 1})
    assert ring.holds({("t", 0): CHUNKS_MAX})
    assert ring.covers(("t", 0), 2 * CHUNKS_MAX)
    assert not ring.covers(("t", 0), 2 * CHUNKS_MAX + 1)


def test_a_partition_that_it_does_not_know_is_not_held_until_it_is_added() -> None:
    ring = Ring(1_000)
    ring.begin({("t", 0): 5})
    assert ring.after(0, {("t", 0): 5, ("t", 1): 0}) is None
    ring.add({("t", 1): 0})
    assert ring.after(0, {("t", 0): 5, ("t", 1): 0}) is not None
    assert not ring.holds({("t", 0): 4})
