"""Outcomes of calls: a node's responses, paired with the calls of a request.

Pure: no connection, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from .faults import (
    PASSING,
    CallRefusedError,
    FailedError,
    Fault,
    MalformedResultError,
    NoNodeError,
    Refusal,
    TooLargeError,
    fault_of,
    is_hiccup,
    pause_in,
)
from .transport import Replies, Reply

NULL = b"null"
"""Result for something that the node does not have."""

_Value = TypeVar("_Value")


class RpcCall(NamedTuple):
    """Method and parameters. A refusal of an ``optional`` call is its outcome at once, unless it is about the rate."""

    method: str
    params: tuple[object, ...] = ()
    optional: bool = False


Outcome: TypeAlias = msgspec.Raw | CallRefusedError
"""Outcome of a call."""


_OMITTED: Final = Reply()


def check_size(replies: Replies, address: str, quote: Callable[[str], str]) -> None:
    """Raise TooLargeError if the responses to a batch refuse it as a whole, or cut it.

    Arguments:
        replies: the responses.
        address: the node's address for messages.
        quote: returns a node's text for a message.

    """
    for reply in replies:
        refusal = reply.error
        if refusal is None:
            continue
        whole, fault = len(replies) == 1, fault_of(refusal)
        if fault is Fault.SIZE or (
            whole and fault is not Fault.RATE and not (fault is Fault.REQUEST and is_hiccup(refusal))
        ):
            verb = "refuses" if whole else "cuts"
            message = f"the node at {address} {verb} a batch: {quote(refusal.message)}"
            raise TooLargeError(message, code=refusal.code)


def paired(
    calls: Sequence[tuple[RpcCall, int]], replies: Replies, address: str, quote: Callable[[str], str]
) -> list[Outcome]:
    """Outcomes of the calls of a request, each with its id; NoNodeError if there is none of a single call.

    Arguments:
        calls: the calls and their ids.
        replies: the responses, in any order, perhaps not all.
        address: the node's address for messages.
        quote: returns a node's text for a message.

    """
    by_id = {reply.id: reply for reply in replies}
    if len(replies) == 1 and (len(calls) == 1 or replies[0].error is not None):
        # An error may lack the id of a request, or be for all of them.
        by_id.update((one, replies[0]) for _, one in calls)
    given = [by_id.get(one, _OMITTED) for _, one in calls]
    if len(calls) == 1 and not (len(given[0].result) or given[0].error):
        raise NoNodeError(f"{address} answers without a result or an error; check that the URL is a node's")
    return [
        reply.result if reply.error is None and len(reply.result) else _refused(call, reply.error, address, quote)
        for (call, _), reply in zip(calls, given, strict=True)
    ]


def _refused(call: RpcCall, refusal: Refusal | None, address: str, quote: Callable[[str], str]) -> CallRefusedError:
    """The error of a call; without a refusal its response is missing."""
    if refusal is None:
        message = f"the node at {address} omitted the response to {call.method} in a batch"
        return CallRefusedError(message, code=0, fault=Fault.REQUEST, address=address)
    message = f"the node at {address} answers {call.method} with error {refusal.code}: {quote(refusal.message)}"
    fault = fault_of(refusal, call.params)
    seconds = refusal.seconds or (pause_in(refusal) if fault in PASSING else None)
    return CallRefusedError(message, code=refusal.code, fault=fault, address=address, seconds=seconds)


def result_of(outcome: Outcome) -> msgspec.Raw:
    """The result; raises the node's error, as FailedError where the node accepted this method before."""
    if not isinstance(outcome, CallRefusedError):
        return outcome
    if outcome.retriable:
        raise FailedError(f"{outcome}; it accepted it before", address=outcome.address, fault=outcome.fault)
    raise outcome


def parse(kind: type[_Value], raw: msgspec.Raw, method: str) -> _Value | None:
    """Parse a result as a value of this type, or None for null; MalformedResultError for another type."""
    if is_null(raw):
        return None
    decoder: msgspec.json.Decoder[_Value] = _decoder(kind)  # type: ignore[arg-type]  # classes are hashable
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as other:
        raise MalformedResultError(f"the node's result for {method} is malformed: {other}") from other


def is_null(raw: msgspec.Raw) -> bool:
    """True for a null result."""
    return len(raw) == len(NULL) and bytes(raw) == NULL


@lru_cache(maxsize=64)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - any type
    return msgspec.json.Decoder(kind)
