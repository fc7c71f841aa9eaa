"""Cursor of a consumer: a small opaque text to store alongside the data that it belongs to.

``c1:`` and base64 (URL alphabet, no padding) of eight bytes of BLAKE2b and an Avro record. The checksum detects
accidents, not forgeries: the fields of a text with a good checksum are checked for consistency, and a :class:`Cursor`
that was parsed is one that an honest consumer could have made. Storing the text in the transaction that stores the data
gives exactly once.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from io import BytesIO
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from cardinal.errors import CursorInvalidError
from cardinal.texts import Readable

from .types import HASH_SIZE, SHORT, BlockRef, Finality, FinalityViolated, Partition
from .wire.avro import array_of, record_of

VERSION: Final = "c1"
CHANNELS_MAX: Final = 16
_CHECK_SIZE: Final = 8
_LINEAGE_SIZES: Final = (SHORT, 2 * SHORT)
_TEXT_MAX: Final = 1 << 20
_NUMBERS_MAX: Final = 1 << 31
_OPTIONAL: Final = ["null", "long"]
_LONGS: Final = array_of("long")
# next: from partition 0 on; -n: the next n numbers are no partitions. floor = next - back: small numbers, few bytes
_TOPIC: Final = record_of("topic", name="string", next=_LONGS, back=_LONGS)

_SCHEMA: Final[Any] = parse_schema(
    record_of(
        "cursor",
        lineage="bytes",
        app="string",
        chain="string",
        seq="long",
        number="long",
        weight="bytes",
        ring="bytes",
        missing=_LONGS,  # indexes into the ring
        topics=array_of(_TOPIC),
        open="bytes",
        done="bytes",  # of earlier releases; written empty
        safe=_OPTIONAL,
        finalized=_OPTIONAL,
        # at most one of each: the first delivered block, the tip that violated finality and at which number
        start=array_of(record_of("ref", number="long", hash="bytes")),
        root="bytes",
        violator=array_of("ref"),
        violated=_OPTIONAL,
        channels=array_of("ref"),
    )
)


@dataclass(frozen=True, slots=True, repr=False)
class Cursor(Readable):
    """Position in one lineage of one stream.

    Attributes:
        lineage: 8 bytes of a digest of the options, and 8 of the first delivered block's hash once there is one;
            ``seq`` counts within it.
        app: the application's name.
        chain: the application's name for the chain, such as ``evm:1``.
        seq: the last sequence number delivered.
        ring: delivered blocks within the threshold, newest first; the head is the first. Their numbers descend by
            one from the head's.
        weight: the head's weight.
        next: for every partition the offset after the last record taken into account.
        floor: for every partition the lowest offset that resuming has to re-read.
        open: the blocks that were not complete, by :func:`~.types.short`.
        finality: the finality marks at the head.
        violation: the switch that set the finality latch.
        start: the first block that was delivered, None before it.
        missing: the blocks of the ring that were delivered without their content.
        channels: the ancestors of the reorg channels that are open.
        root: the hash of the first block's parent, as long as the ring reaches down to it; else empty.

    """

    lineage: bytes
    app: str
    chain: str
    seq: int
    ring: tuple[BlockRef, ...]
    weight: int
    next: Mapping[Partition, int] = field(default_factory=dict)
    floor: Mapping[Partition, int] = field(default_factory=dict)
    open: frozenset[bytes] = frozenset()
    finality: Finality | None = None
    violation: FinalityViolated | None = None
    start: BlockRef | None = None
    missing: frozenset[bytes] = frozenset()
    channels: tuple[BlockRef, ...] = ()
    root: bytes = b""

    @property
    def head(self) -> BlockRef | None:
        """The newest delivered block."""
        return self.ring[0] if self.ring else None

    def __str__(self) -> str:
        """The text to store; :meth:`parse` reads it back."""
        finality = self.finality or Finality()
        out = BytesIO()
        schemaless_writer(
            out,
            _SCHEMA,
            {
                "lineage": self.lineage,
                "app": self.app,
                "chain": self.chain,
                "seq": self.seq,
                "number": self.ring[0].number if self.ring else -1,
                "weight": self.weight.to_bytes((self.weight.bit_length() + 7) // 8, "big"),
                "ring": b"".join(ref.hash for ref in self.ring),
                "missing": [index for index, ref in enumerate(self.ring) if ref.hash in self.missing],
                "topics": self._topics(),
                "open": b"".join(sorted(self.open)),
                "done": b"",
                "safe": finality.safe,
                "finalized": finality.finalized,
                "start": _refs(self.start),
                "root": self.root,
                "violator": _refs(None if self.violation is None else self.violation.tip),
                "violated": None if self.violation is None else self.violation.finalized,
                "channels": _refs(*self.channels),
            },
        )
        body = out.getvalue()
        return f"{VERSION}:{base64.urlsafe_b64encode(_check(body) + body).rstrip(b'=').decode()}"

    def _topics(self) -> list[dict[str, object]]:
        topics: list[dict[str, object]] = []
        for topic, partitions in groupby(sorted(self.next), key=itemgetter(0)):
            following: list[int] = []
            back: list[int] = []
            expected = 0
            for partition in partitions:
                if skipped := partition[1] - expected:
                    following.append(-skipped)
                    back.append(0)
                following.append(self.next[partition])
                back.append(self.next[partition] - self.floor.get(partition, self.next[partition]))
                expected = partition[1] + 1
            topics.append({"name": topic, "next": following, "back": back})
        return topics

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse a cursor's text. CursorInvalidError for other text, or one truncated, altered or of another version."""
        version, separator, encoded = text.strip().partition(":")
        if not separator or not version.startswith("c") or len(text) > _TEXT_MAX:
            raise CursorInvalidError("the text is not a cursor: pass the complete text, which begins with 'c1:'")
        if version != VERSION:
            raise CursorInvalidError(
                f"the cursor has version {version!r}, this release reads {VERSION}: use the release that wrote it"
            )
        try:
            data = base64.b64decode(encoded.encode("ascii") + b"=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise CursorInvalidError("the cursor was altered: it is not base64 text") from None
        body = data[_CHECK_SIZE:]
        if data[:_CHECK_SIZE] != _check(body):
            raise CursorInvalidError("the cursor was truncated or altered: its checksum does not match")
        try:
            return _from_fields(schemaless_reader(BytesIO(body), _SCHEMA, None))
        except (EOFError, IndexError, ValueError, OverflowError):  # what fastavro and the checks below raise
            raise CursorInvalidError("the cursor's fields contradict each other") from None


def _from_fields(fields: Any) -> Cursor:  # noqa: ANN401 - what fastavro read
    """The cursor that these fields make; ValueError where no consumer could have made it."""
    ring = _ring(fields["number"], _pieces(fields["ring"], HASH_SIZE))
    next_, floor = _positions(fields["topics"])
    start = _one(fields["start"])
    channels = tuple(_ref(ref) for ref in fields["channels"])
    safe, finalized = fields["safe"], fields["finalized"]
    _demand(len(fields["lineage"]) in _LINEAGE_SIZES)
    _demand(fields["seq"] >= len(ring) and (start is not None) == bool(ring))
    _demand(len(fields["root"]) == HASH_SIZE if ring and fields["root"] else not fields["root"])
    _demand(fields["root"] not in (ref.hash for ref in ring))
    _demand(len(set(channels)) == len(channels) <= CHANNELS_MAX)
    _demand(not len(fields["done"]) % SHORT)
    _demand(all(mark is None or mark >= 0 for mark in (safe, finalized)))
    return Cursor(
        lineage=fields["lineage"],
        app=fields["app"],
        chain=fields["chain"],
        seq=fields["seq"],
        ring=ring,
        weight=int.from_bytes(fields["weight"], "big"),
        next=next_,
        floor=floor,
        open=frozenset(_pieces(fields["open"], SHORT)),
        finality=None if safe is None and finalized is None else Finality(safe, finalized),
        violation=_violation(_one(fields["violator"]), fields["violated"]),
        start=start,
        missing=_missing(ring, fields["missing"]),
        channels=channels,
        root=fields["root"],
    )


def _demand(sensible: bool) -> None:  # noqa: FBT001 - a condition, not an option
    if not sensible:
        raise ValueError


def _ring(number: int, hashes: list[bytes]) -> tuple[BlockRef, ...]:
    _demand(len(set(hashes)) == len(hashes))
    _demand(number - len(hashes) >= -1 if hashes else number == -1)
    return tuple(BlockRef(number - index, block_hash) for index, block_hash in enumerate(hashes))


def _positions(topics: list[dict[str, Any]]) -> tuple[dict[Partition, int], dict[Partition, int]]:
    next_: dict[Partition, int] = {}
    floor: dict[Partition, int] = {}
    _demand(len({topic["name"] for topic in topics}) == len(topics))
    for topic in topics:
        number = 0
        _demand(not topic["next"] or topic["next"][-1] >= 0)
        for following, back in zip(topic["next"], topic["back"], strict=True):
            if following < 0:
                _demand(back == 0)
                number -= following
                continue
            _demand(0 <= back <= following and number < _NUMBERS_MAX)
            next_[topic["name"], number] = following
            floor[topic["name"], number] = following - back
            number += 1
    return next_, floor


def _missing(ring: tuple[BlockRef, ...], indexes: list[int]) -> frozenset[bytes]:
    _demand(all(0 <= index < len(ring) for index in indexes))
    return frozenset(ring[index].hash for index in indexes)


def _violation(tip: BlockRef | None, finalized: int | None) -> FinalityViolated | None:
    _demand((tip is None) == (finalized is None))
    return None if tip is None or finalized is None else FinalityViolated(tip, finalized)


def _refs(*refs: BlockRef | None) -> list[dict[str, object]]:
    return [{"number": ref.number, "hash": ref.hash} for ref in refs if ref is not None]


def _ref(fields: dict[str, Any]) -> BlockRef:
    _demand(len(fields["hash"]) == HASH_SIZE)
    return BlockRef(fields["number"], fields["hash"])


def _one(refs: list[dict[str, Any]]) -> BlockRef | None:
    _demand(len(refs) <= 1)
    return _ref(refs[0]) if refs else None


def _pieces(data: bytes, size: int) -> list[bytes]:
    if len(data) % size:
        raise ValueError(len(data))
    return [data[at : at + size] for at in range(0, len(data), size)]


def _check(body: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECK_SIZE, person=b"cardinal-cursor").digest()
