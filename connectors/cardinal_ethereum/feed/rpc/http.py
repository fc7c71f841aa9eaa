"""HTTP transport of JSON-RPC requests."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import aiohttp

from cardinal.config.url import Endpoint
from cardinal_ethereum.feed.settings import RpcSettings, quoted

from .credentials import REFUSED, Credentials
from .faults import (
    PASSING,
    CallRefusedError,
    FailedError,
    Fault,
    NoNodeError,
    SlowError,
    TooLargeError,
    fault_of,
    says_rate,
)
from .transport import (
    TOO_MANY,
    UNAUTHORIZED,
    Replies,
    Reply,
    closed_error,
    denied,
    elsewhere,
    is_away,
    read_replies,
    retry_after,
    unreachable,
)

_LARGE: Final = 1 << 20
"""Size in bytes from which a body is sent in pieces, so that other tasks run meanwhile."""

_QUOTED: Final = 4_000
"""Maximum size of a quoted body in bytes. A longer one is omitted, not cut: masking would miss part of a secret."""

_SLOW: Final = frozenset({408, 504})

_ELSEWHERE: Final = frozenset({301, 302, 303, 307, 308})


class _Answer(NamedTuple):
    """HTTP response. ``later`` is the pause that its headers request, ``location`` the header of this name."""

    status: int
    text: bytes
    later: float | None
    location: str


class HttpTransport:
    """Transport over a pool of HTTP connections."""

    def __init__(self, endpoint: Endpoint, settings: RpcSettings, credentials: Credentials) -> None:
        self.connects = 0
        self._endpoint = endpoint
        self._settings = settings
        self._credentials = credentials
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def exchange(self, body: bytes, ids: Sequence[int]) -> Replies:
        """Post a request; see :class:`RpcTransport`."""
        del ids
        headers = self._credentials.headers
        answer = await self._posted(body, headers)
        while answer.status in REFUSED and self._credentials.renewed(headers):
            headers = self._credentials.headers
            answer = await self._posted(body, headers)
        if answer.status in _ELSEWHERE:
            raise elsewhere(self._endpoint, answer.status, answer.location)
        return self._judge(answer)

    async def _posted(self, body: bytes, headers: Mapping[str, str]) -> _Answer:
        if self._closed:
            raise closed_error(self._endpoint)
        session = self._session = self._session or self._open()
        try:
            # The target of a redirection is unknown, and would receive the node's credentials.
            async with session.post(
                self._endpoint.url,
                data=body if len(body) < _LARGE else io.BytesIO(body),
                headers={**headers, "Content-Type": "application/json"},
                allow_redirects=False,
            ) as answer:
                text, received = await self._read(answer), answer.headers
                return _Answer(answer.status, text, retry_after(received), received.get("Location", ""))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failure:
            lost = unreachable(self._endpoint, failure, self._settings)
        raise lost  # outside of the except clause: the failure may contain the URL and must not be its context

    async def close(self) -> None:
        """Close the pool."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        async def connected(*_: object) -> None:
            self.connects += 1

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(connected)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._settings.connections),
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout),
            trace_configs=[trace],
        )

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > self._settings.answer:
                raise TooLargeError(f"the node's answer is longer than {self._settings.answer} bytes; request less")
            parts.append(part)
        return b"".join(parts)

    def _judge(self, answer: _Answer) -> Replies:
        """Responses of a body, or the error of a status.

        A result in the body counts whatever the status, and an error unless it only repeats that the node is away.
        """
        address, status, text = self._endpoint.address, answer.status, answer.text
        if status == 413:  # noqa: PLR2004 - a status of HTTP
            raise TooLargeError(f"the node at {address} refuses a request of this size (HTTP 413)", code=status)
        if status == UNAUTHORIZED:
            raise denied(self._endpoint, status, self._credentials)
        if status in _SLOW:
            raise SlowError(f"the node at {address} took too long (HTTP {status})", address=address)
        replies = read_replies(text) if status < 300 else _replies(text)  # noqa: PLR2004 - the first that is no success
        for reply in replies:
            if reply.error is not None:
                reply.error.status, reply.error.seconds = status, answer.later
        if status < 300 or any(_has_precedence(reply, status) for reply in replies):  # noqa: PLR2004
            return replies
        raise self._failure(answer, replies)

    def _failure(self, answer: _Answer, replies: Replies) -> FailedError | CallRefusedError:
        """The error of a status whose body says nothing else."""
        address, status = self._endpoint.address, answer.status
        quote = self._quote(answer.text, replies)
        limited = status == TOO_MANY or says_rate(quote)
        if limited or is_away(status):
            message = f"the node at {address} is not available (HTTP {status}{quote}); retrying"
            fault = Fault.RATE if limited else Fault.REQUEST
            return FailedError(message, address=address, fault=fault, seconds=answer.later)
        if status in REFUSED:
            return denied(self._endpoint, status, self._credentials)
        return NoNodeError(f"{address} answers HTTP {status}: check that it is a node's address", code=status)

    def _quote(self, text: bytes, replies: Replies) -> str:
        """Quoted text of a body, unless it is an HTML page or long."""
        errors = [reply.error.message for reply in replies if reply.error is not None and reply.error.message]
        whole = text.decode(errors="replace").strip() if len(text) <= _QUOTED else ""
        message = errors[0] if errors else whole
        quote = "" if message.startswith("<") else quoted(self._endpoint, message, self._credentials.hidden)
        return f": {quote}" if quote else ""


def _replies(text: bytes) -> Replies:
    """Responses in the body of an error status; empty if it is not JSON-RPC."""
    try:
        return read_replies(text)
    except NoNodeError:
        return []


def _has_precedence(reply: Reply, status: int) -> bool:
    """True if a response says more than a status that is no success.

    An error that is about this moment may be the gateway's, and is reported with its status; so is one without a code,
    as gateways write that speak no JSON-RPC. Nodes use 500 and 400 for errors of all kinds.
    """
    error = reply.error
    if error is None:
        return len(reply.result) > 0
    fault = fault_of(error)
    if fault is Fault.ADDRESS or not is_away(status):
        return error.code != 0 and fault is not Fault.ADDRESS
    return fault not in PASSING or (status == 500 and error.code != 0)  # noqa: PLR2004
