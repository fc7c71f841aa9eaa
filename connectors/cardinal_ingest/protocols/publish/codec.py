"""Messages to bytes and back, with the protobuf runtime and the generated module of `schemas/publish.proto` (P2).

Rules:

1. ``decode_request(encode(message)) == message`` for every request, ``decode_response`` likewise; equal messages are
   equal bytes.
2. ``encode`` raises :class:`~cardinal.errors.EncodeError`; the decoders raise
   :class:`~cardinal.errors.RemoteProtocolError` and nothing else, for any bytes.
3. A message of no known kind decodes to None: a node refuses it, a publisher ignores it.
"""

from __future__ import annotations

from typing import Any, TypeVar

from cardinal.errors import EncodeError, MissingExtraError, RemoteProtocolError
from cardinal.texts import Count

from .types import (
    NONE,
    Acknowledgement,
    BehindPublisher,
    BlockEnd,
    BlockItemSet,
    EndOfStream,
    EndStream,
    Request,
    ResendBlock,
    Response,
    SkipBlock,
)

try:
    from google.protobuf.message import DecodeError, Message

    from . import publish_pb2 as pb
except ImportError as absent:
    raise MissingExtraError("publishing to ingest nodes", "ingest") from absent

_ENUM_MIN, _ENUM_MAX = -(2**31), 2**31 - 1
_Kind = TypeVar("_Kind", pb.PublishStreamRequest, pb.PublishStreamResponse)


def encode(message: Request | Response) -> bytes:
    """Return the bytes of a message.

    Raises:
        EncodeError: a number is not 0 … 2⁶⁴-1, a code is not 32 bits, or an item is not bytes.

    """
    wire: Message
    match message:
        case BlockItemSet(items):
            if not all(isinstance(item, bytes) for item in items):
                raise EncodeError("block_items must hold bytes alone", field="block_items", value=items)
            wire = pb.PublishStreamRequest(block_items=pb.BlockItemSet(block_items=items))
        case BlockEnd(number):
            wire = pb.PublishStreamRequest(end_of_block=pb.BlockEnd(block_number=_number(number)))
        case EndStream(code, earliest, latest):
            end = pb.EndStream(
                earliest_block_number=_number(earliest, "earliest_block_number"),
                latest_block_number=_number(latest, "latest_block_number"),
            )
            end.end_code = _code("end_code", code)
            wire = pb.PublishStreamRequest(end_stream=end)
        case Acknowledgement(number):
            wire = pb.PublishStreamResponse(acknowledgement=_block(number))
        case SkipBlock(number):
            wire = pb.PublishStreamResponse(skip_block=_block(number))
        case ResendBlock(number):
            wire = pb.PublishStreamResponse(resend_block=_block(number))
        case BehindPublisher(number):
            wire = pb.PublishStreamResponse(node_behind_publisher=_block(number))
        case _:
            ended = pb.EndOfStream(
                block_number=_number(message.block_number),
                proximate_block_number=_number(message.proximate_block_number, "proximate_block_number"),
            )
            ended.status = _code("status", message.status)
            wire = pb.PublishStreamResponse(end_stream=ended)
    data: bytes = wire.SerializeToString()
    return data


def decode_request(data: bytes) -> Request | None:
    """Return the request in these bytes, None for one of no kind.

    Raises:
        RemoteProtocolError: the bytes are no message.

    """
    request = _read(pb.PublishStreamRequest(), data)
    match request.WhichOneof("request"):
        case "block_items":
            return BlockItemSet(tuple(request.block_items.block_items))
        case "end_of_block":
            return BlockEnd(request.end_of_block.block_number)
        case "end_stream":
            end = request.end_stream
            return EndStream(int(end.end_code), end.earliest_block_number, end.latest_block_number)
        case _:
            return None


def decode_response(data: bytes) -> Response | None:
    """Return the response in these bytes, None for one of no kind.

    Raises:
        RemoteProtocolError: the bytes are no message.

    """
    response = _read(pb.PublishStreamResponse(), data)
    match response.WhichOneof("response"):
        case "acknowledgement":
            return Acknowledgement(response.acknowledgement.block_number)
        case "skip_block":
            return SkipBlock(response.skip_block.block_number)
        case "resend_block":
            return ResendBlock(response.resend_block.block_number)
        case "node_behind_publisher":
            return BehindPublisher(response.node_behind_publisher.block_number)
        case "end_stream":
            ended = response.end_stream
            return EndOfStream(int(ended.status), ended.block_number, ended.proximate_block_number)
        case _:
            return None


def _read(message: _Kind, data: bytes) -> _Kind:
    try:
        message.ParseFromString(data)
    except DecodeError as broken:
        raise RemoteProtocolError(f"{Count(len(data), 'byte is', 'bytes are')} no publish message: {broken}") from None
    return message


def _block(number: int) -> pb.BlockNumber:
    return pb.BlockNumber(block_number=_number(number))


def _number(value: int, field: str = "block_number") -> int:
    if not 0 <= value <= NONE:
        raise EncodeError(f"{field} must be 0 to 2^64-1, not {value}", field=field, value=value)
    return value


def _code(field: str, value: int) -> Any:  # noqa: ANN401 - the enumerations are open: a code that a peer invented too
    if not _ENUM_MIN <= value <= _ENUM_MAX:
        raise EncodeError(f"{field} must be 32 bits, not {value}", field=field, value=value)
    return value
