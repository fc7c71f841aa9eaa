"""Messages of object diffusion as bytes.

Rules:

1. A message is a definite array; its list is an indefinite one, its ids are definite (O1).
2. ``decode(state, encode(message)) == message`` for every message that may be sent in the state.
3. ``encode`` raises :class:`~cardinal.errors.EncodeError`; a decoder raises
   :class:`~cardinal.errors.ViolationError` (DecoderFailure, ExceededSizeLimit; Incomplete for a closed frame), and
   nothing else, for any bytes.
4. Dispatch is by state, length and tag: a message that may not come in a state is no message there (O9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from cardinal.errors import EncodeError
from cardinal.texts import Count
from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols import cbor
from cardinal_ingest.protocols.cbor import (
    ARRAY,
    BREAK,
    BYTE_STRING,
    LIST,
    UNSIGNED,
    WORD_16,
    WORD_32,
    WORD_64,
    Parser,
    Reader,
)

from .types import (
    HASH_SIZE,
    Announcement,
    Message,
    MsgDone,
    MsgInit,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    State,
)

_INIT: Final = 0
_REQUEST_IDS: Final = 1
_REPLY_IDS: Final = 2
_REQUEST_OBJECTS: Final = 3
_REPLY_OBJECTS: Final = 4
_DONE: Final = 5

_LIST_MESSAGE_SIZE: Final = 4
"""Bytes of a message with an empty list."""

LIMITS: Final = {
    State.INIT: 5_760,
    State.IDLE: 5_760,
    State.BLOCKING: 2_500_000,
    State.NON_BLOCKING: 2_500_000,
    State.OBJECTS: 2_500_000,
    State.DONE: 5_760,
}
"""Bytes of one message in a state, CBOR included (O7); a client computes that of OBJECTS, see :func:`objects_size`."""


def objects_size(sizes: Iterable[int]) -> int:
    """Bytes of a MsgReplyObjects whose objects have these sizes."""
    return _LIST_MESSAGE_SIZE + sum(map(cbor.byte_string_size, sizes))


# --- encoding ----------------------------------------------------------------------------------------------


def _message(length: int, tag: int) -> bytes:
    return cbor.head(ARRAY, length) + cbor.head(UNSIGNED, tag)


def _unsigned(field: str, value: int, most: int) -> bytes:
    if not 0 <= value <= most:
        raise EncodeError(f"{field} must be between 0 and {most}, not {value}", field=field, value=value)
    return cbor.head(UNSIGNED, value)


def _id_fields(one: ObjectId) -> bytes:
    if len(one.hash) != HASH_SIZE:
        raise EncodeError(f"hash must be {HASH_SIZE} bytes, not {len(one.hash)}", field="hash", value=one.hash)
    return _unsigned("number", one.number, WORD_64) + cbor.byte_string(one.hash)


def encode(message: Message) -> bytes:
    """The bytes of a message. EncodeError where a field has no place on the wire."""
    match message:
        case MsgInit(lowest):
            fields = _unsigned("lowest", lowest, WORD_64) if lowest else b""
            parts = [_message(2 if lowest else 1, _INIT), fields]
        case MsgRequestObjectIds(blocking, ack, req):
            flag = cbor.TRUE if blocking else cbor.FALSE
            parts = [_message(4, _REQUEST_IDS), flag, _unsigned("ack", ack, WORD_16), _unsigned("req", req, WORD_16)]
        case MsgReplyObjectIds(announcements):
            head = cbor.head(ARRAY, 3)
            items = (head + _id_fields(one) + _unsigned("size", size, WORD_32) for one, size in announcements)
            parts = [_message(2, _REPLY_IDS), LIST, *items, BREAK]
        case MsgRequestObjects(ids):
            head = cbor.head(ARRAY, 2)
            parts = [_message(2, _REQUEST_OBJECTS), LIST, *(head + _id_fields(one) for one in ids), BREAK]
        case MsgReplyObjects(objects):
            parts = list(encode_objects(objects))
        case _:
            parts = [_message(1, _DONE)]
    return b"".join(parts)


def encode_objects(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a MsgReplyObjects in pieces; a body is taken when its piece is due, and not retained."""
    yield _message(2, _REPLY_OBJECTS) + LIST
    for body in bodies:
        yield cbor.head(BYTE_STRING, len(body))
        yield body
    yield BREAK


# --- decoding ----------------------------------------------------------------------------------------------


def _object_id(reader: Reader) -> Parser[ObjectId]:
    number = yield from reader.unsigned("number")
    return ObjectId(number, (yield from reader.byte_string("hash", HASH_SIZE)))


def _requested_id(reader: Reader) -> Parser[ObjectId]:
    yield from reader.array("id", 2)
    return (yield from _object_id(reader))


def _announcement(reader: Reader) -> Parser[Announcement]:
    yield from reader.array("announcement", 3)
    one = yield from _object_id(reader)
    return Announcement(one, (yield from reader.unsigned("size", WORD_32)))


# The parsers of what follows a message's tag. ``items`` bounds the objects of a reply.


def _init(_reader: Reader, _items: int | None) -> Parser[Message]:
    yield from ()
    return MsgInit()


def _init_from(reader: Reader, _items: int | None) -> Parser[Message]:
    return MsgInit((yield from reader.unsigned("from")))


def _request_ids(reader: Reader, _items: int | None) -> Parser[Message]:
    blocking = yield from reader.boolean("blocking")
    ack = yield from reader.unsigned("ack", WORD_16)
    return MsgRequestObjectIds(blocking, ack, (yield from reader.unsigned("req", WORD_16)))


def _reply_ids(reader: Reader, _items: int | None) -> Parser[Message]:
    return MsgReplyObjectIds(tuple((yield from reader.items("list", partial(_announcement, reader)))))


def _some_ids(reader: Reader, items: int | None) -> Parser[Message]:
    message = yield from _reply_ids(reader, items)
    if message == MsgReplyObjectIds(()):
        raise cbor.refused("empty list in a blocking reply")
    return message


def _request_objects(reader: Reader, _items: int | None) -> Parser[Message]:
    return MsgRequestObjects(tuple((yield from reader.items("list", partial(_requested_id, reader)))))


def _reply_objects(reader: Reader, items: int | None) -> Parser[Message]:
    return MsgReplyObjects(tuple((yield from reader.items("list", partial(reader.byte_string, "object"), items))))


def _done(_reader: Reader, _items: int | None) -> Parser[Message]:
    yield from ()
    return MsgDone()


_PARSERS: Final[dict[tuple[State, int, int], Callable[[Reader, int | None], Parser[Message]]]] = {
    (State.INIT, 1, _INIT): _init,
    (State.INIT, 2, _INIT): _init_from,
    (State.IDLE, 4, _REQUEST_IDS): _request_ids,
    (State.IDLE, 2, _REQUEST_OBJECTS): _request_objects,
    (State.IDLE, 1, _DONE): _done,
    (State.BLOCKING, 2, _REPLY_IDS): _some_ids,
    (State.NON_BLOCKING, 2, _REPLY_IDS): _reply_ids,
    (State.OBJECTS, 2, _REPLY_OBJECTS): _reply_objects,
}
"""State, length and tag to the parser of the fields. Nothing may come in DONE."""
_LENGTHS: Final = {length for _, length, _ in _PARSERS}


def _parser(reader: Reader, state: State, items: int | None) -> Parser[Message]:
    length = yield from reader.array("message")
    if length not in _LENGTHS:
        raise cbor.refused(f"message: no message has length {length}")
    tag = yield from reader.unsigned("tag")
    parser = _PARSERS.get((state, length, tag))
    if parser is None:
        raise cbor.refused(f"no message of length {length} and tag {tag} in {state.value}")
    return (yield from parser(reader, items))


class Decoder:
    """Reader of the messages of one link.

    Bytes after a message belong to the next one; :meth:`expect` begins it.

    Args:
        state: of the link.
        limit: bytes of the message; None is the state's limit.
        items: objects of the message at most.

    """

    __slots__ = ("_needs", "_parser", "_reader")

    def __init__(self, state: State, *, limit: int | None = None, items: int | None = None) -> None:
        self._reader = Reader()
        self.expect(state, limit=limit, items=items)

    @property
    def rest(self) -> int:
        """Bytes that were fed and not read."""
        return self._reader.rest

    def expect(self, state: State, *, limit: int | None = None, items: int | None = None) -> None:
        """Begin the next message."""
        self._reader.begin(LIMITS[state] if limit is None else limit)
        self._parser = _parser(self._reader, state, items)
        self._needs = 0

    def feed(self, data: bytes = b"") -> Message | None:
        """Append bytes; return the message when it is complete.

        Raises:
            ViolationError: DecoderFailure or ExceededSizeLimit; the link is over.

        """
        self._reader.feed(data)
        if self._reader.size < self._needs:
            return None
        try:
            self._needs = next(self._parser)
        except StopIteration as end:
            message: Message | None = end.value
            return message
        return None


def decode(state: State, frame: bytes, *, limit: int | None = None) -> Message:
    """The one message of a closed frame.

    Raises:
        ViolationError: DecoderFailure, ExceededSizeLimit or Incomplete.

    """
    decoder = Decoder(state, limit=limit)
    message = decoder.feed(frame)
    if message is None:
        raise ViolationError(cbor.INCOMPLETE, "the frame ends inside its message")
    if decoder.rest:
        raise cbor.refused(f"{Count(decoder.rest, 'byte')} after the message")
    return message
