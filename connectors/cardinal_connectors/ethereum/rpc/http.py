"""HTTP transport of JSON-RPC requests."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import aiohttp

from cardinal.config.url import Endpoint
from cardinal.errors import NodeAnswerError
from cardinal_connectors.ethereum.settings import RpcSettings, quoted

from .credentials import REFUSED, Credentials
from .transport import (
    BusyError,
    Replies,
    Reply,
    SlowError,
    TooLargeError,
    closed_error,
    denied,
    elsewhere,
    read_replies,
    unreachable,
)

LONGEST_PAUSE = 60.0
"""Maximum pause in seconds that a node may request."""

_LARGE: Final = 1 << 20
"""Size in bytes from which a body is sent in pieces, so that other tasks run meanwhile."""

_QUOTED: Final = 4_000
"""Maximum size of a quoted body in bytes. A longer one is omitted, not cut: masking would miss part of a secret."""

_ERROR: Final = 500

_ELSEWHERE: Final = frozenset({301, 302, 303, 307, 308})


class _Answer(NamedTuple):
    """HTTP response. ``later`` and ``location`` are the headers ``Retry-After`` and ``Location``."""

    status: int
    text: bytes
    later: str | None
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
                return _Answer(answer.status, text, received.get("Retry-After"), received.get("Location", ""))
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
        """Responses of a body, or the error of a status. A JSON-RPC error in the body takes precedence."""
        address, status, text = self._endpoint.address, answer.status, answer.text
        match status:
            case 413:
                raise TooLargeError(f"the node at {address} refuses a request of this size (HTTP 413)", code=status)
            case _ if status in REFUSED:
                raise denied(self._endpoint, status, self._credentials)
            case 408 | 504:
                raise SlowError(f"the node at {address} took too long (HTTP {status})", address=address)
            case 429 | 500 | 502 | 503:
                replies = _replies(text)
                if any(_has_precedence(status, reply) for reply in replies):
                    return replies
                raise BusyError(
                    f"the node at {address} is not available (HTTP {status}{self._quote(text, replies)}); retrying",
                    address=address,
                    seconds=_seconds(answer.later),
                )
            case _ if status >= 300:  # noqa: PLR2004 - the first status of HTTP that is not success
                replies = _replies(text)
                if any(reply.error is not None or len(reply.result) for reply in replies):
                    return replies
                raise NodeAnswerError(
                    f"{address} answers HTTP {status}: check that it is a node's address", code=status
                )
            case _:
                return read_replies(text)

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
    except NodeAnswerError:
        return []


def _has_precedence(status: int, reply: Reply) -> bool:
    """True if a response takes precedence over a transient status.

    A result does, and an error about the size. Any other error does only with status 500, which nodes use for errors of
    all kinds; with other statuses the error may be the gateway's.
    """
    error = reply.error
    if error is None:
        return len(reply.result) > 0
    return error.says_too_much or (status == _ERROR and error.code != 0)


def _seconds(later: str | None) -> float | None:
    """``Retry-After`` in seconds; a date counts as unknown, since it would need a clock."""
    return min(float(later), LONGEST_PAUSE) if later is not None and later.strip().isdecimal() else None
