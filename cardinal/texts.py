"""Texts of values for people: bytes in hexadecimal, short hashes, a few of many items, nouns that agree in number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, cast

_WHOLE: Final = 20
"""Bytes that are shown completely: an address is."""
_SIZED: Final = 32
"""Bytes above which the size is shown: a hash's is known."""
_SHORT: Final = 5
_ITEMS: Final = 3


class Count(int):
    """Number of things: ``1 block``, ``2 blocks`` as text, a number in JSON."""

    def __new__(cls, number: int, noun: str, plural: str | None = None) -> Self:
        """A number of things of this name; ``plural``: where it is not the name with an s."""
        count = super().__new__(cls, number)
        count._noun = noun if number == 1 else plural or f"{noun}s"
        return count

    _noun: str

    def __str__(self) -> str:
        return f"{int(self)} {self._noun}"


def short_hash(block_hash: bytes | bytearray) -> str:
    """The beginning of a hash."""
    return f"0x{block_hash[:_SHORT].hex()}…"


def numbered(number: int | None, block: object) -> str:
    """A block's number and hash; its hash alone where its number is unknown: its Batch did not come."""
    return str(block) if number is None else f"{number} ({block})"


def text_of(value: object) -> str:
    """Text of a value: of containers too, but for values that have a text of their own."""
    if isinstance(value, bytes | bytearray):
        if len(value) <= _WHOLE:
            return f"0x{value.hex()}"
        return short_hash(value) + (f" ({len(value)} bytes)" if len(value) > _SIZED else "")
    if isinstance(value, dict | MappingProxyType):
        return _listed("{}", value.items(), len(value), lambda pair: f"{text_of(pair[0])}: {text_of(pair[1])}")
    if isinstance(value, set | frozenset):
        return _listed("{}", value, len(value), text_of)
    if isinstance(value, list) or type(value) is tuple:  # a named tuple has a text of its own
        return _listed("[]" if isinstance(value, list) else "()", value, len(value), text_of)
    return repr(value)


def _listed(brackets: str, items: Iterable[Any], count: int, text: Callable[[Any], str]) -> str:
    shown = [*map(text, islice(items, _ITEMS)), *([f"… {count} in all"] if count > _ITEMS else [])]
    return f"{brackets[0]}{', '.join(shown)}{brackets[1]}"


def named_text(value: NamedTuple) -> str:
    """Text of a named tuple."""
    return _constructed(value, zip(value._fields, value, strict=True))


class Readable:
    """Base of dataclasses (``repr=False``) that people print: their bytes are hexadecimal, and nothing is long."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = (field.name for field in fields(cast("Any", self)) if field.repr)
        return _constructed(self, ((name, getattr(self, name)) for name in shown))


def _constructed(value: object, named: Iterable[tuple[str, object]]) -> str:
    return f"{type(value).__name__}({', '.join(f'{name}={text_of(one)}' for name, one in named)})"
