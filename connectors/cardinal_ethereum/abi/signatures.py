"""Signatures of functions and events, from a JSON ABI or from text.

    event Transfer(address indexed from, address indexed to, uint256 value)
    function submit((address maker, uint256[] amounts)[] orders, bytes data) external returns (bool)
    transfer(address,uint256)                                     a function

Rules:

1. The canonical signature (types alone, ``uint`` as ``uint256``) is hashed (Solidity, contract ABI).
2. Invalid text raises :class:`~cardinal.errors.ConfigurationError` with the text in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cardinal.errors import ConfigurationError, MissingExtraError
from cardinal_ethereum.keccak import keccak

try:
    from eth_abi.abi import is_encodable_type
    from eth_abi.exceptions import ABITypeError, ParseError
    from eth_abi.grammar import normalize
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Decoding by an ABI", "abi") from absent

_SELECTOR: Final = 4
_TEXT: Final = re.compile(r"\s*(?:(event|function)\s+)?([A-Za-z_$][\w$]*)\s*(\(.*)", re.DOTALL)
_ARRAYS: Final = re.compile(r"(?:\[\d*\])*")
_OTHER: Final = {"byte": "bytes1"}
_WORDS: Final = frozenset({"memory", "calldata", "storage"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """Parameter; ``name`` may be empty. ``type`` is canonical, a tuple's in parentheses."""

    name: str
    type: str
    indexed: bool = False

    @property
    def dynamic(self) -> bool:
        """True if an indexed value of this type is only a hash: types of variable size or more than one word."""
        return self.type in {"bytes", "string"} or self.type.endswith("]") or self.type.startswith("(")


@dataclass(frozen=True, slots=True)
class Signature:
    """Function or event.

    Attributes:
        kind: ``function`` or ``event``.
        anonymous: an event whose logs do not have its topic.

    """

    kind: str
    name: str
    parameters: tuple[Parameter, ...]
    anonymous: bool = False

    @property
    def text(self) -> str:
        """Canonical signature."""
        return f"{self.name}({','.join(parameter.type for parameter in self.parameters)})"

    @property
    def topic(self) -> bytes:
        """First topic of an event's logs (32 bytes)."""
        return keccak(self.text.encode())

    @property
    def selector(self) -> bytes:
        """First bytes of a call's input (4 bytes)."""
        return self.topic[:_SELECTOR]


def from_json(abi: str | Iterable[Mapping[str, Any]]) -> Iterator[Signature]:
    """Functions and events of a JSON ABI, as text or parsed; other entries (errors, constructors) are skipped."""
    try:
        entries = json.loads(abi) if isinstance(abi, str) else abi
        for entry in entries:
            kind = entry.get("type", "function")
            if kind in ("function", "event"):
                parameters = tuple(_parameter(each) for each in entry["inputs"])
                yield Signature(kind, entry["name"], parameters, bool(entry.get("anonymous")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"this is not a JSON ABI: {error!r}", setting="abi") from None


def _parameter(entry: Mapping[str, Any]) -> Parameter:
    return Parameter(entry.get("name") or "", _type_of(entry), bool(entry.get("indexed")))


def _type_of(entry: Mapping[str, Any]) -> str:
    spelling: str = entry["type"]
    if spelling.startswith("tuple"):
        return f"({','.join(_type_of(part) for part in entry['components'])}){spelling.removeprefix('tuple')}"
    return _canonical(spelling)


def from_text(text: str) -> Signature:
    """Function or event of a textual signature."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{text!r} is not a signature such as 'transfer(address,uint256)'", setting="abi")
    kind, name, rest = match.groups()
    inside, after = _enclosed(rest, text)
    parameters = tuple(_written(part, text) for part in _parts(inside))
    if kind != "event" and any(parameter.indexed for parameter in parameters):
        raise ConfigurationError(f"only an event has indexed parameters: {text!r}", setting="abi")
    return Signature(kind or "function", name, parameters, kind == "event" and "anonymous" in after.split())


def _enclosed(text: str, whole: str) -> tuple[str, str]:
    """The text within the leading parentheses, and the text after them."""
    depth = 0
    for at, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return text[1:at], text[at + 1 :]
    raise ConfigurationError(f"a parenthesis is not closed in {whole!r}", setting="abi")


def _parts(text: str) -> list[str]:
    """Split at the commas outside of parentheses."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]] if text.strip() else []


def _written(text: str, whole: str) -> Parameter:
    """Parse a parameter such as ``address indexed from`` or ``(uint256 a, bytes b)[] orders``."""
    spelling = text.strip().removeprefix("tuple")
    if spelling.startswith("("):
        inside, after = _enclosed(spelling, whole)
        arrays = _ARRAYS.match(after)
        size = arrays.end() if arrays else 0
        kind = f"({','.join(_written(part, whole).type for part in _parts(inside))}){after[:size]}"
        words = after[size:].split()
    else:
        spelling = spelling.replace("address payable", "address")
        kind, *words = spelling.split() or [""]
        kind = _canonical(kind)
    indexed = "indexed" in words
    names = [word for word in words if word != "indexed" and word not in _WORDS]
    if len(names) > 1:
        raise ConfigurationError(f"{text.strip()!r} is not a parameter, in {whole!r}", setting="abi")
    return Parameter(names[0] if names else "", kind, indexed)


def _canonical(spelling: str) -> str:
    """Canonical form of a type that is not a tuple."""
    arrays = spelling.find("[")
    base, rest = (spelling, "") if arrays < 0 else (spelling[:arrays], spelling[arrays:])
    kind: str = normalize(_OTHER.get(base, base) + rest)  # type: ignore[no-untyped-call] # eth-abi leaves it untyped
    try:
        encodable = is_encodable_type(kind)
    except (ParseError, ABITypeError, ValueError):
        encodable = False
    if not encodable:
        raise ConfigurationError(f"{spelling!r} is not a type of the contract ABI", setting="abi")
    return kind
