"""Transport of JSON-RPC requests to a node: interface, replies and errors.

Rules:

1. A transport carries bytes and matches responses to requests. It does not retry and is independent of methods.
2. Every failure is one of four: :class:`~cardinal.errors.NodeUnreachableError` (transient), :class:`SlowError` (a
   timeout, perhaps of a large request), :class:`~cardinal.errors.NodeAnswerError` (refused), :class:`TooLargeError`
   (requires smaller requests).
3. ``connects`` counts connections. A new connection may lead to another node: the chain is compared again (facts on
   nodes, rule 7).
4. No error names more of the URL than scheme, host and port.
5. A refused request is repeated only with other credentials (:mod:`.credentials`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import aiohttp
import msgspec

from cardinal.config.url import Endpoint
from cardinal.errors import ConfigurationError, NodeAnswerError, NodeUnreachableError
from cardinal_connectors.ethereum.settings import RpcSettings

from .credentials import Credentials

_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of a gateway whose node is unreachable or busy."""


class Refusal(msgspec.Struct):
    """The error object of JSON-RPC 2.0."""

    code: int = 0
    message: str = ""
    data: msgspec.Raw = msgspec.Raw()

    @property
    def says_too_much(self) -> bool:
        """True if its text reports a request or response that is too large."""
        text = self.message.lower()
        return "batch" in text or "too large" in text


class Reply(msgspec.Struct):
    """Response, or notification of a subscription. ``result`` is unparsed: its type depends on the method."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: Refusal | None = None
    method: str = ""


Replies: TypeAlias = list[Reply]

_DECODER = msgspec.json.Decoder(Reply | Replies)


class TooLargeError(NodeAnswerError):
    """The node refuses a batch or a body of this size."""

    retriable = True


class PassingError(NodeAnswerError):
    """Transient error of a node."""

    retriable = True


class SlowError(NodeUnreachableError):
    """Timeout: the node is unreachable, or the request was too large."""


class BusyError(NodeUnreachableError):
    """The node requests a pause of ``seconds``; None if it named no duration."""

    def __init__(self, message: str, *, address: str, seconds: float | None) -> None:
        super().__init__(message, address=address)
        self.seconds = seconds


class RpcTransport(Protocol):
    """Connection, or pool of connections, to one node."""

    connects: int

    async def exchange(self, body: bytes, ids: Sequence[int]) -> Replies:
        """Send a request or batch; returns the responses to these ids, in any order, perhaps not all."""
        ...

    async def close(self) -> None:
        """Release the connection. May be called twice."""
        ...


def read_replies(body: bytes) -> Replies:
    """Parse the responses in a body; NodeAnswerError if it is not JSON-RPC."""
    try:
        read = _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError) as malformed:  # the latter for deep nesting
        raise NodeAnswerError(
            f"the address answers, but not in JSON-RPC ({malformed}); check that the URL is a node's", code=None
        ) from malformed
    return read if isinstance(read, list) else [read]


def closed_error(endpoint: Endpoint) -> NodeAnswerError:
    """Error for a closed feed."""
    return NodeAnswerError(f"the feed of {endpoint.address} was closed; open another one")


def denied(endpoint: Endpoint, status: int, credentials: Credentials) -> NodeAnswerError:
    """Error for a node that refuses or requires credentials."""
    address = endpoint.address
    return NodeAnswerError(
        f"the node at {address} refuses the credentials (HTTP {status}); {credentials.advice}", code=status
    )


def elsewhere(endpoint: Endpoint, status: int, location: str) -> NodeAnswerError:
    """Error for a redirection; names scheme, host and port of the target."""
    address = endpoint.address
    try:
        to = f", to {Endpoint.parse(location).address}" if "://" in location else ""
    except ConfigurationError:
        to = ""
    return NodeAnswerError(f"{address} redirects to another URL (HTTP {status}{to}): use that URL", code=status)


def unreachable(
    endpoint: Endpoint, failure: Exception, settings: RpcSettings
) -> NodeUnreachableError | NodeAnswerError:
    """Error for a failed connection; foreign texts may contain the URL and are omitted."""
    address = endpoint.address
    match failure:
        case aiohttp.InvalidURL() | ValueError():
            return NodeAnswerError(f"{address} is not an address of a node; check the URL")
        case aiohttp.WSServerHandshakeError(status=status):
            message = f"the node at {address} opens no WebSocket (HTTP {status}): check the URL's WebSocket port"
            if status in _PASSING:
                return NodeUnreachableError(message, address=address)
            return NodeAnswerError(message, code=status)
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return NodeUnreachableError(
                f"the certificate of the node at {address} is not accepted; check the address", address=address
            )
        case TimeoutError():
            return SlowError(
                f"the node at {address} did not answer within {settings.timeout:g} seconds", address=address
            )
        case _:
            return NodeUnreachableError(
                f"no node answers at {address} ({_reason(failure)}); check that it runs and the URL is right",
                address=address,
            )


def _reason(failure: Exception) -> str:
    match failure:
        case aiohttp.ClientConnectorDNSError():
            return "its host name is not known"
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number).lower()
        case _:
            return "the connection ended"
