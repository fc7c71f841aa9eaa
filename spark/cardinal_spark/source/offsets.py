"""Where a stream stands, as the JSON that Spark keeps in a query's checkpoint.

``{"v":1,"seq":…,"n":…,"state":"…"}``: the last sequence number, the head's block number, and the whole offset as
base64 of an Avro record. Equal offsets are equal text, because Spark compares them so.

Rules:

1. What a batch delivers is a function of its two offsets and the log; everything that the log cannot tell is here.
2. The text stays below 8 kB at 42 partitions, a threshold of 128 and 160 side blocks, whatever a producer sends.
3. ``options`` holds a digest for each option that changes what is delivered under which number; a change of one is
   refused by name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from io import BytesIO
from typing import Any, Final, NamedTuple

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from cardinal.errors import CursorInvalidError, CursorMismatchError
from cardinal.protocols.streams.types import HASH_SIZE, BlockRef, Finality, Partition

VERSION: Final = 1
SHORT: Final = 8
"""Bytes of a hash that stand for it in an offset."""

_DIGEST_SIZE: Final = 4
_OPTIONAL: Final = ["null", "long"]
_LONGS: Final = {"type": "array", "items": "long"}

_SCHEMA: Final[Any] = parse_schema(
    {
        "type": "record",
        "name": "offset",
        "fields": [
            {"name": "options", "type": "bytes"},
            {"name": "seq", "type": "long"},
            {"name": "top", "type": "long"},
            {"name": "head", "type": "bytes"},
            {"name": "number", "type": "long"},
            {"name": "start", "type": "bytes"},
            {"name": "start_number", "type": "long"},
            {"name": "origin", "type": "bytes"},
            {"name": "judge", "type": "boolean"},
            {"name": "safe", "type": _OPTIONAL},
            {"name": "finalized", "type": _OPTIONAL},
            {
                "name": "topics",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "topic",
                        "fields": [
                            {"name": "name", "type": "string"},
                            {"name": "next", "type": _LONGS},
                            # floor = next - back: small numbers, few bytes
                            {"name": "back", "type": _LONGS},
                        ],
                    },
                },
            },
            {"name": "done", "type": "bytes"},
            # top - number: small numbers again
            {"name": "done_below", "type": _LONGS},
        ],
    }
)

OPTION_NAMES: Final = ("app", "chain", "tracked", "prefixes", "reorg_threshold", "whitelist", "on_finality_violation")
"""The options that an offset is bound to, in the order of their digests."""


class DoneBlock(NamedTuple):
    """A block that is finished with, and the first bytes of its hash."""

    number: int
    prefix: bytes


@dataclass(frozen=True, slots=True)
class PlanOffset:
    """A position of the planner.

    Attributes:
        options: a digest for each of ``OPTION_NAMES``.
        pos: for every partition the offset after the last record taken into account.
        floor: for every partition the lowest offset that a rebuild has to read again.
        done: finished blocks that a rebuild could not tell from their records, in the order in which they came here.
        seq: the last sequence number given.
        top: the highest number that the head ever had, -1 before the start.
        head: the newest delivered block.
        start: the lowest delivered block that is known: the first one, or where a stream behind a lake's end begins.
        origin: the first bytes of the hash of the first block that was ever delivered, empty before the start.
        judge: whether complete blocks outside the delivered chain are still to be judged (a stream that begins
            behind a lake's end).
        finality: the marks at the head.

    """

    options: bytes
    pos: Mapping[Partition, int]
    floor: Mapping[Partition, int]
    done: tuple[DoneBlock, ...] = ()
    seq: int = 0
    top: int = -1
    head: BlockRef | None = None
    start: BlockRef | None = None
    origin: bytes = b""
    judge: bool = False
    finality: Finality | None = field(default=None)

    def json(self) -> dict[str, Any]:
        """What Spark stores."""
        state = base64.b64encode(self._packed()).decode()
        number = -1 if self.head is None else self.head.number
        return {"v": VERSION, "seq": self.seq, "n": number, "state": state}

    def _packed(self) -> bytes:
        widths: dict[str, int] = {}
        for topic, number in sorted(self.pos):
            widths[topic] = number + 1
        topics = []
        for topic, width in widths.items():
            following = [self.pos.get((topic, number), -1) for number in range(width)]
            back = [at - self.floor.get((topic, number), at) for number, at in enumerate(following)]
            topics.append({"name": topic, "next": following, "back": back})
        finality = self.finality or Finality()
        out = BytesIO()
        schemaless_writer(
            out,
            _SCHEMA,
            {
                "options": self.options,
                "seq": self.seq,
                "top": self.top,
                "head": b"" if self.head is None else self.head.hash,
                "number": -1 if self.head is None else self.head.number,
                "start": b"" if self.start is None else self.start.hash,
                "start_number": -1 if self.start is None else self.start.number,
                "origin": self.origin,
                "judge": self.judge,
                "safe": finality.safe,
                "finalized": finality.finalized,
                "topics": topics,
                "done": b"".join(block.prefix for block in self.done),
                "done_below": [self.top - block.number for block in self.done],
            },
        )
        return out.getvalue()


def parse_offset(stored: Mapping[str, Any]) -> PlanOffset:
    """Read what Spark stored. CursorInvalidError where it is no offset of ours."""
    if stored.get("v") != VERSION:
        raise CursorInvalidError(
            f"the checkpoint holds an offset of version {stored.get('v')!r}, which this release does not know "
            f"(it writes {VERSION}): go on with the release that wrote it"
        )
    try:
        packed = base64.b64decode(stored["state"], validate=True)
        return _from_fields(schemaless_reader(BytesIO(packed), _SCHEMA, None))
    except (KeyError, TypeError, ValueError, EOFError, IndexError, OverflowError, binascii.Error):
        raise CursorInvalidError("the offset in the checkpoint was cut or altered: restore the checkpoint") from None


def _from_fields(fields: Any) -> PlanOffset:  # noqa: ANN401 - what fastavro read
    pos: dict[Partition, int] = {}
    floor: dict[Partition, int] = {}
    for topic in fields["topics"]:
        for number, (following, back) in enumerate(zip(topic["next"], topic["back"], strict=True)):
            if following >= 0:
                pos[topic["name"], number] = following
                floor[topic["name"], number] = following - back
    done, below, top = fields["done"], fields["done_below"], fields["top"]
    if len(done) != SHORT * len(below) or any(len(fields[name]) not in (0, HASH_SIZE) for name in ("head", "start")):
        raise ValueError(len(done))
    safe, finalized = fields["safe"], fields["finalized"]
    return PlanOffset(
        options=fields["options"],
        pos=pos,
        floor=floor,
        done=tuple(DoneBlock(top - down, done[at * SHORT : (at + 1) * SHORT]) for at, down in enumerate(below)),
        seq=fields["seq"],
        top=top,
        head=BlockRef(fields["number"], fields["head"]) if fields["head"] else None,
        start=BlockRef(fields["start_number"], fields["start"]) if fields["start"] else None,
        origin=fields["origin"],
        judge=fields["judge"],
        finality=None if safe is None and finalized is None else Finality(safe, finalized),
    )


def option_digests(values: Mapping[str, object]) -> bytes:
    """The ``options`` of an offset; ``values`` has a value with a stable ``repr`` for each of ``OPTION_NAMES``."""
    return b"".join(_digest(name, values[name]) for name in OPTION_NAMES)


def _digest(name: str, value: object) -> bytes:
    return blake2b(f"{name}={value!r}".encode(), digest_size=_DIGEST_SIZE, person=b"cardinal-plan").digest()


def need_options(offset: PlanOffset, options: bytes) -> None:
    """Refuse an offset that was made with other options: CursorMismatchError names the first that differs."""
    for index, name in enumerate(OPTION_NAMES):
        at = slice(index * _DIGEST_SIZE, (index + 1) * _DIGEST_SIZE)
        if offset.options[at] != options[at]:
            raise CursorMismatchError(
                f"this checkpoint was made with another value of {name}, which decides what is delivered under which "
                "_seq: give the value that it was made with, or start again with a new checkpoint and a new lake",
                expected=options[at].hex(),
                found=offset.options[at].hex(),
            )


def lineage(options: bytes, origin: bytes) -> str:
    """What ``_seq`` counts within: the options, and the block that the stream began with (``origin``)."""
    return f"{_line_of(options)}{origin.hex()}"


def lineage_origin(line: str, options: bytes) -> bytes:
    """The ``origin`` of a lineage. CursorMismatchError where it was made with other options."""
    mine = _line_of(options)
    if not line.startswith(mine) or len(line) != len(mine) + 2 * SHORT:
        raise CursorMismatchError(
            "the lake was written with another chain, reorg threshold or choice of prefixes, so that its _seq counts "
            "something else: give the options that it was written with, or start a new lake",
            expected=mine,
            found=line[: len(mine)],
        )
    return bytes.fromhex(line[len(mine) :])


def _line_of(options: bytes) -> str:
    return blake2b(options, digest_size=SHORT, person=b"cardinal-line").hexdigest()
