"""Server side of JSON-RPC 2.0: requests and batches in, bodies out. No sockets, no chain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from cardinal.errors import NodeAnswerError

Json: TypeAlias = object
"""Anything that msgspec encodes as JSON; ``msgspec.Raw`` for encoded values."""

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
NO_MARK = -39001
"""Geth's error for ``finalized`` before a consensus client has set it."""


class Request(msgspec.Struct):
    """A call."""

    method: str
    params: list[object] = msgspec.field(default_factory=list)
    id: object = None


async def answer(body: bytes, call: Callable[[Request], Awaitable[Json]], *, most: int) -> bytes:
    """The body of the answer to a request or a batch.

    Arguments:
        body: the received bytes.
        call: answers a single request; its NodeAnswerError becomes the error object.
        most: calls in a batch; a larger one is refused with a single error in an array, as by geth.

    """
    try:
        requests = msgspec.json.decode(body, type=Request | list[Request])
    except msgspec.ValidationError:
        return error_body(None, INVALID_REQUEST, "invalid request")
    except msgspec.DecodeError:
        return error_body(None, PARSE_ERROR, "parse error")
    if isinstance(requests, Request):
        return await respond(requests, call)
    if not requests:
        return error_body(None, INVALID_REQUEST, "empty batch")
    if len(requests) > most:
        return b"[" + error_body(requests[0].id, INVALID_REQUEST, "batch too large") + b"]"
    return b"[" + b",".join([await respond(request, call) for request in requests]) + b"]"


async def respond(request: Request, call: Callable[[Request], Awaitable[Json]]) -> bytes:
    """The body for one request."""
    try:
        result = await call(request)
    except NodeAnswerError as refused:
        return error_body(request.id, refused.code or INVALID_PARAMS, str(refused))
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request.id, "result": result})


def error_body(request_id: object, code: int, message: str) -> bytes:
    """The body of an error."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}})


def text_at(params: list[object], index: int) -> str:
    """A text parameter; an error of the request where it is none."""
    value = params[index] if index < len(params) else None
    if not isinstance(value, str):
        raise NodeAnswerError(f"missing value for required argument {index}", code=INVALID_PARAMS)
    return value


def flag_at(params: list[object], index: int) -> bool:
    """An optional boolean parameter."""
    return index < len(params) and params[index] is True


def quantity(text: str) -> int:
    """A number in hexadecimal; an error of the request where it is none."""
    try:
        return int(text, 16)
    except ValueError:
        raise NodeAnswerError(f"invalid argument: {text!r} is no quantity", code=INVALID_PARAMS) from None
