"""Values of a log's data, a topic or a call's input, by their types.

Contracts write encodings that the ABI's encoder does not. Those with one meaning are decoded:

1. Data behind the arguments, parts that share their bytes, offsets in any order.
2. ``bytes`` or ``string`` whose padding is absent or not zero: solc before 0.5 did so with calldata (its 0.5.0 breaking
   changes; Lido's NodeOperatorAdded, Livepeer's NewJob, Maker's LogNote).
3. A ``string`` that is not UTF-8: its bytes.
4. Bits beyond an ``address`` or ``bytesN``, and a ``bool`` above 1, which the EVM reads as true.

An encoding with two meanings is refused: a number beyond its type, an address or ``bytesN`` at the wrong end of its
word, data that ends within a value. So are parts that refer to each other repeatedly: kilobytes would become gigabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

from cardinal.errors import MissingExtraError

try:
    from eth_abi.codec import ABICodec
    from eth_abi.decoding import ContextFramesBytesIO
    from eth_abi.exceptions import DecodingError, EncodingError
    from eth_abi.grammar import parse
    from eth_abi.registry import registry
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Decoding by an ABI", "abi") from absent

_Kind: TypeAlias = Any
"""Parsed type; the library leaves its parts untyped."""

_READINGS: Final = 8
_LEAST: Final = 4096
_WORD: Final = 32
_ADDRESS: Final = 20
_REPEATED: Final = "its parts refer to each other repeatedly"


class Form(Enum):
    """Encodings that are accepted."""

    PADDED = "padded"
    """Those of the rule 1."""
    UNPADDED = "unpadded"
    """Those of the rules 1 to 3: no word has two readings."""
    ANY = "any"
    """Those of all rules: any word fits an ``address``, so the type has to be certain."""


class MisfitError(ValueError):
    """The data does not fit the types, or fits them in two ways."""


class _Bounded(ContextFramesBytesIO):
    """Reader with a bound on the bytes read.

    Encoders write every part once, and the library reads it up to three times; more reads mean repeated references.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)  # type: ignore[no-untyped-call] # eth-abi leaves it untyped
        self._budget = _READINGS * len(data) + _LEAST

    def read(self, size: int | None = -1, /) -> bytes:
        """Read like any file; DecodingError beyond the bound."""
        data = super().read(size)
        self._budget -= len(data)
        if self._budget < 0:
            raise DecodingError(_REPEATED)
        return data


class _Codec(ABICodec):
    stream_class = _Bounded


_CODEC: Final = _Codec(registry)


def values_of(types: Sequence[str], data: bytes, form: Form) -> tuple[Sequence[Any], bool]:
    """The values, and whether they encode to the same bytes.

    Raises:
        MisfitError: the data does not fit the types in this form; the text says why.

    """
    if form is not Form.PADDED:
        return _Lenient(data, form).sequence([parse(kind) for kind in types], 0), False
    try:
        values = _CODEC.decode(types, data)
        return values, _CODEC.encode(types, values) == data
    except (DecodingError, EncodingError, UnicodeDecodeError, OverflowError) as error:
        raise MisfitError(str(error)) from None


class _Lenient:
    """Decoder of one piece of data."""

    def __init__(self, data: bytes, form: Form) -> None:
        self._data = data
        self._form = form
        self._budget = _READINGS * len(data) + _LEAST

    def sequence(self, kinds: Sequence[_Kind], base: int) -> tuple[Any, ...]:
        """Values of which the first begins at ``base``, from where offsets count."""
        values, at = [], base
        for kind in kinds:
            if kind.is_dynamic:
                values.append(self._dynamic(kind, base + self._number(at)))
                at += _WORD
            else:
                values.append(self._static(kind, at))
                at += _size(kind)
        return tuple(values)

    def _dynamic(self, kind: _Kind, at: int) -> Any:  # noqa: ANN401 -- any ABI value
        if kind.is_array:
            count, at = (kind.arrlist[-1][0], at) if kind.arrlist[-1] else (self._number(at), at + _WORD)
            item = kind.item_type
            if count * (_WORD if item.is_dynamic else _size(item)) > len(self._data) - at:
                raise _cut_short(kind)
            return self.sequence([item] * count, at)
        if hasattr(kind, "components"):
            return self.sequence(kind.components, at)
        value = self._bytes(at + _WORD, self._number(at), kind)
        try:
            return value.decode() if kind.base == "string" else value
        except UnicodeDecodeError:
            return value

    def _static(self, kind: _Kind, at: int) -> Any:  # noqa: ANN401 -- the same
        if kind.is_array:
            return self.sequence([kind.item_type] * kind.arrlist[-1][0], at)
        if hasattr(kind, "components"):
            return self.sequence(kind.components, at)
        if kind.base == "bytes":
            return self._fixed(self._data[at : at + _WORD], kind)
        return self._word(self._bytes(at, _WORD, kind), kind)

    def _fixed(self, word: bytes, kind: _Kind) -> bytes:
        value, rest = word[: kind.sub], word[kind.sub :]
        if len(value) < kind.sub:
            raise _cut_short(kind)
        if any(rest) and (self._form is not Form.ANY or not any(value)):
            raise MisfitError(f"0x{word.hex()} is no {kind.to_type_str()}, or one at the wrong end of its word")
        return value

    def _word(self, word: bytes, kind: _Kind) -> Any:  # noqa: ANN401 -- the same
        if self._form is Form.ANY:
            high = word[:-_ADDRESS]
            if kind.base == "bool":
                return any(word)
            # All ones above are a negative number; zeros below are an address at the wrong end.
            if kind.base == "address" and any(high) and min(high) < 0xFF and any(word[_ADDRESS:]):  # noqa: PLR2004 - a byte
                return f"0x{word[-_ADDRESS:].hex()}"
        name = kind.to_type_str()
        try:
            return _CODEC.decode([name], word)[0]
        except DecodingError:
            raise MisfitError(f"0x{word.hex()} is no {name}") from None

    def _number(self, at: int) -> int:
        return int.from_bytes(self._bytes(at, _WORD, None))

    def _bytes(self, at: int, size: int, kind: _Kind | None) -> bytes:
        value = self._data[at : at + size]
        if len(value) < size:
            raise _cut_short(kind)
        self._budget -= size
        if self._budget < 0:
            raise MisfitError(_REPEATED)
        return value


def _cut_short(kind: _Kind | None) -> MisfitError:
    name = "an offset or a length" if kind is None else f"a value of the type {kind.to_type_str()}"
    return MisfitError(f"the data ends within {name}")


def _size(kind: _Kind) -> int:
    """Bytes of a static type."""
    if kind.is_array:
        return int(kind.arrlist[-1][0]) * _size(kind.item_type)
    return sum(map(_size, kind.components)) if hasattr(kind, "components") else _WORD
