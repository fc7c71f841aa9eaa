"""RLP, Ethereum's encoding of bytes and lists (yellow paper, appendix B).

An item is ``bytes`` or a list of items. Decoding takes only what encoding writes: no length with leading zeros, no
single byte in a longer form, nothing after the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from cardinal.errors import ApplicationError

Item: TypeAlias = "bytes | Sequence[Item]"
"""What RLP encodes."""

Decoded: TypeAlias = "bytes | list[Decoded]"
"""What RLP decodes to."""

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
    if size < _SHORT:
        return _BYTES[_STRING + size] + data
    return _prefix(size, _STRING) + data


def encode_int(number: int) -> bytes:
    """The RLP of a number that is not negative: its big-endian bytes, none for zero."""
    if 0 <= number < _STRING:
        return _BYTES[number or _STRING]
    size = (number.bit_length() + 7) >> 3
    raw = number.to_bytes(size, "big")
    return (_BYTES[_STRING + size] if size < _SHORT else _prefix(size, _STRING)) + raw


def wrap(encoded: Iterable[bytes]) -> bytes:
    """The RLP of a list whose items are encoded already.

    Writers that know their fields use it: nothing has to be asked for its type, and what stands in two lists (a log,
    in its receipt and in the stream) is written once.
    """
    body = b"".join(encoded)
    size = len(body)
    return (_BYTES[_LIST + size] if size < _SHORT else _prefix(size, _LIST)) + body


def _prefix(size: int, base: int) -> bytes:
    if size < len(_BYTES):  # most lists in a block
        return _BYTES[base + _SHORT] + _BYTES[size]
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return _BYTES[base + _SHORT - 1 + len(length)] + length


def decode(data: bytes) -> Decoded:
    """The item that these bytes are. ApplicationError where they are none, or more than one."""
    item, end = _decode(data, 0, len(data), 0)
    if end != len(data):
        raise ApplicationError(f"{len(data) - end} bytes follow the end of an RLP item")
    return item


def decode_list(data: bytes) -> list[Decoded]:
    """The list that these bytes are."""
    item = decode(data)
    if isinstance(item, bytes):
        raise ApplicationError("an RLP list was expected, and these are bytes")
    return item


def _decode(data: bytes, at: int, limit: int, depth: int) -> tuple[Decoded, int]:
    if at >= limit or depth > _DEEPEST:
        raise ApplicationError("RLP that is cut short or nested too deep")
    first = data[at]
    if first < _STRING:
        return data[at : at + 1], at + 1
    base = _LIST if first >= _LIST else _STRING
    start, size = _length(data, at, limit, first - base)
    end = start + size
    if end > limit:
        raise ApplicationError("RLP that is cut short")
    if base == _STRING:
        value = data[start:end]
        if size == 1 and value[0] < _STRING:
            raise ApplicationError("a byte in a longer form than RLP writes it")
        return value, end
    items: list[Decoded] = []
    while start < end:
        item, start = _decode(data, start, end, depth + 1)
        items.append(item)
    return items, end


def _length(data: bytes, at: int, limit: int, code: int) -> tuple[int, int]:
    """Where the content starts, and its size."""
    if code < _SHORT:
        return at + 1, code
    width = code - _SHORT + 1
    start = at + 1 + width
    raw = data[at + 1 : min(start, limit)]
    size = int.from_bytes(raw, "big")
    if len(raw) < width or raw[0] == 0 or size < _SHORT:
        raise ApplicationError("an RLP length in a form that RLP does not write")
    return start, size
