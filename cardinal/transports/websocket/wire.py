"""The wire protocol between ``cardinal serve`` and its clients, version 1: what a frame looks like.

One websocket message is one frame: binary, a type byte, then its fields. Numbers are big-endian and unsigned unless it
says otherwise; a text is its length in two bytes, then UTF-8; a list is its count in four bytes, then its items. The
version is the websocket subprotocol, ``cardinal.streams.v1``: who does not know it does not answer.

Client to server, each request with an id that is higher than the one before::

    01 OPEN     id:4, topics: list of text               which topics this connection is about; answered with MARKS
    02 TOPICS   id:4                                     answered with NAMES
    03 MARKS    id:4                                     answered with MARKS
    04 TIMES    id:4, milliseconds since 1970: signed 8  answered with OFFSETS
    05 READ     id:4, list of (topic: text, partition:4, offset: signed 8)
                from now on exactly these partitions, each from this offset; -1: from where it stood. Answered with
                READING
    06 CREDIT   bytes:4                                  so much more may be sent

Server to client::

    81 NAMES    id:4, list of text
    82 MARKS    id:4, list of (topic: text, partition:4, lowest offset:8, end:8)
    83 OFFSETS  id:4, list of (topic: text, partition:4, offset:8)
    84 READING  id:4
    85 FAILED   id:4, reason:1, topic: text, list of (topic: text, partition:4, position:8, limit:8)
    86 RECORDS  id:4, chunks (see :mod:`.chunks`)

Rules for servers:

1. RECORDS carry the id of the READ that they follow. Of one partition, each chunk begins where the one before ended.
2. A RECORDS frame is sent only while credit is left; all of its bytes are taken from it, so it can fall below zero by
   less than one frame. Nothing is kept for a client that gives none.
3. A READ with a lower id than one before is passed over. One that cannot be done is answered with FAILED, and changes
   nothing. FAILED with id 0 is about the reading itself, which has ended; the connection goes on.
4. Close codes are in :class:`.frames.CloseCode`. Positions are the client's: nothing is kept beyond the connection.

Rules for clients:

1. OPEN comes first, except for TOPICS. It may be sent again after FAILED.
2. After RECORDS have been dealt with, their bytes are given as CREDIT.
3. Of RECORDS that were under way when a READ named an offset for their partition, that partition's chunks are passed
   over: their id is lower.

Whatever does not fit this is a :class:`~cardinal.errors.RemoteProtocolError` for who receives it. Pure: no I/O.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cardinal.errors import RemoteProtocolError

from . import frames
from .fields import COUNT, LENGTH, Cursor, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition

_U32_MAX: Final = (1 << 32) - 1
_HEAD: Final = struct.Struct(">BI")
_PLACE: Final = struct.Struct(">Iq")
_MARKS: Final = struct.Struct(">IQQ")
_TIME: Final = struct.Struct(">q")


# --- writing -------------------------------------------------------------------------------------------------


def encode_request(frame: frames.Request) -> bytes:
    """The bytes of a client's frame."""
    match frame:
        case frames.Open(number, topics):
            return _HEAD.pack(1, number) + _many(topics, text)
        case frames.Topics(number):
            return _HEAD.pack(2, number)
        case frames.Marks(number):
            return _HEAD.pack(3, number)
        case frames.Times(number, timestamp_ms):
            return _HEAD.pack(4, number) + _TIME.pack(timestamp_ms)
        case frames.Read(number, positions):
            return _HEAD.pack(5, number) + _places(positions)
        case frames.Credit(size):
            return _HEAD.pack(6, min(size, _U32_MAX))


def encode_answer(frame: frames.Answer) -> bytes:
    """The bytes of a server's frame, but for RECORDS."""
    match frame:
        case frames.Names(number, topics):
            return _HEAD.pack(0x81, number) + _many(topics, text)
        case frames.MarkList(number, marks):
            return _HEAD.pack(0x82, number) + _marks(marks)
        case frames.OffsetList(number, offsets):
            return _HEAD.pack(0x83, number) + _places(offsets)
        case frames.Reading(number):
            return _HEAD.pack(0x84, number)
        case frames.Failed(number, reason, topic, places):
            return _HEAD.pack(0x85, number) + bytes((reason.value,)) + text(topic) + _marks(places)


def encode_records(number: int, chunks: Sequence[bytes]) -> bytes:
    """The bytes of a RECORDS frame."""
    return b"".join((_HEAD.pack(0x86, number), *chunks))


def _many(items: Sequence[str], encode: Callable[[str], bytes]) -> bytes:
    return COUNT.pack(len(items)) + b"".join(map(encode, items))


def _places(places: Mapping[Partition, int]) -> bytes:
    items = [text(topic) + _PLACE.pack(number, offset) for (topic, number), offset in places.items()]
    return COUNT.pack(len(items)) + b"".join(items)


def _marks(marks: Mapping[Partition, tuple[int, int]]) -> bytes:
    items = [text(topic) + _MARKS.pack(number, low, high) for (topic, number), (low, high) in marks.items()]
    return COUNT.pack(len(items)) + b"".join(items)


# --- reading -------------------------------------------------------------------------------------------------


def decode_request(data: bytes | str) -> frames.Request:
    """A client's frame. RemoteProtocolError: it is none."""
    kind, number, cursor = _head(data)
    frame: frames.Request
    match kind:
        case 1:
            frame = frames.Open(number, _texts(cursor))
        case 2:
            frame = frames.Topics(number)
        case 3:
            frame = frames.Marks(number)
        case 4:
            frame = frames.Times(number, cursor.unpack(_TIME)[0])
        case 5:
            frame = frames.Read(number, _read_places(cursor, frames.GO_ON))
        case 6:
            frame = frames.Credit(number)
        case _:
            raise RemoteProtocolError(f"no client's frame of a websocket stream begins with {kind:#04x}")
    cursor.end()
    return frame


def decode_answer(data: bytes | str) -> frames.ServerFrame:
    """A server's frame. RemoteProtocolError: it is none."""
    kind, number, cursor = _head(data)
    frame: frames.ServerFrame
    match kind:
        case 0x81:
            frame = frames.Names(number, _texts(cursor))
        case 0x82:
            frame = frames.MarkList(number, _read_marks(cursor))
        case 0x83:
            frame = frames.OffsetList(number, _read_places(cursor, 0))
        case 0x84:
            frame = frames.Reading(number)
        case 0x85:
            frame = frames.Failed(number, _reason(cursor.take(1)[0]), cursor.text(), _read_marks(cursor))
        case 0x86:
            return frames.Records(number, cursor.data[cursor.at :])
        case _:
            raise RemoteProtocolError(f"no server's frame of a websocket stream begins with {kind:#04x}")
    cursor.end()
    return frame


def _head(data: bytes | str) -> tuple[int, int, Cursor]:
    if isinstance(data, str):
        raise RemoteProtocolError("a frame of a websocket stream is text, and all are binary")
    cursor = Cursor(data)
    kind, number = cursor.unpack(_HEAD)
    return kind, number, cursor


def _reason(value: int) -> frames.Reason:
    try:
        return frames.Reason(value)
    except ValueError:
        raise RemoteProtocolError(f"a frame of a websocket stream gives the reason {value}, which is none") from None


def _texts(cursor: Cursor) -> tuple[str, ...]:
    return tuple(cursor.text() for _ in range(cursor.count(LENGTH.size)))


def _read_places(cursor: Cursor, lowest: int) -> dict[Partition, int]:
    places: dict[Partition, int] = {}
    for _ in range(cursor.count(LENGTH.size + _PLACE.size)):
        topic = cursor.text()
        number, offset = cursor.unpack(_PLACE)
        if offset < lowest:
            raise RemoteProtocolError(f"a frame of a websocket stream names the offset {offset}")
        places[topic, number] = offset
    return places


def _read_marks(cursor: Cursor) -> dict[Partition, tuple[int, int]]:
    marks: dict[Partition, tuple[int, int]] = {}
    for _ in range(cursor.count(LENGTH.size + _MARKS.size)):
        topic = cursor.text()
        number, low, high = cursor.unpack(_MARKS)
        marks[topic, number] = (low, high)
    return marks
