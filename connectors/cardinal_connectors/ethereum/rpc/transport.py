"""How a request reaches a node and its answer comes back: one small interface, whatever carries the bytes.

Rules:

1. A wire carries bytes and pairs answers with requests. It does not retry and knows no method.
2. Every failure is one of four: :class:`~cardinal.errors.NodeUnreachableError` (may pass), :class:`SlowError` (it did
   not come in time: perhaps too much was asked for), :class:`~cardinal.errors.NodeAnswerError` (the node said no),
   :class:`TooLargeError` (ask for less at once).
3. ``connects`` counts connections made. Behind a new connection there may be another node: whoever relies on the
   chain compares it again (facts on nodes, rule 7).
4. No error names more of the URL than scheme, host and port.
5. What a node refuses to answer is asked again only with other credentials (:mod:`.credentials`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import aiohttp
import msgspec

from cardinal.config.url import Endpoint
from cardinal.errors import ConfigurationError, NodeAnswerError, NodeUnreachableError
from cardinal_connectors.ethereum.settings import RpcSettings

from .credentials import Credentials


class Refusal(msgspec.Struct):
    """The error object of JSON-RPC 2.0."""

    code: int = 0
    message: str = ""
    data: msgspec.Raw = msgspec.Raw()

    @property
    def says_too_much(self) -> bool:
        """Whether its text says that too much was asked for, or is to be answered, at once."""
        text = self.message.lower()
        return "batch" in text or "too large" in text


class Reply(msgspec.Struct):
    """One answer, or one notification of a subscription. ``result`` stays unparsed: its reader knows its type."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: Refusal | None = None
    method: str = ""


Replies: TypeAlias = list[Reply]

_DECODER = msgspec.json.Decoder(Reply | Replies)


class TooLargeError(NodeAnswerError):
    """The node refuses a batch or a body of this size; whoever asked for one call cannot cut it."""

    retriable = True


class PassingError(NodeAnswerError):
    """The node says that it cannot answer this now: it may later."""

    retriable = True


class SlowError(NodeUnreachableError):
    """No answer within the time allowed: the node is away, or was asked for too much at once."""


class BusyError(NodeUnreachableError):
    """The node said how long it wants to be left alone: ``seconds``, None where it only said later."""

    def __init__(self, message: str, *, address: str, seconds: float | None) -> None:
        super().__init__(message, address=address)
        self.seconds = seconds


class RpcTransport(Protocol):
    """One connection, or pool of connections, to one node."""

    connects: int

    async def exchange(self, body: bytes, ids: Sequence[int]) -> Replies:
        """Send a request or batch; return what came back for these ids, in any order, perhaps not for all."""
        ...

    async def close(self) -> None:
        """Release the connection. May be called twice."""
        ...


def read_replies(body: bytes) -> Replies:
    """The answers in a body; NodeAnswerError where it is no JSON-RPC."""
    try:
        read = _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError) as malformed:  # the latter where it is nested too deep
        raise NodeAnswerError(
            f"the address answers, but not in JSON-RPC ({malformed}); check that the URL is a node's", code=None
        ) from malformed
    return read if isinstance(read, list) else [read]


def closed_error(endpoint: Endpoint) -> NodeAnswerError:
    """The one sentence for a feed that was closed."""
    return NodeAnswerError(f"the feed of {endpoint.address} was closed; open another one")


def denied(endpoint: Endpoint, status: int, credentials: Credentials) -> NodeAnswerError:
    """The one sentence for a node that refuses what it is shown, or wants to be shown something."""
    address = endpoint.address
    return NodeAnswerError(
        f"the node at {address} refuses the credentials (HTTP {status}); {credentials.advice}", code=status
    )


def elsewhere(endpoint: Endpoint, status: int, place: str) -> NodeAnswerError:
    """The one sentence for a redirection. Of the other place only what may be shown of any address."""
    address = endpoint.address
    try:
        to = f", to {Endpoint.parse(place).address}" if "://" in place else ""
    except ConfigurationError:
        to = ""
    return NodeAnswerError(f"{address} sends its callers elsewhere (HTTP {status}{to}); write that URL", code=status)


def unreachable(
    endpoint: Endpoint, failure: Exception, settings: RpcSettings
) -> NodeUnreachableError | NodeAnswerError:
    """The one sentence for a connection that failed; foreign texts may hold the URL and are not repeated."""
    address = endpoint.address
    match failure:
        case aiohttp.InvalidURL() | ValueError():
            return NodeAnswerError(f"{address} is no address of a node; check the URL")
        case aiohttp.WSServerHandshakeError(status=status):
            return NodeUnreachableError(
                f"the node at {address} opens no WebSocket (HTTP {status}); is it its WebSocket port?", address=address
            )
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
                f"no node answers at {address} ({type(failure).__name__}); check that it runs and the URL is right",
                address=address,
            )
