"""JSON-RPC's texts to bytes and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from cardinal.errors import ApplicationError

JsonObject: TypeAlias = Mapping[str, Any]


def data(obj: JsonObject, name: str) -> bytes:
    """The bytes of a field such as ``0x00ff``."""
    try:
        return bytes.fromhex(obj[name][2:])
    except (KeyError, TypeError, ValueError):
        raise ApplicationError(f"the field {name!r} is missing or no hexadecimal data", path=name) from None


def number(obj: JsonObject, name: str) -> int:
    """The number of a field such as ``0x1f``."""
    try:
        return int(obj[name], 16)
    except (KeyError, TypeError, ValueError):
        raise ApplicationError(f"the field {name!r} is missing or no quantity", path=name) from None


def minimal(obj: JsonObject, name: str) -> bytes:
    """The number of a field as the big-endian bytes that RLP writes, none for zero."""
    return to_minimal(number(obj, name))


def to_minimal(value: int) -> bytes:
    """The big-endian bytes of a number, none for zero."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")
