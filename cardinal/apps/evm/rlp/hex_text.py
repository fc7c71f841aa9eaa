"""RLP as hexadecimal text: JSON-RPC's values with RLP's prefixes between them, turned into bytes once for all fields.

A node's hash or address is hexadecimal already; what stands before it in RLP follows from how long its text is. So
transactions and logs are put together as text, and each is read as a whole, which takes a third of the time that bytes
of each field take (measured on mainnet blocks).

Rules:

1. Functions give text without ``0x``, two digits a byte; :func:`to_bytes`, :func:`to_parts` and :func:`number` alone
   make bytes.
2. A text with anything but hexadecimal digits in it is a ValueError, in :func:`to_bytes` at the latest.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterable, Sequence
from typing import Final

from . import codec as rlp
from .cache import Remembered

EMPTY: Final = "80"
"""No bytes."""

WORD_TEXT: Final = 66
"""Characters of a hash, a topic, or a quantity of 256 bits."""
ADDRESS_TEXT: Final = 42
"""Characters of an address."""

_ONE_BYTE_TEXT: Final = 4
_STRING: Final = 0x80
_LIST: Final = 0xC0
_SHORT: Final = 56
_SHORT_PREFIXES: Final = tuple(f"{_STRING + digits // 2:02x}" for digits in range(2 * _SHORT))
"""For every number of digits the prefix of so many; for an odd one it is not used."""


to_bytes: Final = unhexlify
"""The bytes of a text. White space is refused (``bytes.fromhex`` leaves it out, and the prefixes count it)."""


def to_parts(texts: Sequence[str]) -> list[bytes]:
    """The bytes of each text."""
    try:
        return list(map(to_bytes, texts))
    except ValueError:
        if any(len(text) % 2 for text in texts):
            raise ValueError("a value has an odd number of digits") from None
        raise


def data(text: str) -> str:
    """Data, such as ``0x00ff``."""
    size = len(text)
    if size == WORD_TEXT:  # most data are hashes and addresses
        return f"a0{text[2:]}"
    if size == ADDRESS_TEXT:
        return f"94{text[2:]}"
    if text == "0x":
        return EMPTY
    if size % 2:
        raise ValueError(f"{text[:20]!r} has an odd number of digits")
    if size == _ONE_BYTE_TEXT:
        return rlp.encode_bytes(bytes.fromhex(text[2:])).hex()
    return f"{string_prefix[size // 2 - 1]}{text[2:]}"


def optional_data(text: str | None) -> str:
    """Data; none where there is no text."""
    return data(text) if text else EMPTY


def word(text: str | None) -> str:
    """A quantity that hardly comes again, as a signature's parts; it must be there."""
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
        raise ValueError(f"{text[:20]!r}… has more than the 256 bits of a quantity")  # nor is it to be remembered
    return rlp.encode_int(int(text, 16)).hex()


quantity: Final = Remembered[str | None, str](word, most=8192)
"""A quantity, which must be there: gas, prices and amounts come again and again in a block."""

number: Final = Remembered[str | None, bytes](lambda text: to_bytes(word(text)), most=8192)
"""The bytes of a quantity, which must be there."""


def optional_quantity(text: str | None) -> str:
    """A quantity; zero where there is none."""
    return quantity[text] if text else EMPTY


def wrap(parts: Iterable[str]) -> str:
    """A list of what is in RLP already."""
    body = "".join(parts)
    return list_prefix[len(body) // 2] + body


string_prefix: Final = Remembered[int, str](lambda size: rlp.string_head[size].hex(), most=4096)
"""What stands before so many bytes, unless it is a single one."""

list_prefix: Final = Remembered[int, str](lambda size: rlp.list_head[size].hex(), most=4096)
"""What stands before a list of so many bytes."""
