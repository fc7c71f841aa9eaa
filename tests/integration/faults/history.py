"""Checker of a recorded run: blocks mined, acknowledged, stored and delivered while something was broken.

    ledger = Ledger(folder / "acknowledged")            # in the producer's process, which may be killed
    producer.add(payload).add_done_callback(lambda done: ledger.write(payload.hash))
    ...
    wrong = check(History(mined, head, ledger.read(), stored, deliveries))
    assert not wrong, wrong[0]

Rules, one for each kind of sentence that :func:`check` gives:

1. Nothing acknowledged is lost: every acknowledged block is whole on the topics.
2. No update is lost or doubled: the first one's number is 1, each other's the one after the last.
3. Order: what is removed is the newest of the chain, newest first; what is added stands on the chain's head.
4. Nothing is invented: every delivered block was mined, with exactly this content. One that came without any is told
   of by itself, because a consumer may have to say that a content can no longer be had.
5. In the end the chain is the node's.

A history is judged, never mended; nothing here reads a clock, a broker or a node.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.protocols.streams.payload import Payload
from cardinal_devkit.testing.generator import as_received

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cardinal.protocols.streams.events import ChainUpdate

_DIGITS: Final = 64


class Mined(NamedTuple):
    """A block as its node has it. ``digest`` is :func:`content`'s."""

    number: int
    parent: bytes
    digest: bytes


class Seen(NamedTuple):
    """A block as it was delivered."""

    number: int
    hash: bytes
    digest: bytes


class Delivery(NamedTuple):
    """An update as it was stored by who got it."""

    first_seq: int
    seq: int
    removed: tuple[Seen, ...]
    added: tuple[Seen, ...]

    @classmethod
    def of(cls, update: ChainUpdate) -> Delivery:
        """The update without its content."""
        removed, added = (
            tuple(
                Seen(block.number, block.hash, content(block) if isinstance(block, Payload) else b"") for block in part
            )
            for part in (update.removed, update.added)
        )
        return cls(update.first_seq, update.seq, removed, added)


@dataclass(frozen=True, slots=True)
class History:
    """What happened.

    Attributes:
        mined: every block that the node ever had, by hash.
        head: the node's head in the end.
        acknowledged: the hashes of the blocks whose futures ended well.
        stored: the digests of the blocks that an independent reader finds whole on the topics, by hash.
        delivered: the updates in the order in which they were stored.
        first: the number of the block that the deliveries must begin with; None: any.

    """

    mined: Mapping[bytes, Mined]
    head: bytes
    acknowledged: frozenset[bytes]
    stored: Mapping[bytes, bytes]
    delivered: Sequence[Delivery]
    first: int | None = 0


class Ledger:
    """A file of hashes in hexadecimal digits, one behind the other, that a process writes which may be killed.

    A hash is written by one call, and lies in one page of the file: a kill leaves it whole or leaves it out, where it
    cuts a write that goes on in a second page. It is there for readers when :meth:`write` returns. It outlives the
    process, not the machine.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, block_hash: bytes) -> None:
        """Append a hash of 32 bytes."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, block_hash.hex().encode())
        finally:
            os.close(descriptor)

    def read(self) -> frozenset[bytes]:
        """Every hash that was written."""
        text = self.path.read_text() if self.path.exists() else ""
        return frozenset(bytes.fromhex(text[at : at + _DIGITS]) for at in range(0, len(text), _DIGITS))

    def __len__(self) -> int:
        return self.path.stat().st_size // _DIGITS if self.path.exists() else 0


def content(payload: Payload) -> bytes:
    """A digest of everything that a block holds, however it travelled."""
    whole = as_received(payload)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{whole.number}:{whole.weight}:{whole.parent.hex()}".encode())
    for path, value in sorted(whole.updates.items()):
        digest.update(b"+%r=%d:" % (path.encode(errors="surrogateescape"), len(value)) + value)
    for path in sorted(whole.deletes):
        digest.update(b"-%r" % path.encode(errors="surrogateescape"))
    return digest.digest()


def mined(payloads: Iterable[Payload]) -> dict[bytes, Mined]:
    """What a node has that mined these."""
    return {payload.hash: Mined(payload.number, payload.parent, content(payload)) for payload in payloads}


def check(history: History) -> list[str]:
    """One sentence for everything that is wrong, the first thing first; empty where the history holds."""
    return [*_lost(history), *_broken(history), *_invented(history), *_elsewhere(history)]


def _lost(history: History) -> Iterator[str]:
    for block in sorted(history.acknowledged - history.stored.keys()):
        yield f"lost: block {_name(history, block)} was acknowledged and is not whole on the topics"
    for block, digest in history.stored.items():
        if block not in history.mined:
            yield f"invented: block {block.hex()} is on the topics and was never mined"
        elif history.mined[block].digest != digest:
            yield f"invented: block {_name(history, block)} is on the topics with other content"


def _broken(history: History) -> Iterator[str]:
    seq = 0
    chain: list[Seen] = []
    for update in history.delivered:
        where = f"update {update.first_seq}..{update.seq}"
        if update.first_seq != seq + 1:
            yield f"{'doubled' if update.first_seq <= seq else 'missing'}: {where} follows {seq}"
        if update.seq - update.first_seq + 1 != len(update.removed) + len(update.added):
            yield f"numbers: {where} holds {len(update.removed)} removed and {len(update.added)} added blocks"
        seq = update.seq
        for block in update.removed:
            if not chain or chain[-1] != block:
                yield f"order: {where} removes {_name(history, block.hash)}, which is not the head"
            elif chain:
                chain.pop()
        for block in update.added:
            known = history.mined.get(block.hash)
            if chain and known is not None and (known.parent, known.number) != (chain[-1].hash, chain[-1].number + 1):
                yield f"order: {where} adds {_name(history, block.hash)}, which does not stand on the head"
            chain.append(block)


def _invented(history: History) -> Iterator[str]:
    for update in history.delivered:
        for block in (*update.removed, *update.added):
            known = history.mined.get(block.hash)
            if known is None:
                yield f"invented: update {update.seq} holds {block.hash.hex()}, which was never mined"
            elif block.digest == b"":
                yield f"empty: update {update.seq} holds {_name(history, block.hash)} without its content"
            elif known.digest != block.digest or known.number != block.number:
                yield f"invented: update {update.seq} holds {_name(history, block.hash)} with other content"


def _elsewhere(history: History) -> Iterator[str]:
    chain: list[bytes] = []
    for update in history.delivered:
        del chain[len(chain) - len(update.removed) :]
        chain += [block.hash for block in update.added]
    wanted: list[bytes] = []
    block = history.head
    while (known := history.mined.get(block)) is not None:
        wanted.append(block)
        block = known.parent
    wanted.reverse()
    if not chain:
        yield "chain: nothing was delivered"
    elif history.first is not None and (begins := history.mined.get(chain[0])) and begins.number != history.first:
        yield f"chain: it begins with {_name(history, chain[0])}, not with number {history.first}"
    elif chain != wanted[-len(chain) :]:
        yield f"chain: its head is {_name(history, chain[-1])} and the node's is {_name(history, history.head)}"


def _name(history: History, block: bytes) -> str:
    known = history.mined.get(block)
    return f"{block.hex()[-16:]}" if known is None else f"{known.number} ({block.hex()[-16:]})"
