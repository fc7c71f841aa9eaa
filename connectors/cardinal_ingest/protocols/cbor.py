"""CBOR, the strict subset of the protocols between ingest nodes.

Unsigned integers below 2**64, byte strings, booleans, definite and indefinite arrays. Everything else is refused at its
first byte: other types, chunked strings, tags, reserved information. Tests hold this module to cbor2, which reads more:
to it `9f ff` and `80` are the same. :func:`dump` and :func:`load` are for frames and records that are signed or hashed:
integers, byte strings, text and definite arrays, each value in one encoding alone.

Rules:

1. A parser is a generator over a :class:`Reader`. Where bytes are missing it yields the size of the input that it needs
   and resumes at the same place: nothing is read twice, however small the pieces are in which the input arrives.
2. The caller names the type that it expects. Integers and lengths of any width are read, their range is checked.
3. An item that cannot end within the reader's limit is refused where its length is declared, before its bytes arrive.
   In an indefinite array one byte of the limit belongs to the break.
4. Parsers raise :class:`~cardinal.errors.ViolationError` with one of the three names below, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeAlias, TypeVar

from cardinal.texts import Count
from cardinal_ingest.errors import ViolationError

DECODER_FAILURE: Final = "DecoderFailure"
"""Bytes that are no message, or none that may come here."""
EXCEEDED_SIZE_LIMIT: Final = "ExceededSizeLimit"
"""A message that is longer than its limit."""
INCOMPLETE: Final = "Incomplete"
"""A closed frame that ends inside its message."""

UNSIGNED: Final = 0
BYTE_STRING: Final = 2
ARRAY: Final = 4
FALSE: Final = b"\xf4"
TRUE: Final = b"\xf5"
LIST: Final = b"\x9f"
"""First byte of an indefinite array."""
BREAK: Final = b"\xff"
"""End of an indefinite array."""

WORD_16: Final = 2**16 - 1
WORD_32: Final = 2**32 - 1
WORD_64: Final = 2**64 - 1

_WIDTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
"""Bytes of the argument by the initial byte's additional information."""
_INDEFINITE: Final = 31
_DIRECT: Final = 24
"""Arguments below it are in the initial byte."""
_BYTE: Final = 1 << 8
_ONE_BYTE: Final = 24
"""Additional information of an argument of one byte."""
_SHORT: Final = [
    [bytes((major << 5 | n,) if n < _DIRECT else (major << 5 | _ONE_BYTE, n)) for n in range(_BYTE)]
    for major in range(8)
]
"""Heads of arguments below 256 by major type."""
_LEAST: Final = {24: _DIRECT, 25: _BYTE, 26: 1 << 16, 27: 1 << 32}
"""Least argument that needs the width."""

_T = TypeVar("_T")
Parser = Generator[int, None, _T]
"""Yields the size of the input that it waits for; returns what it parsed."""


# --- writing -----------------------------------------------------------------------------------------------


def head(major: int, argument: int) -> bytes:
    """The shortest head of an item; the caller has checked that the argument fits 64 bits."""
    if 0 <= argument < _BYTE:
        return _SHORT[major][argument]
    info = 25 if argument <= WORD_16 else 26 if argument <= WORD_32 else 27
    return (major << 5 | info).to_bytes() + argument.to_bytes(_WIDTHS[info], "big")


def byte_string(data: bytes) -> bytes:
    """A byte string with its head."""
    return head(BYTE_STRING, len(data)) + data


def byte_string_size(length: int) -> int:
    """Bytes that a byte string of ``length`` takes, head included."""
    return len(head(BYTE_STRING, length)) + length


# --- reading -----------------------------------------------------------------------------------------------


def refused(reason: str) -> ViolationError:
    """Error for bytes that are no message."""
    return ViolationError(DECODER_FAILURE, reason)


class Reader:
    """Input that arrives in pieces, and the parsers of its items."""

    __slots__ = ("_at", "_breaks", "_data", "_limit")

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0
        self._limit = 0
        self._breaks = 0
        """Open indefinite arrays: each needs a byte of the limit."""

    @property
    def size(self) -> int:
        """Bytes of the input, from the beginning of the current item."""
        return len(self._data)

    @property
    def rest(self) -> int:
        """Bytes of the input that no parser has read."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Append input."""
        self._data += data

    def begin(self, limit: int) -> None:
        """Begin an outermost item of at most ``limit`` bytes; forget the one before."""
        del self._data[: self._at]
        self._at = self._breaks = 0
        self._limit = limit

    def unsigned(self, what: str, most: int = WORD_64) -> Parser[int]:
        """An unsigned integer up to ``most``."""
        value = yield from self._argument(UNSIGNED, f"{what}: not an unsigned integer")
        if value is None:
            raise refused(f"{what}: not an unsigned integer")
        if value > most:
            raise refused(f"{what}: above {most}")
        return value

    def boolean(self, what: str) -> Parser[bool]:
        """A boolean of one byte."""
        at = yield from self._take(1)
        flag = bytes(self._data[at : at + 1])
        if flag not in (FALSE, TRUE):
            raise refused(f"{what}: not a boolean")
        return flag == TRUE

    def byte_string(self, what: str, length: int | None = None) -> Parser[bytes]:
        """A byte string of one piece; of ``length`` bytes, where that is given."""
        declared = yield from self._argument(BYTE_STRING, f"{what}: not a byte string")
        if declared is None:
            raise refused(f"{what}: a byte string in chunks")
        if length is not None and declared != length:
            raise refused(f"{what}: {Count(declared, 'byte')}, not {length}")
        at = yield from self._take(declared)
        with memoryview(self._data) as view:  # a slice of the bytearray would copy the bytes twice
            return bytes(view[at : at + declared])

    def array(self, what: str, length: int | None = None) -> Parser[int]:
        """The length of a definite array, whose items follow; it is ``length``, where that is given."""
        declared = yield from self._argument(ARRAY, f"{what}: not an array")
        if declared is None:
            raise refused(f"{what}: indefinite where definite is required")
        if length is not None and declared != length:
            raise refused(f"{what}: length {declared}, not {length}")
        return declared

    def items(self, what: str, item: Callable[[], Parser[_T]], most: int | None = None) -> Parser[list[_T]]:
        """The items of an indefinite array, ``most`` at most."""
        if (yield from self._argument(ARRAY, f"{what}: not an array")) is not None:
            raise refused(f"{what}: definite where indefinite is required")
        found: list[_T] = []
        while not (yield from self._break()):
            if len(found) == most:
                raise ViolationError(EXCEEDED_SIZE_LIMIT, f"{what}: more than {most} items")
            self._breaks += 1
            found.append((yield from item()))
            self._breaks -= 1
        return found

    def _break(self) -> Parser[bool]:
        """True past a break; the byte of anything else is left."""
        at = yield from self._take(1)
        if self._data[at] == BREAK[0]:
            return True
        self._at = at
        return False

    def _argument(self, major: int, otherwise: str) -> Parser[int | None]:
        """The argument of a head of this major type; None stands for an indefinite length."""
        at = yield from self._take(1)
        kind, info = divmod(self._data[at], 32)
        if kind != major:
            raise refused(otherwise)
        if info == _INDEFINITE:
            return None
        if info < _DIRECT:
            return info
        width = _WIDTHS.get(info)
        if width is None:
            raise refused(f"reserved additional information {info}")
        at = yield from self._take(width)
        return int.from_bytes(self._data[at : at + width], "big")

    def _take(self, count: int) -> Parser[int]:
        """Position of the next ``count`` bytes, once they have arrived."""
        at, end = self._at, self._at + count
        if end + self._breaks > self._limit:
            raise ViolationError(EXCEEDED_SIZE_LIMIT, f"a message of more than {self._limit} bytes")
        while len(self._data) < end:
            yield end
        self._at = end
        return at


# --- values ------------------------------------------------------------------------------------------------

TEXT: Final = 3
_INITIAL: Final = {
    major << 5 | info: (major, info, _WIDTHS.get(info, 0), _LEAST.get(info, 0))
    for major in (UNSIGNED, BYTE_STRING, TEXT, ARRAY)
    for info in range(max(_WIDTHS) + 1)
}
"""Major type and argument by initial byte; and the width and least value of an argument that follows the byte."""
Value: TypeAlias = "int | bytes | str | Sequence[Value]"
"""A value of frames and records: unsigned integers, byte strings, text, definite arrays of these."""


def dump(value: Value) -> bytes:
    """The one encoding of a value; the caller has checked that integers fit 64 bits."""
    parts: list[bytes] = []
    _dump((value,), parts)
    return b"".join(parts)


def _dump(values: Sequence[Value], parts: list[bytes]) -> None:
    """Append the encodings of values."""
    for value in values:
        if isinstance(value, bytes):
            parts += (head(BYTE_STRING, len(value)), value)
        elif isinstance(value, int):
            parts.append(head(UNSIGNED, value))
        elif isinstance(value, str):
            text = value.encode()
            parts += (head(TEXT, len(text)), text)
        else:
            parts.append(head(ARRAY, len(value)))
            _dump(value, parts)


def load(data: bytes, depth: int = 4) -> Value:
    """The value of closed bytes: one item in its shortest form, arrays at most ``depth`` deep, nothing after it.

    Raises:
        ViolationError: DecoderFailure.

    """
    try:
        (value,), at = _items(data, 0, 1, depth)
    except IndexError:  # no initial byte is left
        raise refused("the bytes end inside a value") from None
    if at != len(data):
        raise refused(f"{Count(len(data) - at, 'byte')} after the value")
    return value


def _items(data: bytes, at: int, count: int, depth: int) -> tuple[list[Value], int]:
    """So many values from a place on, and their end. A call for each array, none for a value: members decode a lot."""
    if depth < 0:
        raise refused("arrays are too deep")
    items: list[Value] = []
    size = len(data)
    for _ in range(count):
        found = _INITIAL.get(data[at])
        if found is None:
            raise refused(f"major type {data[at] >> 5}, additional information {data[at] & 31}")
        major, argument, width, least = found
        at += 1
        if width:
            end = at + width
            if end > size:
                raise refused("the bytes end inside a value")
            argument = data[at] if width == 1 else int.from_bytes(data[at:end], "big")
            if argument < least:
                raise refused("a head that is not the shortest")
            at = end
        if major == UNSIGNED:
            items.append(argument)
            continue
        end = at + argument  # every item of an array takes a byte
        if end > size:
            raise refused("the bytes end inside a value")
        if major == ARRAY:
            item, at = _items(data, at, argument, depth - 1)
            items.append(item)
            continue
        piece = data[at:end]
        items.append(piece if major == BYTE_STRING else _text(piece))
        at = end
    return items, at


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise refused("text is not UTF-8") from error
