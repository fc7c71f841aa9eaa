"""JSON-RPC client of one node: calls, adaptive batches, retries.

Rules:

1. A batch has an outcome per call, in order: the unparsed result, or the node's error as a value.
2. Every error has a subject (:mod:`.faults`). It is retried with a growing pause, or the one that the node requests, as
   often as configured. An error about this one request, or about the rate, is then raised as
   :class:`.faults.FailedError`: the node counts as unreachable. One about the method, the parameters or pruned history
   that is the same at every attempt is the call's outcome.
3. What is no JSON-RPC is retried too. After the attempts it is :class:`.faults.NoNodeError` if the node never answered
   well, else FailedError: a node that answered well will do so again.
4. After a request is refused as too large (with an object, a one-element array, an error inside it, or HTTP 413), or
   times out, the batch size is halved, and grows again later (:mod:`.rate`).
5. A pause that is long, or that another node could fill, is not waited for here: FailedError.
6. No error contains more of the URL than scheme, host and port, also where the node's message repeats it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from cardinal.config.url import Endpoint
from cardinal.errors import ConfigurationError
from cardinal_ethereum.feed.settings import RpcSettings, quoted

from .credentials import REFUSED, Credentials
from .faults import (
    PASSING,
    CallRefusedError,
    CredentialsError,
    FailedError,
    Fault,
    MalformedResultError,
    NoNodeError,
    SlowError,
    TooLargeError,
)
from .http import HttpTransport
from .ipc import IpcTransport
from .outcomes import Outcome, RpcCall, check_size, paired, parse, result_of
from .rate import BatchSize, RateLimit
from .transport import RpcTransport, wrong_scheme
from .websocket import WebSocketTransport

PATIENCE = 60.0
"""Longest pause in seconds, requested by the node, that a call waits for."""

_Value = TypeVar("_Value")


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
        faults: number of failures by subject, also of those that a retry healed.
        replaceable: returns True while another node could be used in place of this one.

    """

    def __init__(self, endpoint: Endpoint, settings: RpcSettings | None = None) -> None:
        self._settings = settings or RpcSettings()
        self.address = endpoint.address
        self._endpoint = endpoint
        self._credentials = Credentials.of(endpoint)
        self.noticed = asyncio.Event()
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self.replaceable: Callable[[], bool] = lambda: False
        self._worked: set[str] = set()
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
        return result_of(outcome)

    async def read(self, kind: type[_Value], method: str, *params: object) -> _Value | None:
        """Result of a call as a value of this type, or None for null; MalformedResultError for another type."""
        for attempt in itertools.count(1):
            try:
                return parse(kind, await self.call(method, *params), method)
            except MalformedResultError:
                self.faults[Fault.WRONG] += 1
                if attempt >= self._settings.attempts:
                    raise
                await asyncio.sleep(self._settings.pause(attempt))
        raise AssertionError  # pragma: no cover - the loop above ends by return or raise

    async def batch(self, calls: Sequence[RpcCall]) -> list[Outcome]:
        """Outcomes of calls, in order, with as few requests as the node accepts.

        Raises:
            NodeUnreachableError: after the last attempt.
            NodeAnswerError: the node refuses the credentials, or does not speak JSON-RPC.

        """
        outcomes: list[Outcome] = []
        slow = 0
        while len(outcomes) < len(calls):
            size = int(min(self._batch_size.size, self._throttle.burst))
            part = calls[len(outcomes) : len(outcomes) + size]
            try:
                outcomes += await self._settled(part)
            except TooLargeError as refused:
                if len(part) > 1:
                    self._batch_size.refused(len(part))
                else:
                    outcomes.append(CallRefusedError(str(refused), code=refused.code, fault=Fault.SIZE))
            except SlowError:
                slow += 1  # other answers do not reset it: a call that is always slow must not be retried for ever
                if slow >= self._settings.attempts:
                    raise
                self._batch_size.refused(len(part))
                await asyncio.sleep(self._settings.pause(slow))
            except FailedError as failed:
                if len(part) > 1 and failed.fault is not Fault.CONNECTION:
                    self._batch_size.refused(len(part))  # perhaps it was too large, in words that nobody knows
                raise
            else:
                self._batch_size.succeeded(len(part))
        return outcomes

    async def rest(self, attempt: int) -> None:
        """Wait before a request is repeated because of a wrong response: not at first, then as after failures."""
        if attempt > 1:
            await asyncio.sleep(self._settings.pause(attempt - 1))

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
        """Outcomes of a batch; refused calls are retried."""
        outcomes = await self._sent(calls)
        first = list(outcomes)
        attempt = waits = 0
        while again := [index for index, one in enumerate(outcomes) if self._is_retried(calls[index], one, attempt)]:
            attempt += 1
            if attempt >= self._settings.attempts:
                break
            refusals = [one for index in again if isinstance(one := outcomes[index], CallRefusedError)]
            limited = any(one.fault is Fault.RATE for one in refusals)
            if waits or limited or len(again) == len(calls):
                await self._pause(waits or 1, max(refusals, key=lambda one: one.seconds or 0.0))
            waits += 1  # the node answers other calls of the batch now: the first retry needs no pause
            for index, outcome in zip(again, await self._sent([calls[index] for index in again]), strict=True):
                outcomes[index] = outcome
            if all(one.fault is Fault.RATE for one in refusals) and any(
                isinstance(outcomes[index], msgspec.Raw) for index in again
            ):
                attempt = waits = 0  # a rate that lets some calls through is no reason to give the others up
        return [self._final(call, one, begun) for call, one, begun in zip(calls, outcomes, first, strict=True)]

    def _is_retried(self, call: RpcCall, outcome: Outcome, attempt: int) -> bool:
        """True if an outcome is a refusal that may pass."""
        if not isinstance(outcome, CallRefusedError):
            return False
        match outcome.fault:
            case Fault.RATE:
                return True
            case Fault.TAG | Fault.CREDENTIALS:
                return False
            case Fault.METHOD if call.method not in self._worked:
                return attempt == 0 and not call.optional
            case _:
                return not call.optional

    def _final(self, call: RpcCall, outcome: Outcome, first: Outcome) -> Outcome:
        """The outcome of a call after its attempts; raises where the node counts as unreachable."""
        if not isinstance(outcome, CallRefusedError) or (call.optional and outcome.fault is not Fault.RATE):
            return outcome
        fault = outcome.fault
        changed = isinstance(first, CallRefusedError) and first.fault is not fault
        if fault in PASSING or (fault is Fault.ADDRESS and self._worked) or (changed and self._worked):
            raise FailedError(
                f"{outcome}; the node counts as unreachable", address=self.address, fault=fault, seconds=outcome.seconds
            )
        outcome.retriable = fault is Fault.METHOD and call.method in self._worked
        return outcome

    async def _sent(self, calls: Sequence[RpcCall]) -> list[Outcome]:
        """One request, retried while it fails as a whole."""
        for attempt in itertools.count(1):
            self._check_held()
            try:
                async with self._in_flight:
                    await asyncio.sleep(self._throttle.wait(len(calls)))
                    return await self._exchanged(calls)
            except (SlowError, TooLargeError, CredentialsError) as failure:
                self.faults[failure.fault] += 1
                raise  # the first two are retried with a smaller batch
            except (FailedError, NoNodeError) as failure:
                self.faults[failure.fault] += 1
                if failure.fault is Fault.RATE:
                    self._throttle.record(0, 1)
                if attempt >= self._settings.attempts or (failure.code in REFUSED and not self._worked):
                    raise await self._given_up(failure) from None
                await self._pause(attempt, failure)
        raise AssertionError  # pragma: no cover - the loop above ends by return or raise

    async def _given_up(self, failure: FailedError | NoNodeError) -> FailedError | NoNodeError:
        """The error for what failed at every attempt."""
        if isinstance(failure, NoNodeError) and self._worked:
            return FailedError(f"{failure}; it answered well before", address=self.address, fault=failure.fault)
        other = failure.fault is Fault.CONNECTION and not self._worked and await wrong_scheme(self._endpoint)
        return other or failure

    async def _pause(self, attempt: int, failure: FailedError | CallRefusedError) -> None:
        """Wait before the next attempt; FailedError if that is better done elsewhere."""
        own, requested = self._settings.pause(attempt), failure.seconds
        if requested is not None:
            self._throttle.hold(requested)
            if requested > PATIENCE or (requested > own and self.replaceable()):
                raise FailedError(str(failure), address=self.address, fault=failure.fault, seconds=requested)
        await asyncio.sleep(own)

    def _check_held(self) -> None:
        """Raise FailedError while the node requests a pause that is not waited for here."""
        held = self._throttle.held
        if held > PATIENCE or (held > self._settings.pause(1) and self.replaceable()):
            raise FailedError(
                f"the node at {self.address} requested a pause, of which {held:.0f} seconds are left",
                address=self.address,
                fault=Fault.RATE,
                seconds=held,
            )

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
        if len(calls) > 1:
            check_size(replies, self.address, self.quoted)
        outcomes = paired(list(zip(calls, ids, strict=True)), replies, self.address, self.quoted)
        self._worked.update(
            call.method for call, one in zip(calls, outcomes, strict=True) if isinstance(one, msgspec.Raw)
        )
        self.faults.update(
            one.fault
            for one, call in zip(outcomes[: len(replies)], calls, strict=False)  # one error for all counts once
            if isinstance(one, CallRefusedError) and (one.fault is Fault.RATE or not call.optional)
        )
        faults = [one.fault for one in outcomes if isinstance(one, CallRefusedError)]
        limited = faults.count(Fault.RATE)
        self._throttle.record(len(calls) - limited, min(limited, len(replies)))
        return outcomes
