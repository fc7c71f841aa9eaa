"""Agreement state: what a prefix of the claim log means.

A value. Equal prefixes give equal states, and so equal digests; the digest is in every header, so that members whose
states differ find out at the next batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cardinal_ingest.protocols.cbor import dump, load

from .codec import array, exactly, hash_, many, minimal, text, uint, weight
from .types import NO_HASH, Head, Header, Ref, Refusal, digest

_STATE: Final = "cardinal/state/1"
_HEAD: Final = array(uint, hash_, weight, make=Head._make)
_SHAPE: Final = array(exactly(_STATE), hash_, text, uint, hash_, _HEAD, uint, many(array(uint, hash_)))


@dataclass(frozen=True, slots=True)
class Rules:
    """Numbers that decide validity, out of the Epoch record.

    Attributes:
        start: number of the stream's first block.
        window: depth of forks below the highest agreed number.
        max_blocks: blocks of a batch.

    """

    start: int
    window: int
    max_blocks: int


@dataclass(frozen=True, slots=True)
class State:
    """State after batch ``num``.

    Attributes:
        num, hash: of the last batch.
        head: of a consumer that has read all agreed blocks.
        highest: highest agreed number.
        ring: hash to number of the agreed blocks down to ``highest`` - window.
        raw, digest: encoding of the state, and its hash.
        rules: of the epoch; no part of the encoding.
        floor: lowest number within the window: blocks from it on may still be agreed.

    """

    num: int
    hash: bytes
    head: Head
    highest: int
    ring: Mapping[bytes, int] = field(repr=False)
    raw: bytes = field(repr=False)
    digest: bytes
    rules: Rules
    floor: int = field(init=False)

    def __post_init__(self) -> None:
        floor = self.highest - self.rules.window + 1 if self.ring else self.rules.start
        object.__setattr__(self, "floor", floor)

    @classmethod
    def build(  # noqa: PLR0917 - the layout's fields in their order
        cls, rules: Rules, cluster: bytes, stream: str, num: int, batch: bytes, head: Head, highest: int,
        ring: Mapping[bytes, int],
    ) -> State:  # fmt: skip
        """The state of these fields, with its encoding."""
        refs = sorted((number, one) for one, number in ring.items())
        fields = (num, batch, (head.number, head.hash, minimal(head.weight)), highest, refs)
        raw = dump((_STATE, cluster, stream, *fields))
        return cls(num, batch, head, highest, ring, raw, digest(raw), rules)

    @classmethod
    def empty(cls, rules: Rules, cluster: bytes, stream: str) -> State:
        """The state of a stream without blocks."""
        before = max(rules.start - 1, 0)
        return cls.build(rules, cluster, stream, 0, NO_HASH, Head(before, NO_HASH, 0), before, {})

    @classmethod
    def read(cls, raw: bytes, rules: Rules) -> tuple[bytes, str, State]:
        """Cluster, stream and state of these bytes.

        Raises:
            ViolationError: DecoderFailure.

        """
        _, cluster, stream, num, batch, head, highest, refs = _SHAPE(load(raw))
        ring = {one: number for number, one in refs}
        return cluster, stream, cls(num, batch, head, highest, ring, raw, digest(raw), rules)

    def extends(self, parent: bytes, heaviness: int) -> bool:
        """A run of blocks above ``parent`` with this weight becomes the head of consumers."""
        return not self.ring or parent == self.head.hash or heaviness > self.head.weight

    def refusal(self, header: Header) -> Refusal | None:  # noqa: PLR0911 - one for each rule
        """First reason why the next batch cannot be this one."""
        if header.num != self.num + 1:
            return Refusal.BAD_NUMBER
        if header.prev != self.hash:
            return Refusal.BAD_PREVIOUS
        if not 0 < len(header.items) <= self.rules.max_blocks:
            return Refusal.TOO_LARGE
        if self.ring:
            if header.parent not in self.ring:
                return Refusal.UNKNOWN_PARENT
            below = self.ring[header.parent]
        elif header.items[0].number != self.rules.start:
            return Refusal.UNKNOWN_PARENT
        else:
            below = self.rules.start - 1
        for item in header.items:
            if item.number <= below:
                return Refusal.NOT_ASCENDING
            below = item.number
        hashes = {item.hash for item in header.items}
        if len(hashes) < len(header.items) or not hashes.isdisjoint(self.ring):
            return Refusal.TWICE
        return None

    def after(self, header: Header) -> State:
        """The state after a valid batch."""
        first, last = header.items[0], header.items[-1]
        ring = dict(self.ring)
        if not ring and first.number:
            ring[header.parent] = first.number - 1  # a root, never written
        head = self.head
        if self.extends(header.parent, header.weight):
            head = Head(last.number, last.hash, header.weight)
        highest = max(self.highest, last.number)
        ring.update((item.hash, item.number) for item in header.items)
        ring = {one: number for one, number in ring.items() if number + self.rules.window >= highest}
        return State.build(self.rules, header.cluster, header.stream, header.num, header.hash, head, highest, ring)

    def holds(self, ref: Ref) -> bool:
        """The block is agreed, and within the window."""
        return self.ring.get(ref.hash) == ref.number
