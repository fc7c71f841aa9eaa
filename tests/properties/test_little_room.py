"""Law 2 with little memory: what was evicted is delivered with its content, wherever one resumes."""

from __future__ import annotations

import random

import pytest

from cardinal.protocols.streams import BlockRef, Payload
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.following.settings import OnIncomplete
from channels import Stream
from examples import few
from streams import h, messages, replay

LAST = 40
QUORUM = {"policy": "quorum:2", "producers": ("a", "b")}


def chain(rng: random.Random) -> list[Payload]:
    """Some blocks have a log, so that its partition stands still meanwhile."""
    blocks = []
    for number in range(1, LAST + 1):
        updates = {f"b/{number}a/t/0": b"x"} | ({f"b/{number}a/l/0": b"y"} if rng.random() < 0.2 else {})
        blocks.append(Payload(number, h(f"{number}a"), h(f"{number - 1}a" if number > 1 else "0r"), number, updates))
    return blocks


def written(rng: random.Random, blocks: list[Payload], policy: dict[str, object]) -> Stream:
    """Each producer's Batches come after all content, both perhaps in any order."""
    stream = Stream(
        start=BlockRef(0, h("0r")),
        bounds=Bounds(open_blocks=rng.choice([8, 12]) * (4 if policy else 1)),
        max_waiting=rng.choice([6, 1_000]),
        on_incomplete=rng.choice(list(OnIncomplete)),
        **policy,
    )
    for producer in QUORUM["producers"] if policy else ("",):
        content = [message for payload in blocks for message in messages(payload)[:-1]]
        batches = [messages(payload)[-1] for payload in blocks]
        if rng.random() < 0.5:
            rng.shuffle(content)
        if rng.random() < 0.3:
            rng.shuffle(batches)
        stream.write([*content, *batches], producer)
    return stream


@pytest.mark.parametrize("policy", [{}, QUORUM], ids=["first", "quorum"])
@pytest.mark.parametrize("seed", few(4, range(16)))
def test_a_consumer_that_is_killed_anywhere_delivers_every_block_with_its_content(
    seed: int, policy: dict[str, object]
) -> None:
    rng = random.Random(seed)
    blocks = chain(rng)
    stream = written(rng, blocks, policy)
    for _ in range(60):
        stream.read(step=rng.choice([1, 2, 5]), seed=rng.randrange(1, 1_000_000), steps=rng.randint(1, 6))
        if rng.random() < 0.3 and stream.at == stream.ends():
            stream.rest(1)
        if rng.random() < 0.15:
            undone = rng.randint(0, min(3, max(0, len(stream.updates) - 1)))
            cursor = stream.updates[-undone - 1].cursor if undone else None
            del stream.updates[len(stream.updates) - undone :]
            stream.restart(cursor)
    polled = stream.polled
    while len(replay(stream.updates)) < LAST:
        stream.read(steps=200)
        stream.rest(1)
        assert stream.polled - polled < 40 * sum(stream.ends().values())
    assert replay(stream.updates) == [payload.hash for payload in blocks]
