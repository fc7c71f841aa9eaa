"""RLP codec (yellow paper, appendix B).

An item is ``bytes`` or a list of items. Decoding accepts only the canonical form: no length with leading zeros, no
single byte in a longer form, nothing after the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

from cardinal.errors import ApplicationError

from .cache import Memo

Item: TypeAlias = "bytes | Sequence[Item]"
"""Item to encode."""

Decoded: TypeAlias = "bytes | list[Decoded]"
"""Decoded item."""

_SHORT: Final = 56
_STRING: Final = 0x80
_LIST: Final = 0xC0
_DEEPEST: Final = 64
_BYTES: Final = [bytes((value,)) for value in range(256)]


def encode(item: Item) -> bytes:
    """The RLP of an item."""
    if isinstance(item, bytes):
        return encode_bytes(item)
    return wrap([encode(part) for part in item])


def encode_bytes(data: bytes) -> bytes:
    """The RLP of bytes."""
    size = len(data)
    if size == 1 and data[0] < _STRING:
        return data
    return string_head[size] + data


def encode_int(number: int) -> bytes:
    """The RLP of a number that is not negative: its big-endian bytes, none for zero."""
    if 0 <= number < _STRING:
        return _BYTES[number or _STRING]
    size = (number.bit_length() + 7) >> 3
    raw = number.to_bytes(size, "big")
    return string_head[size] + raw


def minimal_bytes(number: int) -> bytes:
    """The big-endian bytes of a number, none for zero."""
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def wrap(encoded: Iterable[bytes]) -> bytes:
    """The RLP of a list whose items are encoded already.

    No type checks, and an item of two lists (a log, in its receipt and in the stream) is encoded once.
    """
    body = b"".join(encoded)
    return list_head[len(body)] + body


def _prefix(base: int, size: int) -> bytes:
    if size < _SHORT:
        return _BYTES[base + size]
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return _BYTES[base + _SHORT - 1 + len(length)] + length


list_head: Final = Memo[int, bytes](partial(_prefix, _LIST), maxsize=4096)
"""RLP prefix of a list by the size of its items."""

string_head: Final = Memo[int, bytes](partial(_prefix, _STRING), maxsize=4096)
"""RLP prefix of a string by its size; not for a single byte below 0x80."""


def decode(data: bytes) -> Decoded:
    """Decode one item; ApplicationError for any other number of items."""
    items = _items(data, 0, len(data), 0)
    if len(items) != 1:
        raise ApplicationError(f"{len(items)} RLP items, expected one")
    return items[0]


def decode_list(data: bytes) -> list[Decoded]:
    """Decode one list."""
    item = decode(data)
    if isinstance(item, bytes):
        raise ApplicationError("expected an RLP list, not bytes")
    return item


def _items(data: bytes, at: int, limit: int, depth: int) -> list[Decoded]:
    """Items from ``at`` on; the last one must end at ``limit``."""
    if depth > _DEEPEST:
        raise ApplicationError("RLP that is nested too deep")
    items: list[Decoded] = []
    while at < limit:
        first = data[at]
        if first < _STRING:
            items.append(_BYTES[first])
            at += 1
            continue
        code = first - _STRING if first < _LIST else first - _LIST
        start, size = (at + 1, code) if code < _SHORT else _length(data, at, limit, code)
        at = start + size
        if at > limit:
            raise ApplicationError("RLP that is cut short")
        if first >= _LIST:
            items.append(_items(data, start, at, depth + 1))
            continue
        value = data[start:at]
        if size == 1 and value[0] < _STRING:
            raise ApplicationError("a byte in a longer form than RLP writes it")
        items.append(value)
    return items


def _length(data: bytes, at: int, limit: int, code: int) -> tuple[int, int]:
    """Start and size of the content of an item with a separate length."""
    start = at + 2 + code - _SHORT
    raw = data[at + 1 : min(start, limit)]
    size = int.from_bytes(raw, "big")
    if not raw or raw[0] == 0 or size < _SHORT:
        raise ApplicationError("an RLP length in a form that RLP does not write")
    return start, size
