"""The Avro part of the wire: schemaless binary, read and written through fastavro.

Rules:

1. The schemas here are those of ``schemas/*.avsc`` with two exchanges that leave every byte the same: a map is
   read and written as the array of (path, value) records that it is on the wire, because a path need not be
   UTF-8; and a boolean is read as the one byte that it is, because only 0 and 1 are booleans.
2. Entries are written in the order given. Callers sort them by path, so that redundant producers write equal bytes.
3. Reading takes what the specification's encoding allows: positive and negative block counts, several blocks,
   bytes after the end. Of equal paths the last wins. What is cut short, or runs over its type, is refused.
4. Nothing here allocates by a count that it read: fastavro reads entry by entry and stops where the bytes end.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import Any, Final, NamedTuple, TypeAlias

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from cardinal.errors import DecodeError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_VARINT_MAX_BYTES: Final = 10

Schema: TypeAlias = Any  # fastavro's schemas are dicts, lists and strings

BATCH_SCHEMA: Final = {
    "type": "record",
    "name": "batch",
    "avro.codec": "snappy",
    "namespace": "cloud.rivet.cardinal",
    "fields": [
        {"name": "num", "type": "long"},
        {"name": "weight", "type": "bytes"},
        {"name": "parent", "type": {"name": "par", "type": "fixed", "size": 32}},
        {
            "name": "updates",
            "type": {
                "name": "upd",
                "type": "map",
                "values": {
                    "type": "record",
                    "name": "update",
                    "fields": [
                        {"name": "value", "type": "bytes"},
                        {"name": "count", "type": "int"},
                        {"name": "delete", "type": "boolean"},
                        {"name": "subbatch", "type": {"name": "subb", "type": "fixed", "size": 32}},
                    ],
                },
            },
        },
    ],
}
"""The Batch's schema as the specification prints it; ``schemas/batch.avsc`` holds the same."""

UPDATE_SCHEMA: Final = {
    "type": "record",
    "name": "update",
    "fields": [
        {"name": "delete", "type": {"name": "del", "type": "array", "items": "string"}},
        {"name": "updates", "type": {"name": "upd", "type": "map", "values": "bytes"}},
    ],
}
"""The SubBatchMsg's schema as the specification prints it; ``schemas/update.avsc`` holds the same."""

_BATCH: Final[Schema] = parse_schema(
    {
        "type": "record",
        "name": "batch",
        "fields": [
            {"name": "num", "type": "long"},
            {"name": "weight", "type": "bytes"},
            {"name": "parent", "type": {"name": "par", "type": "fixed", "size": 32}},
            {
                "name": "updates",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "entry",
                        "fields": [
                            {"name": "path", "type": "bytes"},
                            {"name": "value", "type": "bytes"},
                            {"name": "count", "type": "int"},
                            {"name": "delete", "type": {"name": "flag", "type": "fixed", "size": 1}},
                            {"name": "subbatch", "type": {"name": "subb", "type": "fixed", "size": 32}},
                        ],
                    },
                },
            },
        ],
    }
)
_CONTENT: Final[Schema] = parse_schema(
    {
        "type": "record",
        "name": "content",
        "fields": [
            {"name": "delete", "type": {"type": "array", "items": "bytes"}},
            {
                "name": "updates",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "entry",
                        "fields": [{"name": "path", "type": "bytes"}, {"name": "value", "type": "bytes"}],
                    },
                },
            },
        ],
    }
)
_INT: Final[Schema] = parse_schema("int")
_FLAGS: Final = (b"\x00", b"\x01")


class Entry(NamedTuple):
    """One entry of a Batch's map, paths and values as the bytes on the wire."""

    path: bytes
    value: bytes
    count: int  # type: ignore[assignment]  # the wire's name; nobody counts a tuple's members here
    delete: bool
    sub_batch: bytes


class BatchFields(NamedTuple):
    """A Batch's value as it lies on the wire, its weight already a number."""

    number: int
    weight: int
    parent: bytes
    entries: dict[bytes, Entry]


def _read(schema: Schema, data: bytes) -> Any:  # noqa: ANN401 - what fastavro returns depends on the schema
    try:
        return schemaless_reader(BytesIO(data), schema, None)
    except (EOFError, IndexError):
        # fastavro's two ways to say that the bytes end inside a value
        raise DecodeError("the value is cut short") from None
    except (OverflowError, ValueError, MemoryError) as error:
        raise DecodeError(f"the value is not what its type says ({error})") from None


def _write(schema: Schema, value: object) -> bytes:
    out = BytesIO()
    schemaless_writer(out, schema, value)
    return out.getvalue()


def read_int(data: bytes) -> int:
    """The Avro int that ``data`` begins with."""
    return read_int_and_size(data)[0]


def read_int_and_size(data: bytes) -> tuple[int, int]:
    """The Avro int that ``data`` begins with and how many bytes it takes."""
    stream = BytesIO(data)
    try:
        value = schemaless_reader(stream, _INT, None)
    except (EOFError, IndexError):
        raise DecodeError("an integer is cut short") from None
    if not (isinstance(value, int) and -INT_MAX - 1 <= value <= INT_MAX) or stream.tell() > _VARINT_MAX_BYTES:
        raise DecodeError("an integer does not fit 32 bits")
    return value, stream.tell()


def write_int(value: int) -> bytes:
    """An Avro int; the caller has checked that it fits 32 bits."""
    return _write(_INT, value)


def read_batch(data: bytes) -> BatchFields:
    """A Batch's value. DecodeError where it is cut short or a field runs over its type."""
    if not any(byte < 0x80 for byte in data[:_VARINT_MAX_BYTES]):  # noqa: PLR2004 - the varint's continuation bit
        raise DecodeError("the number does not fit 64 bits")
    fields = _read(_BATCH, data)
    number: int = fields["num"]
    if number < 0:
        raise DecodeError(f"the number {number} is negative")
    entries: dict[bytes, Entry] = {}
    for raw in fields["updates"]:
        count, flag = raw["count"], raw["delete"]
        if not -INT_MAX - 1 <= count <= INT_MAX:
            raise DecodeError("a count does not fit 32 bits")
        if flag not in _FLAGS:
            raise DecodeError("a boolean is neither 0 nor 1")
        entries[raw["path"]] = Entry(raw["path"], raw["value"], count, flag == b"\x01", raw["subbatch"])
    return BatchFields(number, int.from_bytes(fields["weight"], "big"), fields["parent"], entries)


def write_batch(number: int, weight: int, parent: bytes, entries: Iterable[Entry]) -> bytes:
    """A Batch's value; the caller has checked the ranges and sorted the entries."""
    return _write(
        _BATCH,
        {
            "num": number,
            "weight": weight.to_bytes((weight.bit_length() + 7) // 8, "big"),
            "parent": parent,
            "updates": [
                {
                    "path": entry.path,
                    "value": entry.value,
                    "count": entry.count,
                    "delete": _FLAGS[entry.delete],
                    "subbatch": entry.sub_batch,
                }
                for entry in entries
            ],
        },
    )


def read_content(data: bytes) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Deletes and updates of a SubBatchMsg's value, paths as bytes."""
    fields = _read(_CONTENT, data)
    return fields["delete"], {entry["path"]: entry["value"] for entry in fields["updates"]}


def write_content(deletes: Iterable[bytes], updates: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A SubBatchMsg's value; the caller has sorted both."""
    return _write(
        _CONTENT,
        {"delete": list(deletes), "updates": [{"path": path, "value": value} for path, value in updates]},
    )
