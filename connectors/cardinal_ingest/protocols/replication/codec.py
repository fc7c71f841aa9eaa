"""Messages, records, markers and signed bytes of replication.

Rules:

1. Everything is a CBOR array of the strict subset: a value has one encoding, so hashes and signatures are over it.
2. ``decode(kind, encode(message)) == message``, and likewise for records and markers.
3. Decoders raise :class:`~cardinal.errors.ViolationError` (DecoderFailure), and nothing else, for any bytes.
4. A header and a state are byte strings inside their records: they are hashed as they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import call
from typing import Any, Final, TypeAlias

from cardinal.errors import EncodeError
from cardinal.texts import Count
from cardinal_ingest.protocols import cbor
from cardinal_ingest.protocols.cbor import WORD_32, Value, dump, load

from .types import (
    HASH_SIZE,
    SIGNATURE_SIZE,
    Answer,
    Block,
    Candidate,
    Checkpoint,
    Claim,
    Close,
    Epoch,
    Header,
    Item,
    Marker,
    Message,
    Observed,
    Proposal,
    Propose,
    Record,
    Ref,
    Saved,
    digest,
)

_BATCH: Final = "cardinal/batch/1"
_SAVED: Final = "cardinal/saved/1"
_CLAIM: Final = "cardinal/claim/1"
_RECORD: Final = "cardinal/record/1"
_EPOCH_RECORD, _CLAIM_RECORD, _CHECKPOINT_RECORD, _CLOSE_RECORD = range(4)
_MARKER: Final = 1
_ANSWERS: Final = (Answer.VOTE, Answer.BEHIND)
_AGREED: Final = (8, 4)
"""Bytes of number and index in the header of a promoted block's last message."""


# --- shapes: what a decoded value must look like ------------------------------------------------------------------

Shape: TypeAlias = Callable[[Value], Any]
"""Reader of a value: returns what it stands for, and raises a ViolationError (DecoderFailure) for anything else."""


def array(*parts: Shape, make: Callable[[Iterable[Any]], Any] = tuple) -> Shape:
    """An array of exactly these parts; ``make`` builds the result of theirs."""
    length = len(parts)

    def shape(value: Value) -> Any:  # noqa: ANN401 - the parts give the type
        if not isinstance(value, list):
            raise cbor.refused("not an array")
        if len(value) != length:
            raise cbor.refused(f"an array of {len(value)}, not {length}")
        return make(map(call, parts, value))

    return shape


def many(part: Shape) -> Shape:
    """An array of any number of the part."""

    def shape(value: Value) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise cbor.refused("not an array")
        return tuple(map(part, value))

    return shape


def uint(value: Value) -> int:
    """An unsigned integer."""
    if not isinstance(value, int):
        raise cbor.refused("not an unsigned integer")
    return value


def text(value: Value) -> str:
    """Text."""
    if not isinstance(value, str):
        raise cbor.refused("not text")
    return value


def octets(value: Value) -> bytes:
    """A byte string of any length."""
    if not isinstance(value, bytes):
        raise cbor.refused("not a byte string")
    return value


def hash_(value: Value) -> bytes:
    """A hash, a key or a cluster: 32 bytes."""
    if not isinstance(value, bytes) or len(value) != HASH_SIZE:
        raise cbor.refused(f"not {HASH_SIZE} bytes")
    return value


def signature(value: Value) -> bytes:
    """A signature of 64 bytes."""
    if not isinstance(value, bytes) or len(value) != SIGNATURE_SIZE:
        raise cbor.refused(f"not {SIGNATURE_SIZE} bytes")
    return value


def weight(value: Value) -> int:
    """A weight: big-endian bytes, minimal."""
    data = octets(value)
    if data[:1] == b"\0":
        raise cbor.refused("a weight that is not minimal")
    return int.from_bytes(data, "big")


def skips(value: Value) -> int:
    """Turns skipped: bounded, so that no member can exhaust them."""
    if uint(value) > WORD_32:
        raise cbor.refused(f"skips above {WORD_32}")
    return uint(value)


def exactly(constant: int | str) -> Callable[[Value], int | str]:
    """The tag of a layout."""

    def leaf(value: Value) -> int | str:
        if value != constant:
            raise cbor.refused(f"not {constant!r}")
        return constant

    return leaf


def minimal(number: int) -> bytes:
    """A weight as bytes."""
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


# --- batches ------------------------------------------------------------------------------------------------------

_ITEM: Final = array(uint, hash_, hash_, make=Item._make)
_HEADER: Final = array(exactly(_BATCH), hash_, text, uint, hash_, hash_, hash_, weight, many(_ITEM))


def seal_header(  # noqa: PLR0917 - the layout's fields in their order
    cluster: bytes,
    stream: str,
    num: int,
    prev: bytes,
    state: bytes,
    parent: bytes,
    heaviness: int,
    items: Iterable[Item],
) -> Header:
    """A header with its encoding and its hash."""
    entries = tuple(items)
    raw = dump((_BATCH, cluster, stream, num, prev, state, parent, minimal(heaviness), entries))
    return Header(cluster, stream, num, prev, state, parent, heaviness, entries, raw, digest(raw))


def read_header(raw: bytes) -> Header:
    """The header of these bytes.

    Raises:
        ViolationError: DecoderFailure.

    """
    _, cluster, stream, num, prev, state, parent, heaviness, items = _HEADER(load(raw))
    return Header(cluster, stream, num, prev, state, parent, heaviness, items, raw, digest(raw))


# --- messages -----------------------------------------------------------------------------------------------------


def _header_bytes(value: Value) -> Header:
    return read_header(octets(value))


def _answer(value: Value) -> Answer:
    if uint(value) >= len(_ANSWERS):
        raise cbor.refused(f"status {value!r}")
    return _ANSWERS[uint(value)]


KINDS: Final[dict[type[Message], int]] = {Observed: 1, Propose: 2, Proposal: 3, Candidate: 4, Saved: 5}
"""Number of each kind of message on a link."""

_BLOCK: Final = array(uint, hash_, hash_, weight, hash_, uint, make=Block._make)
_REF: Final = array(uint, hash_, make=Ref._make)
_MESSAGES: Final[dict[int, tuple[Shape, type[Message]]]] = {
    1: (array(text, many(_BLOCK)), Observed),
    2: (array(text, uint, hash_, uint, skips), Propose),
    3: (array(text, uint, uint, _answer, many(_REF)), Proposal),
    4: (array(text, _header_bytes), Candidate),
    5: (array(text, uint, hash_, signature), Saved),
}


def encode(value: Message | Record | Marker) -> bytes:
    """Payload of a message, value of a record or of a marker.

    Raises:
        EncodeError: a number that is not in 0 … 2⁶⁴-1.

    """
    try:
        return dump(_fields(value))
    except (OverflowError, ValueError) as error:
        raise EncodeError("use numbers from 0 to 2**64 - 1", field=type(value).__name__, value=value) from error


def _fields(value: Message | Record | Marker) -> Value:  # noqa: PLR0911 - one for each kind
    match value:
        case Observed(stream, blocks):
            return stream, [(b.number, b.hash, b.parent, minimal(b.weight), b.content, b.size) for b in blocks]
        case Propose(stream, num, prev, turn, skipped):
            return stream, num, prev, turn, skipped
        case Proposal(stream, num, turn, answer, refs):
            return stream, num, turn, _ANSWERS.index(answer), refs
        case Candidate(stream, header):
            return stream, header.raw
        case Saved(stream, num, batch, signed):
            return stream, num, batch, signed
        case Claim(header, claimer, skipped, certificate, signed):
            return _CLAIM_RECORD, header.raw, claimer, skipped, certificate, signed
        case Marker(cluster, stream, num, index, batch, writer):
            return _MARKER, cluster, stream, num, index, batch, writer
        case _:
            return *_unsigned_fields(value), value.id, value.signature


def decode(kind: int, payload: bytes) -> Message:
    """The message of a payload.

    Raises:
        ViolationError: DecoderFailure; also where the kind is none of :data:`KINDS`.

    """
    if kind not in _MESSAGES:
        raise cbor.refused(f"no message of kind {kind}")
    shape, build = _MESSAGES[kind]
    return build(*shape(load(payload)))


# --- records and markers ------------------------------------------------------------------------------------------

_RECORDS: Final[dict[int, tuple[Shape, type[Record]]]] = {
    _EPOCH_RECORD: (
        array(
            uint, text, uint, hash_, hash_, many(array(text, hash_)), text, uint, uint, uint, octets, text, signature
        ),
        Epoch,
    ),
    _CLAIM_RECORD: (array(uint, _header_bytes, text, skips, many(array(text, signature)), signature), Claim),
    _CHECKPOINT_RECORD: (array(uint, octets, text, signature), Checkpoint),
    _CLOSE_RECORD: (array(uint, octets, text, signature), Close),
}
_MARKER_SHAPE: Final = array(exactly(_MARKER), hash_, text, uint, uint, hash_, text)


def decode_record(data: bytes) -> Record:
    """The record of the claim log.

    Raises:
        ViolationError: DecoderFailure.

    """
    value = load(data)
    if not isinstance(value, list) or not value or uint(value[0]) not in _RECORDS:
        raise cbor.refused("no record")
    shape, build = _RECORDS[uint(value[0])]
    return build(*shape(value)[1:])


def decode_marker(data: bytes) -> Marker:
    """The marker of promotion.

    Raises:
        ViolationError: DecoderFailure.

    """
    return Marker(*_MARKER_SHAPE(load(data))[1:])


def encode_agreed(num: int, index: int) -> bytes:
    """Position of a promoted block, for its last message."""
    return num.to_bytes(_AGREED[0], "big") + index.to_bytes(_AGREED[1], "big")


def decode_agreed(data: bytes) -> tuple[int, int]:
    """Number of the batch and index in it.

    Raises:
        ViolationError: DecoderFailure; it has another length.

    """
    if len(data) != sum(_AGREED):
        raise cbor.refused(f"a position of {Count(len(data), 'byte')}")
    return int.from_bytes(data[: _AGREED[0]], "big"), int.from_bytes(data[_AGREED[0] :], "big")


# --- signed bytes -------------------------------------------------------------------------------------------------


def saved_bytes(cluster: bytes, stream: str, num: int, batch: bytes) -> bytes:
    """Bytes that a Saved signs."""
    return dump((_SAVED, cluster, stream, num, batch))


def claim_bytes(cluster: bytes, claim: Claim) -> bytes:
    """Bytes that the signature of a claim is over."""
    return dump((_CLAIM, cluster, claim.header.hash, claim.claimer, claim.skips, claim.certificate))


def record_bytes(cluster: bytes, record: Epoch | Checkpoint | Close) -> bytes:
    """Bytes that the signature of another record is over."""
    return dump((_RECORD, cluster, *_unsigned_fields(record)))


def _unsigned_fields(record: Epoch | Checkpoint | Close) -> tuple[Value, ...]:
    match record:
        case Epoch(name, epoch, previous, app, members, stream, start, window, max_blocks, state):
            return _EPOCH_RECORD, name, epoch, previous, app, members, stream, start, window, max_blocks, state
        case Checkpoint(state):
            return _CHECKPOINT_RECORD, state
        case _:
            return _CLOSE_RECORD, record.state
