"""One simulated member: a disk of rows, a replica restored from it, and a promoter at work."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cardinal_ingest.protocols.replication import (
    NO_HASH,
    Checkpoint,
    Close,
    DeleteBlock,
    DeleteCandidates,
    DeleteWinner,
    Epoch,
    Membership,
    PutBlock,
    PutCandidate,
    PutPosition,
    PutPromoted,
    PutWinner,
    Replica,
    ReplicationSettings,
    Row,
    Rules,
    State,
    Stored,
    encode,
    record_bytes,
)

if TYPE_CHECKING:
    from .cluster_promoter import Promoter

CLUSTER = b"\xc1" * 32
STREAM = "eth"


def signature(key: bytes, data: bytes) -> bytes:
    """A cheap signature: whoever has the key could forge it, and nobody here does."""
    return hashlib.blake2b(data, key=key).digest()


def signer(key: bytes) -> Callable[[bytes], bytes]:
    return lambda data: signature(key, data)


def verify(key: bytes, data: bytes, signed: bytes) -> bool:
    return signature(key, data) == signed


def membership(size: int, cluster: bytes = CLUSTER) -> Membership:
    return Membership(cluster, STREAM, {name: name.encode() * 32 for name in "abcde"[:size]})


def first_record(members: Membership, rules: Rules, state: State | None = None, previous: bytes = NO_HASH) -> bytes:
    """The record that begins a claim log, signed by the first member."""
    state = state or State.empty(rules, members.cluster, members.stream)
    writer = members.ids[0]
    numbers = (rules.start, rules.window, rules.max_blocks)
    keys = tuple(sorted(members.members.items()))
    record = Epoch("demo", 0, previous, bytes(32), keys, members.stream, *numbers, state.raw, writer, b"")
    return encode(replace(record, signature=signature(members.members[writer], record_bytes(members.cluster, record))))


def state_record(members: Membership, kind: type[Checkpoint | Close], state: State, writer: str) -> bytes:
    record = kind(state.raw, writer, b"")
    return encode(replace(record, signature=signature(members.members[writer], record_bytes(members.cluster, record))))


@dataclass(slots=True)
class Disk:
    """Rows by key, as a store has them."""

    blocks: dict[bytes, Stored] = field(default_factory=dict)
    candidates: dict[bytes, PutCandidate] = field(default_factory=dict)
    winners: dict[int, Stored] = field(default_factory=dict)
    single: dict[type, Stored] = field(default_factory=dict)

    def commit(self, rows: Iterable[Row]) -> None:
        for row in rows:
            match row:
                case PutBlock(block):
                    self.blocks[block.hash] = row
                case DeleteBlock(ref):
                    del self.blocks[ref.hash]
                case PutCandidate(header):
                    self.candidates[header.hash] = row
                case DeleteCandidates(below):
                    for one in [one for one, kept in self.candidates.items() if kept.header.num < below]:
                        del self.candidates[one]
                case PutWinner(header):
                    self.winners[header.num] = row
                case DeleteWinner(num):
                    del self.winners[num]
                case PutPosition() | PutPromoted():
                    self.single[type(row)] = row

    def rows(self) -> list[Stored]:
        return [
            *self.blocks.values(), *self.candidates.values(), *self.winners.values(), *self.single.values(),
        ]  # fmt: skip

    def copy(self) -> Disk:
        return Disk(dict(self.blocks), dict(self.candidates), dict(self.winners), dict(self.single))


class Node:
    """One member: what it has committed, and what runs on it."""

    def __init__(self, name: str, members: Membership, settings: ReplicationSettings) -> None:
        self.name = name
        self.members = members
        self.settings = settings
        self.disk = Disk()
        self.older: Disk | None = None
        """A backup of the disk."""
        self.replica: Replica
        self.promoter: Promoter
        self.up = False
        self.lives = 0
        self.dead = False
        """It does not start any more."""
        self.wakes = float("inf")
        """Time of the earliest wake-up that is scheduled."""

    def start(self) -> None:
        self.lives += 1
        self.up = True
        self.wakes = float("inf")
        key = self.members.members[self.name]
        self.replica = Replica(self.name, self.members, signer(key), verify, self.settings, rows=self.disk.rows())

    def holds(self, block: bytes) -> bool:
        """The block is on the disk."""
        return block in self.disk.blocks
