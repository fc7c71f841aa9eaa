"""Messages to bytes and back: one table each way.

Rules:

1. ``decode(*encode(message)) == message`` for every message that has a place on the wire.
2. ``encode`` raises :class:`~cardinal.errors.EncodeError` before it builds anything; ``decode`` raises
   :class:`~cardinal.errors.DecodeError` and nothing else, for any bytes.
3. Maps are written sorted by path, so that equal messages are equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cardinal.errors import DecodeError, EncodeError
from cardinal.protocols.streams.types import HASH_SIZE, NO_ID, path_bytes, path_text
from cardinal.texts import Count

from . import avro
from .keys import HASH_END, ID_END, block_key
from .messages import (
    BATCH,
    BATCH_DELETE_MSG,
    BATCH_MSG,
    PING,
    REORG,
    REORG_COMPLETE,
    SUB_BATCH_HEADER,
    SUB_BATCH_MSG,
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Heartbeat,
    Message,
    Ping,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    Update,
)

# Go's time.MarshalBinary, which a ping's value is: version, seconds since year 1, nanoseconds, zone offset in
# minutes; -1 means UTC; version 2 adds the offset's seconds (schemas/SPEC.md, section 2.7).
_YEAR_1_TO_1970: Final = 62_135_596_800
_TIME_V1: Final = 1
_TIME_V2: Final = 2
_TIME_V1_SIZE: Final = 15
_UTC: Final = -1
_NANOSECONDS: Final = 1_000_000_000
_SECONDS_MIN: Final = -(2**63) - -_YEAR_1_TO_1970
_SECONDS_MAX: Final = 2**63 - 1 - _YEAR_1_TO_1970
_MINUTES_MAX: Final = 2**15 - 1


def _need_hash(field: str, value: bytes) -> None:
    if len(value) != HASH_SIZE:
        raise EncodeError(f"{field} must be {HASH_SIZE} bytes, not {len(value)}", field=field, value=value)


def _need_range(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise EncodeError(f"{field} must be between {low} and {high}, not {value}", field=field, value=value)


def _path(field: str, path: str) -> bytes:
    try:
        return path_bytes(path)
    except UnicodeEncodeError:
        raise EncodeError(f"{field} holds a character that cannot be encoded", field=field, value=path) from None


# --- encoding ----------------------------------------------------------------------------------------------


def _encode_batch(message: Batch) -> tuple[bytes, bytes]:
    entries = [
        avro.Entry(_path("updates", path), update.value, update.count, update.delete, update.sub_batch)
        for path, update in message.updates.items()
    ]
    return encode_batch(message.hash, message.number, message.weight, message.parent, entries)


def encode_batch(
    block_hash: bytes, number: int, weight: int, parent: bytes, entries: list[avro.Entry]
) -> tuple[bytes, bytes]:
    """The key and value of a Batch, made of its parts, entries in any order. EncodeError as by :func:`encode`."""
    _need_hash("hash", block_hash)
    _need_hash("parent", parent)
    _need_range("number", number, 0, avro.LONG_MAX)
    if weight < 0 or weight.bit_length() > 8 * avro.WEIGHT_SIZE_MAX:
        raise EncodeError(
            f"weight must be 0 or more and have at most {avro.WEIGHT_SIZE_MAX} bytes", field="weight", value=weight
        )
    for entry in entries:
        if entry.sub_batch is not NO_ID:
            _need_hash("sub_batch", entry.sub_batch)
        if not 0 <= entry.count <= avro.INT_MAX:
            _need_range("count", entry.count, -avro.INT_MAX - 1, avro.INT_MAX)
    return block_key(BATCH, block_hash), avro.write_batch(number, weight, parent, sorted(entries))


def _encode_header(message: SubBatchHeader) -> tuple[bytes, bytes]:
    _need_hash("hash", message.hash)
    _need_hash("batch_id", message.batch_id)
    _need_range("count", message.count, 0, avro.INT_MAX)
    return block_key(SUB_BATCH_HEADER, message.hash, message.batch_id), avro.write_int(message.count)


def encode_content(deletes: tuple[str, ...] | frozenset[str], updates: Mapping[str, bytes]) -> bytes:
    """The value of a SubBatchMsg: deletes of a tuple in its order, of a set sorted; updates sorted by path."""
    removed = [_path("deletes", path) for path in deletes]
    if not isinstance(deletes, tuple):
        removed.sort()
    return avro.write_content(removed, sorted((_path("updates", path), value) for path, value in updates.items()))


def _encode_sub_batch_msg(message: SubBatchMsg) -> tuple[bytes, bytes]:
    _need_hash("hash", message.hash)
    _need_hash("batch_id", message.batch_id)
    _need_range("index", message.index, 0, avro.INT_MAX)
    key = block_key(SUB_BATCH_MSG, message.hash, message.batch_id + avro.write_int(message.index))
    return key, encode_content(message.deletes, message.updates)


def _encode_batch_msg(message: BatchMsg | BatchDeleteMsg) -> tuple[bytes, bytes]:
    _need_hash("hash", message.hash)
    kind, value = (BATCH_MSG, message.value) if isinstance(message, BatchMsg) else (BATCH_DELETE_MSG, b"")
    return block_key(kind, message.hash, _path("path", message.path)), value


def _encode_reorg(message: Reorg | ReorgComplete) -> tuple[bytes, bytes]:
    _need_hash("hash", message.hash)
    _need_range("number", message.number, 0, avro.INT_MAX)
    kind = REORG if isinstance(message, Reorg) else REORG_COMPLETE
    return block_key(kind, message.hash), avro.write_int(message.number)


def _encode_ping(message: Ping) -> tuple[bytes, bytes]:
    _need_hash("producer_id", message.producer_id)
    _need_range("unix_seconds", message.unix_seconds, _SECONDS_MIN, _SECONDS_MAX)
    _need_range("nanoseconds", message.nanoseconds, 0, _NANOSECONDS - 1)
    version, minutes, seconds = _TIME_V1, _UTC, 0
    if message.utc_offset_seconds is not None:
        # Go divides towards zero and keeps the remainder's sign
        sign = -1 if message.utc_offset_seconds < 0 else 1
        minutes, seconds = (sign * part for part in divmod(abs(message.utc_offset_seconds), 60))
        version = _TIME_V2 if seconds else _TIME_V1
        if minutes == _UTC or abs(minutes) > _MINUTES_MAX:
            raise EncodeError(
                f"an offset of {message.utc_offset_seconds} seconds from UTC cannot be written",
                field="utc_offset_seconds",
                value=message.utc_offset_seconds,
            )
    value = (
        bytes((version,))
        + (message.unix_seconds + _YEAR_1_TO_1970).to_bytes(8, "big", signed=True)
        + message.nanoseconds.to_bytes(4, "big")
        + minutes.to_bytes(2, "big", signed=True)
    )
    if version == _TIME_V2:
        value += seconds.to_bytes(1, "big", signed=True)
    return bytes((PING,)) + message.producer_id, value


_ENCODERS: Final[dict[type, Callable[[Any], tuple[bytes, bytes]]]] = {
    Batch: _encode_batch,
    SubBatchHeader: _encode_header,
    SubBatchMsg: _encode_sub_batch_msg,
    BatchMsg: _encode_batch_msg,
    BatchDeleteMsg: _encode_batch_msg,
    Reorg: _encode_reorg,
    ReorgComplete: _encode_reorg,
    Ping: _encode_ping,
    Heartbeat: lambda _heartbeat: (b"", b""),
}


def encode(message: Message) -> tuple[bytes, bytes]:
    """The key and value of a message. EncodeError where a field has no place on the wire."""
    return _ENCODERS[type(message)](message)


# --- decoding ----------------------------------------------------------------------------------------------


def _decode_batch(key: bytes, value: bytes) -> Batch:
    if len(key) != HASH_END:
        raise DecodeError("a Batch's key is its type and a hash, nothing more")
    fields = avro.read_batch(value)
    updates = {
        path_text(path): Update(entry.value, entry.count, entry.delete, entry.sub_batch)
        for path, entry in fields.entries.items()
    }
    return Batch(key[1:], fields.number, fields.weight, fields.parent, updates)


def sub_batch_count(key: bytes, value: bytes) -> int:
    """The number of parts that a SubBatchHeader announces. DecodeError where it is malformed."""
    if len(key) != ID_END:
        raise DecodeError("a SubBatchHeader's key is its type, a hash and an id")
    count = avro.read_int(value)
    if count < 0:
        raise DecodeError(f"the count {count} of a sub batch is negative")
    return count


def _decode_header(key: bytes, value: bytes) -> SubBatchHeader:
    return SubBatchHeader(key[1:HASH_END], key[HASH_END:], sub_batch_count(key, value))


def sub_batch_index(key: bytes) -> int:
    """The index at the end of a SubBatchMsg's key. DecodeError where it is not exactly one Avro int."""
    index, size = avro.read_int_and_size(key[ID_END:])
    if index < 0 or ID_END + size != len(key):
        raise DecodeError("a SubBatchMsg's key ends in its index, an Avro int of 0 or more")
    return index


def _decode_sub_batch_msg(key: bytes, value: bytes) -> SubBatchMsg:
    index = sub_batch_index(key)
    deletes, updates = avro.read_content(value)
    return SubBatchMsg(
        key[1:HASH_END],
        key[HASH_END:ID_END],
        index,
        tuple(map(path_text, deletes)),
        {path_text(path): data for path, data in updates.items()},
    )


def _decode_reorg(key: bytes, value: bytes) -> Reorg | ReorgComplete:
    number = avro.read_int(value)
    if len(key) != HASH_END or number < 0:
        raise DecodeError("a Reorg message is a hash and a number of 0 or more")
    return Reorg(key[1:], number) if key[0] == REORG else ReorgComplete(key[1:], number)


def _decode_ping(key: bytes, value: bytes) -> Ping:
    if len(key) != HASH_END:
        raise DecodeError("a ping's key is its type and a producer's id")
    version = value[0] if value else 0
    if version not in (_TIME_V1, _TIME_V2) or len(value) != _TIME_V1_SIZE + (version == _TIME_V2):
        raise DecodeError("a ping's value is not a time")
    seconds = int.from_bytes(value[1:9], "big", signed=True) - _YEAR_1_TO_1970
    nanoseconds = int.from_bytes(value[9:13], "big")
    minutes = int.from_bytes(value[13:15], "big", signed=True)
    if nanoseconds >= _NANOSECONDS:
        raise DecodeError("a ping's nanoseconds are a second or more")
    offset = None if minutes == _UTC else minutes * 60 + int.from_bytes(value[15:], "big", signed=True)
    return Ping(key[1:], seconds, nanoseconds, offset)


_DECODERS: Final[dict[int, Callable[[bytes, bytes], Message]]] = {
    BATCH: _decode_batch,
    SUB_BATCH_HEADER: _decode_header,
    SUB_BATCH_MSG: _decode_sub_batch_msg,
    BATCH_MSG: lambda key, value: BatchMsg(key[1:HASH_END], path_text(key[HASH_END:]), value),
    BATCH_DELETE_MSG: lambda key, _value: BatchDeleteMsg(key[1:HASH_END], path_text(key[HASH_END:])),
    REORG: _decode_reorg,
    REORG_COMPLETE: _decode_reorg,
    PING: _decode_ping,
}


def decode(key: bytes, value: bytes) -> Message:
    """Decode a key and value to their message. DecodeError, with the reason, where they are none."""
    if not key:
        return Heartbeat()
    decoder = _DECODERS.get(key[0])
    if decoder is None:
        raise DecodeError(f"type {key[0]} is unknown", key=key)
    if len(key) < HASH_END:
        raise DecodeError(f"a key of {Count(len(key), 'byte')} is too short for a hash", key=key)
    try:
        return decoder(key, value)
    except DecodeError as error:
        raise DecodeError(error.reason, key=key) from None
