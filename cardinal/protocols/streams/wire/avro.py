"""The Avro part of the wire: schemaless binary.

Read and written by hand. Compared with fastavro 1.13 and its C extension: a value with one entry, as in SubBatchMsgs,
is read 1.7 times and written 4 times as fast; long maps are read 1.2 times, integers 1.6 times as fast. And
memory: fastavro makes a dict of every entry, 200 MB of two million bytes with a million empty ones; here that is 4 MB.
fastavro holds this module to the same bytes and values in ``tests/properties/test_avro_laws.py``.

Rules:

1. The schemas are ``schemas/batch.avsc`` and ``schemas/update.avsc``. Paths are bytes: they need not be UTF-8.
2. Entries are written in the caller's order. Callers sort them by path, so that redundant producers write equal bytes.
3. Reading accepts all that Avro's encoding allows: positive and negative block counts, several blocks,
   integers that are longer than needed (a long to ten bytes, an int to five), bytes after the end. Of equal paths the
   last wins. A value that is truncated, or exceeds its type, is refused.
4. Nothing here allocates, or loops, by a count that it read: every entry takes bytes, and reading stops where they end.
   The memory held is a small multiple of the value's own size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from cardinal.errors import DecodeError
from cardinal.protocols.streams.types import HASH_SIZE

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
WEIGHT_SIZE_MAX: Final = 64
"""Bytes of a weight. The specification of the streams has 32, and the reference can write more."""

_INT_MIN: Final = -INT_MAX - 1
_MORE: Final = 0x80
"""The bit of a varint's byte which marks that another follows; a smaller byte is the last one."""

_TWO_BYTES: Final = 1 << 14
"""The first number that a varint of two bytes cannot hold; seven bits of each count."""

_LONG_MAX_BYTES: Final = 10
_INT_MAX_BYTES: Final = 5
_UNSIGNED_END: Final = 2**64


Schema: TypeAlias = str | list[str] | dict[str, Any]
"""A schema for fastavro, which reads and writes what is not written by hand here."""


def record_of(name: str, /, **fields: Schema) -> dict[str, Any]:
    """The schema of a record; its fields in their order."""
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields.items()]}


def array_of(items: Schema) -> dict[str, Any]:
    """The schema of an array."""
    return {"type": "array", "items": items}


class Entry(NamedTuple):
    """One entry of a Batch's map, paths and values as the bytes on the wire."""

    path: bytes
    value: bytes
    count: int  # type: ignore[assignment]  # the wire's name; nobody counts a tuple's members here
    delete: bool
    sub_batch: bytes


class BatchFields(NamedTuple):
    """A Batch's value as on the wire, with its weight already a number."""

    number: int
    weight: int
    parent: bytes
    entries: dict[bytes, Entry]


_LONG_OR_NEGATIVE: Final = 0x81
_new_entry = tuple.__new__
"""Makes an entry in half the time."""


# --- reading -----------------------------------------------------------------------------------------------
# Where bytes are missing an index exceeds the end: every public function turns that IndexError into a DecodeError.


def _cut_short() -> NoReturn:
    raise DecodeError("the value is truncated")


def _long(data: bytes, at: int) -> tuple[int, int]:
    """The integer at ``at`` and where it ends."""
    byte = data[at]
    value, shift, last = byte & 0x7F, 7, at + _LONG_MAX_BYTES
    while byte >= _MORE:
        at += 1
        if at == last:
            raise DecodeError("an integer does not fit 64 bits")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
    if value >= _UNSIGNED_END:
        raise DecodeError("an integer does not fit 64 bits")
    return (value >> 1) ^ -(value & 1), at + 1


def _int(data: bytes, at: int) -> tuple[int, int]:
    """The integer of 32 bits at ``at`` and where it ends."""
    value, end = _long(data, at)
    if not _INT_MIN <= value <= INT_MAX or end - at > _INT_MAX_BYTES:
        raise DecodeError("an integer does not fit 32 bits")
    return value, end


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes at ``at`` and where they end."""
    size = data[at]
    at += 1
    if size >= _MORE:  # most lengths take one byte or two
        size, at = size & 0x7F | data[at] << 7, at + 1
        if size >= _TWO_BYTES:
            size, at = _long(data, at - 2)
            size = (size << 1) ^ (size >> 63)
    if size & 1:
        raise DecodeError("a length is negative")
    end = at + (size >> 1)
    if end > len(data):
        _cut_short()
    return data[at:end], end


def _block(data: bytes, at: int) -> tuple[int, int]:
    """The number of entries in the block at ``at``, 0 at the end, and where they begin."""
    count, at = _long(data, at)
    if count < 0:
        _, at = _long(data, at)  # the block's size in bytes, for readers that skip it
    return abs(count), at


def read_int(data: bytes) -> int:
    """The Avro int that ``data`` begins with."""
    return read_int_and_size(data)[0]


def read_int_and_size(data: bytes) -> tuple[int, int]:
    """The Avro int that ``data`` begins with and how many bytes it takes."""
    try:
        return _int(data, 0)
    except IndexError:
        raise DecodeError("an integer is truncated") from None


def read_batch(data: bytes) -> BatchFields:
    """Decode a Batch's value. DecodeError where it is truncated or a field exceeds its type."""
    try:
        number, at = _long(data, 0)
        if number < 0:
            raise DecodeError(f"the number {number} is negative")
        weight, at = _bytes(data, at)
        if len(weight) > WEIGHT_SIZE_MAX:
            raise DecodeError(f"a weight of {len(weight)} bytes is longer than {WEIGHT_SIZE_MAX}")
        end = at + HASH_SIZE
        # Where the parent is truncated there is nothing at its end either: IndexError.
        return BatchFields(number, int.from_bytes(weight, "big"), data[at:end], _entries(data, end))
    except IndexError:
        _cut_short()


def _entries(data: bytes, at: int) -> dict[bytes, Entry]:
    entries: dict[bytes, Entry] = {}
    size = len(data)
    while True:
        left, at = _block(data, at)
        if not left:
            return entries
        while left:
            left -= 1
            # Most lengths take one byte, and no bit of it marks it as negative or continued.
            # An entry that exceeds the end is detected at the entry's end.
            length = data[at]
            if length & _LONG_OR_NEGATIVE:
                path, at = _bytes(data, at)
            else:
                start, at = at + 1, at + 1 + (length >> 1)
                path = data[start:at]
            length = data[at]
            if length & _LONG_OR_NEGATIVE:
                value, at = _bytes(data, at)
            else:
                start, at = at + 1, at + 1 + (length >> 1)
                value = data[start:at]
            count = data[at]
            if count < _MORE:  # most counts take one byte
                count, at = (count >> 1) ^ -(count & 1), at + 1
            else:
                count, at = _int(data, at)
            flag = data[at]
            if flag > 1:
                raise DecodeError("a boolean is neither 0 nor 1")
            start = at + 1
            at = start + HASH_SIZE
            if at > size:
                _cut_short()
            entries[path] = _new_entry(Entry, (path, value, count, flag == 1, data[start:at]))


def read_content(data: bytes) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Deletes and updates of a SubBatchMsg's value, paths as bytes."""
    deletes: list[bytes] = []
    updates: dict[bytes, bytes] = {}
    try:
        left, at = _block(data, 0)
        while left:
            path, at = _bytes(data, at)
            deletes.append(path)
            left -= 1
            if not left:
                left, at = _block(data, at)
        left, at = _block(data, at)
        while left:
            path, at = _bytes(data, at)
            updates[path], at = _bytes(data, at)
            left -= 1
            if not left:
                left, at = _block(data, at)
    except IndexError:
        _cut_short()
    return deletes, updates


# --- writing -----------------------------------------------------------------------------------------------


def write_long(value: int) -> bytes:
    """An Avro long; the caller has checked that it fits 64 bits."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= _MORE:
        out.append(value & 0x7F | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


_write_size: Final = lru_cache(maxsize=4096)(write_long)
"""The sizes of paths and values repeat in every block."""


def write_int(value: int) -> bytes:
    """An Avro int; the caller has checked that it fits 32 bits."""
    return _write_size(value)


def write_batch(number: int, weight: int, parent: bytes, entries: Sequence[Entry]) -> bytes:
    """A Batch's value; the caller has checked the ranges and sorted the entries."""
    big = weight.to_bytes((weight.bit_length() + 7) // 8, "big")
    out = [_write_size(number), _write_size(len(big)), big, parent]
    if entries:
        out.append(_write_size(len(entries)))
    for path, value, count, delete, sub_batch in entries:
        head, size = _write_size(len(path)), _write_size(len(value))
        out += (head, path, size, value, _write_size(count), b"\x01" if delete else b"\x00", sub_batch)
    out.append(b"\x00")
    return b"".join(out)


def write_content(deletes: Sequence[bytes], updates: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A SubBatchMsg's value; the caller has sorted both."""
    out = [_write_size(len(deletes))] if deletes else []
    for path in deletes:
        out += (_write_size(len(path)), path)
    out.append(b"\x00")
    if updates:
        out.append(_write_size(len(updates)))
    for path, value in updates:
        out += (_write_size(len(path)), path, _write_size(len(value)), value)
    out.append(b"\x00")
    return b"".join(out)
