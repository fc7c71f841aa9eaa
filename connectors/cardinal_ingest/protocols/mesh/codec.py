"""Frames of the mesh as bytes.

Rules:

1. A frame is a length of 4 bytes, big-endian, and one CBOR array in the strict subset (MD2): the code, the fields in
   the order of the class, the signature last.
2. ``decode(encode(frame)) == frame``, and no other bytes decode to the frame.
3. ``encode`` raises :class:`~cardinal.errors.EncodeError`; a decoder raises :class:`~cardinal.errors.ViolationError`
   (DecoderFailure, ExceededSizeLimit; Incomplete for a closed frame), and nothing else, for any bytes.
4. A signature covers the protocol, the context and all fields before it (MD3). The context is the digest of the
   cluster for a Hello, that of the session for every other frame.
5. A frame that is longer than its limit is refused at its length, before its bytes arrive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from cardinal.errors import EncodeError
from cardinal.texts import Count
from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols import cbor
from cardinal_ingest.protocols.cbor import WORD_64

from .types import (
    HASH_SIZE,
    NONCE_SIZE,
    SIGNATURE_SIZE,
    Ack,
    Begin,
    Frame,
    Heartbeat,
    Hello,
    Message,
    Reason,
    Refusal,
    Refused,
    Signed,
    Welcome,
)

HANDSHAKE_LIMIT: Final = 1_024
"""Bytes of a frame before Begin, and of every frame of an acceptor."""
OVERHEAD: Final = 4 + 1 + 1 + 9 + 9 + 9 + 2 + SIGNATURE_SIZE
"""Bytes around the payload of a Message, at most."""

_LENGTH_SIZE: Final = 4
_NODE_ID: Final = re.compile(r"[a-z0-9-]{1,32}")
_DOMAIN: Final = "cardinal/mesh/1"


# --- the layout of frames ----------------------------------------------------------------------------------


def is_node_id(value: object) -> bool:
    """True for the name of a node: 1 to 32 of ``a-z0-9-``."""
    return isinstance(value, str) and _NODE_ID.fullmatch(value) is not None


def _is_word(value: object) -> bool:
    return type(value) is int and 0 <= value <= WORD_64


def _is_number(value: object) -> bool:
    return _is_word(value) and value != 0


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes)


def _bytes_of(size: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, bytes) and len(value) == size


def _are_words(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_word, value))


def _is_refusal(value: object) -> bool:
    return isinstance(value, int) and value in list(Refusal)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()  # it goes into logs


_SIGNATURE: Final = _bytes_of(SIGNATURE_SIZE)
_NONCE: Final = _bytes_of(NONCE_SIZE)
_HASH: Final = _bytes_of(HASH_SIZE)
_PARTIES: Final = {"sender": is_node_id, "recipient": is_node_id}
_LAYOUTS: Final[dict[int, tuple[type[Frame], dict[str, Callable[[object], bool]]]]] = {
    0: (Hello, {"cluster": _HASH, **_PARTIES, "versions": _are_words, "nonce": _NONCE, "signature": _SIGNATURE}),
    1: (Welcome, {**_PARTIES, "version": _is_word, "nonce": _NONCE, "signature": _SIGNATURE}),
    2: (Begin, {"signature": _SIGNATURE}),
    3: (Refused, {"reason": _is_refusal, "text": _is_text}),
    4: (Message, {"seq": _is_number, "kind": _is_word, "payload": _is_bytes, "signature": _SIGNATURE}),
    5: (Heartbeat, {"seq": _is_number, "signature": _SIGNATURE}),
    6: (Ack, {"received": _is_number, "signature": _SIGNATURE}),
}
"""Code to class and the checks of its fields in order: the one description of both directions."""
_CODES: Final = {kind: (code, checks) for code, (kind, checks) in _LAYOUTS.items()}
_CONVERT: Final[dict[type[Frame], Callable[[list[Any]], list[Any]]]] = {
    Hello: lambda values: [*values[:3], tuple(values[3]), *values[4:]],
    Refused: lambda values: [Refusal(values[0]), values[1]],
}
"""Fields whose value differs from what CBOR has."""


# --- encoding ----------------------------------------------------------------------------------------------

_Fields: TypeAlias = list[cbor.Value]


def _fields(frame: Frame, *, signed: bool) -> _Fields:
    """Code and checked fields of a frame, the signature only where it is ``signed``."""
    code, checks = _CODES[type(frame)]
    values: _Fields = [code]
    for name, check in checks.items():
        if name == "signature" and not signed:
            break
        value = getattr(frame, name)
        if not check(value):
            raise EncodeError(f"{name} of {type(frame).__name__} has no place on the wire", field=name, value=value)
        values.append(value)
    return values


def encode(frame: Frame) -> bytes:
    """The bytes of a frame, length included. EncodeError where a field has no place on the wire."""
    body = cbor.dump(_fields(frame, signed=True))
    return len(body).to_bytes(_LENGTH_SIZE, "big") + body


def signed_bytes(frame: Signed, context: bytes) -> bytes:
    """The bytes that a frame's signature covers; the signature that it has is left out."""
    return cbor.dump([_DOMAIN, context, _fields(frame, signed=False)])


# --- decoding ----------------------------------------------------------------------------------------------


def _frame(body: bytes) -> Frame:
    values = cbor.load(body)
    if not isinstance(values, list) or not values or not isinstance(values[0], int):
        raise cbor.refused("a frame is an array that begins with a code")
    code, *found = values
    layout = _LAYOUTS.get(code)
    if layout is None:
        raise cbor.refused(f"no frame has the code {code}")
    kind, checks = layout
    if len(found) != len(checks):
        raise cbor.refused(f"{kind.__name__} of {len(found)} fields, not {len(checks)}")
    for (name, check), value in zip(checks.items(), found, strict=True):
        if not check(value):
            raise cbor.refused(f"{name} of {kind.__name__} is out of range")
    return kind(*_CONVERT.get(kind, list)(found))


class Decoder:
    """Reader of the frames of one connection.

    Args:
        limit: bytes of a frame, without its length. It may be changed between two frames.

    """

    __slots__ = ("_data", "limit")

    def __init__(self, limit: int = HANDSHAKE_LIMIT) -> None:
        self._data = bytearray()
        self.limit = limit

    @property
    def rest(self) -> int:
        """Bytes that were fed and belong to no complete frame."""
        return len(self._data)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Append bytes; yield each frame that is complete, lazily: a frame's limit is the one at its turn.

        Raises:
            ViolationError: DecoderFailure or ExceededSizeLimit; the link is over.

        """
        self._data += data
        while len(self._data) >= _LENGTH_SIZE:
            length = int.from_bytes(self._data[:_LENGTH_SIZE], "big")
            if length > self.limit:
                raise ViolationError(Reason.EXCEEDED_SIZE_LIMIT, f"a frame of {length} bytes, above {self.limit}")
            end = _LENGTH_SIZE + length
            if len(self._data) < end:
                return
            body = bytes(self._data[_LENGTH_SIZE:end])
            del self._data[:end]
            yield _frame(body)


def decode(data: bytes, *, limit: int = 2**32 - 1) -> Frame:
    """The one frame of closed bytes.

    Raises:
        ViolationError: DecoderFailure, ExceededSizeLimit or Incomplete.

    """
    decoder = Decoder(limit)
    frame = next(decoder.feed(data), None)
    if frame is None:
        raise ViolationError(Reason.INCOMPLETE, "the bytes end inside a frame")
    if decoder.rest:
        raise cbor.refused(f"{Count(decoder.rest, 'byte')} after the frame")
    return frame
