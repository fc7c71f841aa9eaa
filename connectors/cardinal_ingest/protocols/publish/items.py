"""Items and sets as a node checks them: an item is one top-level field, and only a header is read further (P3, P4).

Nothing here parses an item's content: the tag says what it is, the length says that it is one field. Of a header the
number is read, and the block's hash and its parent's where there are any (P41); whether these are needed is the
arbiter's matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from .types import NONE

HEADER_TAG: Final = 1
PROOF_TAG: Final = 9
NUMBER_FIELD: Final = 3
HASH_FIELD: Final = 1001
PARENT_FIELD: Final = 1002

MOST_READ_BYTES: Final = 65_536
"""Most bytes of an item that is read field by field, a header or a group; a header of the protocol has some hundred."""

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_TAG_BYTES: Final = 5
_VARINT_BYTES: Final = 10
_LARGEST_FIELD: Final = 2**29 - 1


class Kind(Enum):
    """Kind of an item that is no header."""

    PROOF = auto()
    OTHER = auto()
    MALFORMED = auto()


@dataclass(frozen=True, slots=True)
class Header:
    """A block's header: its number; hash and parent are empty where the item has none."""

    number: int
    hash: bytes = b""
    parent: bytes = b""


@dataclass(frozen=True, slots=True)
class ItemSet:
    """A set that may be used.

    Attributes:
        header: the header that it begins with.
        content: whether it has an item that is neither header nor proof.
        proven: whether it ends with a proof.
        size: bytes of all items.

    """

    header: Header | None
    content: bool
    proven: bool
    size: int


def read_item(item: bytes) -> Header | Kind:
    """Return the header, or the kind of another item."""
    try:
        field, wire, at = _tag(item, 0)
        if len(item) > MOST_READ_BYTES and (field == HEADER_TAG or wire == _GROUP):
            return Kind.MALFORMED
        start, end = _content(item, at, field, wire)
        if end != len(item):
            return Kind.MALFORMED
        if field not in (HEADER_TAG, PROOF_TAG):
            return Kind.OTHER
        if wire != _BYTES:
            return Kind.MALFORMED
        return Kind.PROOF if field == PROOF_TAG else _header(item, start, end)
    except (ValueError, IndexError):
        return Kind.MALFORMED


def read_set(items: Iterable[bytes]) -> ItemSet | None:
    """Return what a set holds, None for one that breaks a rule of P3 to P5."""
    header: Header | None = None
    content = proven = False
    size = count = 0
    for item in items:
        match read_item(item):
            case Kind.PROOF:
                proven = True
            case Kind.OTHER if not proven:
                content = True
            case Header(number) as first if count == 0 and number != NONE:
                header = first
            case _:
                return None
        size += framed_size(len(item))
        count += 1
    return ItemSet(header, content, proven, size) if count else None


def framed_size(length: int) -> int:
    """Bytes of an item of this length in a body: with its tag and its length."""
    return 1 + max(1, (length.bit_length() + 6) // 7) + length


# --- the wire ---------------------------------------------------------------------------------------------------

_Field: TypeAlias = tuple[int, int, int, int]


def _varint(data: bytes, at: int, most: int = _VARINT_BYTES) -> tuple[int, int]:
    """A number and where it ends; IndexError where the bytes end before."""
    value = 0
    for i in range(most):
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:  # noqa: PLR2004 - the bit that says whether another byte follows
            return value & NONE, at + i + 1
    raise ValueError


def _tag(data: bytes, at: int) -> tuple[int, int, int]:
    """Field number, wire type, and where the field's content begins."""
    tag, at = _varint(data, at, _TAG_BYTES)
    field = tag >> 3
    if not 0 < field <= _LARGEST_FIELD:
        raise ValueError
    return field, tag & 7, at


def _content(data: bytes, at: int, field: int, wire: int) -> tuple[int, int]:
    """Begin and end of a field's content: after its length, for bytes."""
    if wire == _BYTES:
        length, at = _varint(data, at)
        return at, at + length
    if wire == _VARINT:
        return at, _varint(data, at)[1]
    if wire == _FIXED64:
        return at, at + 8
    if wire == _FIXED32:
        return at, at + 4
    if wire == _GROUP:
        return at, _group_end(data, at, field)
    raise ValueError


def _group_end(data: bytes, at: int, field: int) -> int:
    open_groups = [field]
    while open_groups:
        field, wire, at = _tag(data, at)
        if wire == _GROUP:
            open_groups.append(field)
        elif wire != _GROUP_END:
            at = _content(data, at, field, wire)[1]
        elif field != open_groups.pop():
            raise ValueError
    return at


def _fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    """The fields between two positions: number, wire type, begin and end of the content."""
    while at < end:
        field, wire, at = _tag(data, at)
        start, at = _content(data, at, field, wire)
        yield field, wire, start, at
    if at > end:
        raise ValueError


def _header(item: bytes, at: int, end: int) -> Header:
    number, block_hash, parent = 0, b"", b""
    for field, wire, start, stop in _fields(item, at, end):
        if field == NUMBER_FIELD:
            if wire != _VARINT:
                raise ValueError
            number, _ = _varint(item, start)
        elif field == HASH_FIELD and wire == _BYTES:
            block_hash = item[start:stop]
        elif field == PARENT_FIELD and wire == _BYTES:
            parent = item[start:stop]
    return Header(number, block_hash, parent)
