"""Helpers of the streams tests: blocks named like `3a`, and their records."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from cardinal.consuming.lookup import batch_of
from cardinal.protocols.streams import BlockRef, ChainUpdate, Cursor, Payload, Record, Routed, SubBatch, split
from cardinal.protocols.streams.ordering.history import Parents

SCHEMA = {r"b/\w+/t/": "tx", r"b/\w+/l/": "logs", "state/": "state"}
TOPIC = "blocks"
WIDTH = {"blocks": 2, "tx": 3, "logs": 2, "state": 1}


def h(name: str) -> bytes:
    """A readable hash: the name at the end of 32 bytes."""
    return name.encode().rjust(32, b"\0")


def name(block_hash: bytes) -> str:
    return block_hash.lstrip(b"\0").decode()


def number(block: str) -> int:
    return int("".join(char for char in block if char.isdigit()))


def block(name_: str, parent: str, weight: int | None = None, *, txs: int = 2, sub: bool = False) -> Payload:
    """Block `3a`: number 3, some transactions, a log, a value in the Batch, an empty value and a delete."""
    prefix = f"b/{name_}"
    updates = {f"{prefix}/t/{index}": f"{name_}-tx{index}".encode() for index in range(txs)}
    updates |= {f"{prefix}/l/0": b"", f"head/{name_}": name_.encode(), "empty": b""}
    sub_batches = {h(f"sub{name_}"): SubBatch("state/", {"state/x": name_.encode()}, frozenset({"state/gone"}))}
    at = number(name_)
    return Payload(
        at,
        h(name_),
        h(parent),
        at if weight is None else weight,
        updates,
        frozenset({f"{prefix}/t/gone"}),
        sub_batches if sub else {},
    )


def cursor_at(
    ring: Sequence[BlockRef],
    weight: int,
    seq: int,
    start: BlockRef | None = None,
    *,
    root: bytes = b"",
    missing: frozenset[bytes] = frozenset(),
) -> Cursor:
    """The cursor of an earlier run that delivered these blocks, newest first."""
    return Cursor(b"", "blocks", "blocks:1", seq, tuple(ring), weight, start=start, root=root, missing=missing)


def chain(spec: str, weights: Mapping[str, int] | None = None, *, root: str = "0g") -> list[Payload]:
    """`"1a 2a 3a | 1a 2b 3b"`: every path starts at a known block or at the root; each block once."""
    weights = weights or {}
    seen: dict[str, Payload] = {}
    for path in spec.split("|"):
        parent = root
        for block_name in path.split():
            if block_name not in seen:
                seen[block_name] = block(block_name, parent, weights.get(block_name))
            parent = block_name
    return list(seen.values())


def parents_of(records: Iterable[Record]) -> Mapping[bytes, bytes]:
    """What the Batches among these records say of parents."""
    parents = Parents()
    for batch in filter(None, map(batch_of, records)):
        parents.add(batch.hash, batch.parent)
    return parents.links


def messages(payload: Payload) -> list[Routed]:
    return split(payload, SCHEMA, TOPIC)


class Log:
    """Topics with partitions: what a broker would hold."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], list[Record]] = {
            (topic, index): [] for topic, width in WIDTH.items() for index in range(width)
        }

    def append(self, routed: Iterable[Routed]) -> list[Record]:
        out = []
        for message in routed:
            place = (message.topic, sum(message.key) % WIDTH[message.topic])
            records = self.partitions[place]
            record = Record(*place, len(records), message.key, message.value, 1_000 + len(records))
            records.append(record)
            out.append(record)
        return out

    def ends(self) -> dict[tuple[str, int], int]:
        return {place: len(records) for place, records in self.partitions.items()}

    def read(self, seed: int, start: Mapping[tuple[str, int], int] | None = None) -> list[Record]:
        """Everything from `start` on, partitions interleaved by the seed, in order within each."""
        rng = random.Random(seed)
        at = {place: (start or {}).get(place, 0) for place in self.partitions}
        left = [place for place, records in self.partitions.items() if at[place] < len(records)]
        out = []
        while left:
            place = rng.choice(left)
            out.append(self.partitions[place][at[place]])
            at[place] += 1
            if at[place] == len(self.partitions[place]):
                left.remove(place)
        return out


def replay(updates: Sequence[ChainUpdate]) -> list[bytes]:
    """The chain that the updates make; fails where one does not fit."""
    blocks: list[bytes] = []
    seq = 0
    for update in updates:
        assert update.first_seq == seq + 1
        for removed in update.removed:
            assert blocks.pop() == removed.hash
        for added in update.added:
            assert isinstance(added, Payload)
            assert not blocks or added.parent == blocks[-1]
            blocks.append(added.hash)
        seq = update.seq
    return blocks
