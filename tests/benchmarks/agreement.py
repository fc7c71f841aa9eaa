"""The agreement alone: three members in one process, every message encoded and decoded, real signatures, no disk.

Part of ``tests/benchmarks/cluster.py``.

Every batch takes its whole course: three members admit its blocks, agree, read the claim, and read the marker of its
promotion. What the three do is done on one core, one after the other.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final

from report import say

from cardinal_ingest.cluster.keys import SecretKey, verify
from cardinal_ingest.protocols.replication import (
    KINDS,
    NO_HASH,
    Append,
    Block,
    Broadcast,
    Epoch,
    Marker,
    Membership,
    Replica,
    Rules,
    Send,
    State,
    Step,
    decode,
    decode_marker,
    encode,
    record_bytes,
)

SIZES: Final = (1, 10, 100, 500)
BLOCKS: Final = 20_000
RUNS: Final = 3
CLUSTER: Final = b"\xc1" * 32
RULES: Final = Rules(start=1, window=128, max_blocks=500)
GOAL: Final = 10_000
"""Blocks a second, in batches of 100."""


class Members:
    """Members that agree, and the log that they share. Time stands still but where all of them wait."""

    def __init__(self, count: int) -> None:
        keys = {name: SecretKey(os.urandom(32)) for name in "abcde"[:count]}
        self.calls: Counter[str] = Counter()
        membership = Membership(CLUSTER, "stream", {name: key.public for name, key in keys.items()})
        signing = {name: self._counted("signatures", key.sign) for name, key in keys.items()}
        checking = self._counted("verifications", verify)
        self.replicas = {name: Replica(name, membership, signing[name], checking) for name in keys}
        self._queue: deque[tuple[str, str, int, bytes]] = deque()
        self._offset = 0
        self._now = 0.0
        fields = tuple(sorted(membership.members.items()))
        state = State.empty(RULES, CLUSTER, "stream")
        numbers = RULES.start, RULES.window, RULES.max_blocks
        epoch = Epoch("bench", 0, NO_HASH, NO_HASH, fields, "stream", *numbers, state.raw, "a", b"")
        self._append(encode(replace(epoch, signature=keys["a"].sign(record_bytes(CLUSTER, epoch)))))

    def agree(self, blocks: Sequence[Block]) -> None:
        """Have all members store the blocks and agree on them; then they are promoted."""
        for name, replica in self.replicas.items():
            self._act(name, replica.admit(blocks, self._now))
        self._settle()
        while self._highest() < blocks[-1].number:
            self._now = min(replica.deadline for replica in self.replicas.values())
            for name, replica in self.replicas.items():
                if replica.deadline <= self._now:
                    self._act(name, replica.tick(self._now))
            self._settle()
        header = max(self.replicas["a"].winners.items())[1]
        marker = encode(Marker(CLUSTER, "stream", header.num, len(header.items), header.hash, "a"))
        for name, replica in self.replicas.items():
            self._act(name, replica.marker(decode_marker(marker), self._now))

    def _highest(self) -> int:
        return min(replica.state.highest for replica in self.replicas.values() if replica.state is not None)

    def _settle(self) -> None:
        while self._queue:
            sender, to, kind, payload = self._queue.popleft()
            self._act(to, self.replicas[to].receive(sender, decode(kind, payload), self._now))

    def _act(self, name: str, step: Step) -> None:
        for action in step.actions:
            match action:
                case Broadcast(message):
                    kind, payload = KINDS[type(message)], encode(message)
                    self._queue += [(name, peer, kind, payload) for peer in self.replicas if peer != name]
                case Send(peer, message):
                    self._queue.append((name, peer, KINDS[type(message)], encode(message)))
                case Append(record):
                    self._append(record)
                case _:
                    pass

    def _append(self, record: bytes) -> None:
        self._offset += 1
        for name, replica in self.replicas.items():
            self._act(name, replica.read(self._offset - 1, record, self._now))

    def _counted(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: bytes) -> object:
            self.calls[name] += 1
            return call(*args)

        return counted


def chain(count: int) -> list[Block]:
    """Blocks, each the child of the one before."""
    names = [sha256(b"%d" % number).digest() for number in range(count + 1)]
    return [
        Block(number, names[number], names[number - 1], number, names[number], 300_000)
        for number in range(1, count + 1)
    ]


def rate(members: int, size: int, count: int) -> tuple[float, Counter[str]]:
    """Blocks a second in batches of a size, by processor time, and the calls for signatures."""
    blocks = chain(count)
    cluster = Members(members)
    began = time.process_time()
    for at in range(0, count, size):
        cluster.agree(blocks[at : at + size])
    return count / (time.process_time() - began), cluster.calls


def of_agreement(_broker: object, *, quick: bool) -> None:
    """Blocks a second, of one core that does what all members do."""
    say("agreement alone, all members on one core, blocks a second of processor time")
    for members in (1, 3, 5):
        for size in SIZES:
            count = max(size, 200 if quick else min(BLOCKS, size * 200))
            found = [rate(members, size, count) for _ in range(1 if quick else RUNS)]
            rates, calls = [one for one, _ in found], found[0][1]
            batches = count / size
            signed = (
                f"{calls['signatures'] / batches:.1f} signatures, {calls['verifications'] / batches:.1f} checks a batch"
            )
            median = statistics.median(rates)
            share = f"{median / GOAL:5.0%} of the goal" if (members, size) == (3, 100) else ""
            say(f"  n = {members}, batches of {size:>3}: {median:>9,.0f} blocks/s   {signed}   {share}")
