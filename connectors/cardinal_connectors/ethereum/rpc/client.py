"""JSON-RPC client of one node: calls, adaptive batches, retries.

Rules:

1. A batch has an outcome per call, in order: the unparsed result, or the node's error as a value.
2. A connection failure is retried with a growing pause, as often as configured, then raised. A node's error is retried
   only if it is transient (:data:`PASSING`); after the last attempt it is raised as NodeUnreachableError, so the caller
   waits as for an unreachable node.
3. After a batch is refused as too large (with an object, a one-element array, a code inside it, or HTTP 413), or times
   out, the batch size is halved, and grows again later (:mod:`.rate`).
4. No error contains more of the URL than scheme, host and port, also where the node's message repeats it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from cardinal.config.url import Endpoint
from cardinal.errors import ConfigurationError, NodeAnswerError, NodeUnreachableError
from cardinal_connectors.ethereum.settings import RpcSettings, quoted

from .credentials import Credentials
from .http import HttpTransport
from .ipc import IpcTransport
from .rate import BatchSize, RateLimit
from .transport import BusyError, PassingError, Refusal, Reply, RpcTransport, SlowError, TooLargeError
from .websocket import WebSocketTransport

PASSING = frozenset({-32005, 429, -32016})
"""Codes that mean "later": limit exceeded (EIP-1474), too many requests, over rate limit."""

INTERNAL = -32603
BEHIND = ("backend", "upstream")
"""A generic code, and texts that make it transient: the gateway has no node now."""

NO_METHOD = frozenset({-32601, -32004})
"""Codes that mean "never": method not found, method not supported (EIP-1474)."""

TOO_MUCH = frozenset({-32003})
"""Codes inside a batch that mean "the response is too large" (geth), if the text says so."""

NULL = b"null"
"""Result for something that the node does not have."""

_Value = TypeVar("_Value")


class RpcCall(NamedTuple):
    """Method and parameters."""

    method: str
    params: tuple[object, ...] = ()


Outcome: TypeAlias = msgspec.Raw | NodeAnswerError
"""Outcome of a call."""


class RpcClient:
    """Client of one node.

    Arguments:
        endpoint: the node, over ``http``, ``https``, ``ws``, ``wss`` or ``ipc``. User, password, path, query and token
            are sent, and never printed.
        settings: bounds and patience.

    Attributes:
        address: scheme, host and port.
        noticed: set by a notification of a subscription, or a lost WebSocket.
        requests: number of calls that were sent.

    """

    def __init__(self, endpoint: Endpoint, settings: RpcSettings | None = None) -> None:
        self._settings = settings or RpcSettings()
        self.address = endpoint.address
        self._endpoint = endpoint
        self._credentials = Credentials.of(endpoint)
        self.noticed = asyncio.Event()
        self.requests = 0
        self._transport = self._open(endpoint)
        self._ids = itertools.count(1)
        self._in_flight = asyncio.Semaphore(self._settings.connections)
        self._batch_size = BatchSize(self._settings.batch)
        self._throttle = RateLimit(self._settings.rate, time.monotonic)

    @property
    def subscribes(self) -> bool:
        """True if the connection can carry subscriptions."""
        return not isinstance(self._transport, HttpTransport)

    @property
    def connects(self) -> int:
        """Number of connections and token renewals; each may lead to another node."""
        return self._transport.connects + self._credentials.renewals

    async def call(self, method: str, *params: object) -> msgspec.Raw:
        """Result of a call; NodeAnswerError if the node refuses, NodeUnreachableError if it does not answer."""
        (outcome,) = await self.batch([RpcCall(method, params)])
        if isinstance(outcome, NodeAnswerError):
            raise outcome
        return outcome

    async def read(self, kind: type[_Value], method: str, *params: object) -> _Value | None:
        """Result of a call as a value of this type, or None for null; NodeAnswerError for another type."""
        return parse(kind, await self.call(method, *params), method)

    async def batch(self, calls: Sequence[RpcCall]) -> list[Outcome]:
        """Outcomes of calls, in order, with as few requests as the node accepts.

        Raises:
            NodeUnreachableError: after the last attempt.
            NodeAnswerError: the node refuses even a single call as too large, or does not speak JSON-RPC.

        """
        outcomes: list[Outcome] = []
        slow = 0
        while len(outcomes) < len(calls):
            part = calls[len(outcomes) : len(outcomes) + self._batch_size.size]
            try:
                outcomes += await self._settled(part)
            except TooLargeError as refused:
                if len(part) == 1:
                    raise NodeAnswerError(str(refused), code=refused.code) from None
                self._batch_size.refused(len(part))
            except SlowError:
                slow += 1  # other answers do not reset it: a call that is always slow must not be retried for ever
                if slow >= self._settings.attempts:
                    raise
                self._batch_size.refused(len(part))
                await asyncio.sleep(self._settings.pause(slow))
            else:
                self._batch_size.succeeded(len(part))
        return outcomes

    def quoted(self, text: str) -> str:
        """The node's message for an error."""
        return quoted(self._endpoint, text, self._credentials.hidden)

    async def close(self) -> None:
        """Release the connection. May be called twice."""
        await self._transport.close()

    def _open(self, endpoint: Endpoint) -> RpcTransport:
        match endpoint.parts.scheme:
            case "http" | "https":
                return HttpTransport(endpoint, self._settings, self._credentials)
            case "ws" | "wss":
                return WebSocketTransport(endpoint, self._settings, self._credentials, self.noticed.set)
            case "ipc":
                return IpcTransport(endpoint, self._settings, self.noticed.set)
            case scheme:
                raise ConfigurationError(
                    f"a node is reached over http, https, ws, wss or ipc, not over {scheme!r}; check the URL",
                    setting="url",
                )

    async def _settled(self, calls: Sequence[RpcCall]) -> list[Outcome]:
        """Outcomes of a batch; transient errors are retried."""
        outcomes = await self._sent(calls)
        for attempt in range(1, self._settings.attempts):
            again = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, PassingError)]
            if not again:
                break
            await asyncio.sleep(self._settings.pause(attempt))
            for index, outcome in zip(again, await self._sent([calls[index] for index in again]), strict=True):
                outcomes[index] = outcome
        if (passing := next((one for one in outcomes if isinstance(one, PassingError)), None)) is not None:
            raise NodeUnreachableError(str(passing), address=self.address)
        return outcomes

    async def _sent(self, calls: Sequence[RpcCall]) -> list[Outcome]:
        """One request, retried while the connection fails."""
        for attempt in itertools.count(1):
            try:
                async with self._in_flight:
                    await asyncio.sleep(self._throttle.wait(len(calls)))
                    return await self._exchanged(calls)
            except SlowError:
                raise  # retried with a smaller batch
            except NodeUnreachableError as unreachable:
                if attempt >= self._settings.attempts:
                    raise
                pause = self._settings.pause(attempt)
                if isinstance(unreachable, BusyError) and unreachable.seconds is not None:
                    pause = max(pause, unreachable.seconds)
                await asyncio.sleep(pause)
        raise AssertionError  # pragma: no cover - the loop above ends by return or raise

    async def _exchanged(self, calls: Sequence[RpcCall]) -> list[Outcome]:
        ids = [next(self._ids) for _ in calls]
        requests = [
            {"jsonrpc": "2.0", "id": one, "method": call.method, "params": call.params}
            for one, call in zip(ids, calls, strict=True)
        ]
        body = msgspec.json.encode(requests if len(requests) > 1 else requests[0])
        if len(body) > self._settings.body and len(calls) > 1:
            raise TooLargeError(f"a request of {len(body)} bytes is more than the {self._settings.body} allowed")
        self.requests += len(calls)
        replies = await self._transport.exchange(body, ids)
        if len(calls) > 1 and len(replies) == 1 and (refusal := replies[0].error) is not None:
            if _is_passing(refusal) and "batch" not in refusal.message.lower():
                return [self._refused(call, refusal) for call in calls]
            raise TooLargeError(
                f"the node at {self.address} refuses a batch: {self.quoted(refusal.message)}", code=refusal.code
            )
        if len(calls) > 1 and (refusal := next(filter(None, map(_too_much, replies)), None)) is not None:
            raise TooLargeError(
                f"the node at {self.address} cuts a batch: {self.quoted(refusal.message)}", code=refusal.code
            )
        return self._paired(calls, ids, replies)

    def _paired(self, calls: Sequence[RpcCall], ids: Sequence[int], replies: Sequence[Reply]) -> list[Outcome]:
        by_id = {reply.id: reply for reply in replies}
        if len(calls) == 1 and len(replies) == 1:
            by_id[ids[0]] = replies[0]  # an error may lack the id of a request that was not understood
        outcomes: list[Outcome] = []
        for call, one in zip(calls, ids, strict=True):
            reply = by_id.get(one)
            if reply is None or (reply.error is None and not len(reply.result)):
                message = f"the node at {self.address} omitted the response to {call.method} in a batch"
                outcomes.append(PassingError(message, code=-32005))
            elif reply.error is not None:
                outcomes.append(self._refused(call, reply.error))
            else:
                outcomes.append(reply.result)
        return outcomes

    def _refused(self, call: RpcCall, refusal: Refusal) -> NodeAnswerError:
        text = self.quoted(refusal.message)
        kind = PassingError if _is_passing(refusal) else NodeAnswerError
        return kind(
            f"the node at {self.address} answers {call.method} with error {refusal.code}: {text}", code=refusal.code
        )


def parse(kind: type[_Value], raw: msgspec.Raw, method: str) -> _Value | None:
    """Parse a result as a value of this type, or None for null; NodeAnswerError for another type."""
    if is_null(raw):
        return None
    decoder: msgspec.json.Decoder[_Value] = _decoder(kind)  # type: ignore[arg-type]  # classes are hashable
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as other:
        raise NodeAnswerError(f"the node's result for {method} is malformed: {other}") from other


def is_null(raw: msgspec.Raw) -> bool:
    """True for a null result."""
    return len(raw) == len(NULL) and bytes(raw) == NULL


@lru_cache(maxsize=64)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - any type
    return msgspec.json.Decoder(kind)


def _too_much(reply: Reply) -> Refusal | None:
    """The error of a call whose response did not fit into its batch."""
    error = reply.error
    return error if error is not None and error.code in TOO_MUCH and "too large" in error.message.lower() else None


def _is_passing(refusal: Refusal) -> bool:
    """True for a transient error."""
    text = refusal.message.lower()
    return refusal.code in PASSING or (refusal.code == INTERNAL and any(word in text for word in BEHIND))
