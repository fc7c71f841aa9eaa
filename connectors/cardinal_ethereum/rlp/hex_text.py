"""RLP encoding of JSON-RPC values as hexadecimal text.

A node's hash or address is hexadecimal already, and its RLP prefix follows from the length of its text. So transactions
and logs are joined as text and converted to bytes once, in a third of the time that converting each field takes
(measured on mainnet blocks).

Rules:

1. Functions return text without ``0x``, two digits a byte; only :func:`to_bytes`, :func:`to_parts` and :func:`number`
   return bytes.
2. A text with anything but hexadecimal digits raises ValueError, in :func:`to_bytes` at the latest.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterable, Sequence
from typing import Final

from . import codec as rlp
from .cache import Memo

EMPTY: Final = "80"
"""RLP of empty bytes."""

WORD_TEXT: Final = 66
"""Characters of a hash, a topic, or a quantity of 256 bits."""
ADDRESS_TEXT: Final = 42
"""Characters of an address."""

_ONE_BYTE_TEXT: Final = 4
_STRING: Final = 0x80
_LIST: Final = 0xC0
_SHORT: Final = 56
_SHORT_PREFIXES: Final = tuple(f"{_STRING + digits // 2:02x}" for digits in range(2 * _SHORT))
"""RLP prefix by the number of digits, which is even."""


to_bytes: Final = unhexlify
"""Bytes of a text. White space is refused (``bytes.fromhex`` ignores it, but the prefixes count it)."""


def to_parts(texts: Sequence[str]) -> list[bytes]:
    """Bytes of each text."""
    try:
        return list(map(to_bytes, texts))
    except ValueError:
        if any(len(text) % 2 for text in texts):
            raise ValueError("a value has an odd number of digits") from None
        raise


def data(text: str | None) -> str:
    """Data, such as ``0x00ff``."""
    if text is None:
        raise ValueError("a value is missing")
    size = len(text)
    if size == WORD_TEXT:  # most data are hashes and addresses
        return f"a0{text[2:]}"
    if size == ADDRESS_TEXT:
        return f"94{text[2:]}"
    if text == "0x":
        return EMPTY
    if size % 2 or not size:
        raise ValueError(f"{text[:20]!r} has an odd number of digits" if size else "it is empty, without 0x")
    if size == _ONE_BYTE_TEXT:
        return rlp.encode_bytes(bytes.fromhex(text[2:])).hex()
    return f"{string_prefix[size // 2 - 1]}{text[2:]}"


def optional_data(text: str | None) -> str:
    """Data; empty without text."""
    return data(text) if text else EMPTY


def word(text: str | None) -> str:
    """Required quantity that rarely repeats, such as a part of a signature: not cached."""
    if text is None:
        raise ValueError("a quantity is missing")
    if len(text) == WORD_TEXT and text[2] != "0" and text[:2] == "0x":  # a signature's parts, but for one in sixteen
        return f"a0{text[2:]}"
    digits = text[2:]
    if digits and digits[0] != "0" and text[:2] == "0x" and len(text) <= WORD_TEXT:
        if len(digits) % 2:
            digits = f"0{digits}"
        if len(digits) == 2 and digits < "80":  # noqa: PLR2004 - one byte below 0x80 is its own RLP
            return digits
        return _SHORT_PREFIXES[len(digits)] + digits
    if len(text) > WORD_TEXT:
        raise ValueError(f"{text[:20]!r}… has more than the 256 bits of a quantity")  # nor is it cached
    return rlp.encode_int(int(text, 16)).hex()


quantity: Final = Memo[str | None, str](word, maxsize=8192)
"""Required quantity, cached: gas, prices and amounts repeat within a block."""

number: Final = Memo[str | None, bytes](lambda text: to_bytes(word(text)), maxsize=8192)
"""Bytes of a required quantity, cached."""


def optional_quantity(text: str | None) -> str:
    """Quantity; zero without text."""
    return quantity[text] if text else EMPTY


def wrap(parts: Iterable[str]) -> str:
    """List of items that are RLP already."""
    body = "".join(parts)
    return list_prefix[len(body) // 2] + body


string_prefix: Final = Memo[int, str](lambda size: rlp.string_head[size].hex(), maxsize=4096)
"""RLP prefix of a string by its size in bytes; not for a single byte below 0x80."""

list_prefix: Final = Memo[int, str](lambda size: rlp.list_head[size].hex(), maxsize=4096)
"""RLP prefix of a list by the size of its items in bytes."""
