"""Errors of a websocket stream: errors of the library, the system and the server, mapped to Cardinal's.

After an :class:`~cardinal.errors.UnreachableError` the client reconnects. All others end it.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus, WebSocketException

from cardinal.errors import (
    CardinalError,
    CursorExpiredError,
    RefusedError,
    RemoteProtocolError,
    TopicError,
    TransportError,
    UnreachableError,
)
from cardinal.transports.expired import expired

from .protocol import CloseCode, Failed, Reason, by_partition

if TYPE_CHECKING:
    from .settings import WebsocketSettings

RECREATED: Final = "the topic was recreated; start again"
_TOO_BIG: Final = 1009
_UNAUTHORIZED: Final = frozenset({401, 403})
_FULL: Final = 503
_TEMPORARY: Final = frozenset({408, 425, 429})
_SERVER_SIDE: Final = 500


def connection_error(  # noqa: PLR0911 - one case for each cause
    error: Exception, settings: WebsocketSettings, *, first: bool
) -> CardinalError:
    """The error for a connection that broke or was not made; ``first``: there was none before."""
    address = settings.address
    match error:
        case CardinalError():
            return error
        case ConnectionClosed():
            return _closed(error, settings, first=first)
        case InvalidStatus():
            return _status(error.response.status_code, settings, first=first)
        case InvalidMessage() if isinstance(error.__cause__, EOFError | OSError):
            reason = "it closed the connection before it answered"
        case WebSocketException() if first:
            return RefusedError(
                f"what answers at {address} is not `cardinal serve`: use its address and ws:// or wss://"
            )
        case WebSocketException():  # a proxy in front of a server that is restarting
            reason = "another service answers there now"
        case ssl.SSLCertVerificationError():
            return RefusedError(
                f"the certificate of {address} is not trusted: {error.verify_message}; "
                "check the host name and ssl.ca.location"
            )
        case ssl.SSLError() | ConnectionResetError() if first and settings.tls is not None:
            return RefusedError(f"the TLS handshake with {address} failed: use ws:// if it is without TLS")
        case TimeoutError():
            reason = f"no answer within {settings.connect_timeout:g} s"
        case _:
            reason = getattr(error, "strerror", None) or type(error).__name__
    return _away(reason, address, first=first)


def request_error(frame: Failed, address: str) -> CardinalError:
    """The error for a request, or a reading, that failed at the server."""
    missing = by_partition(frame.partitions)
    match frame.reason:
        case Reason.TOPIC if missing:
            topic, number = next(iter(missing))
            return TopicError(
                f"{topic} at {address} has lost partition {number}: the topic was recreated; restart without a cursor",
                topic=topic,
            )
        case Reason.TOPIC:
            return TopicError(
                f"the topic {frame.topic} is not served at {address}: start a producer first, or check application "
                "and chain id",
                topic=frame.topic,
            )
        case Reason.EXPIRED:
            if not missing:
                return CursorExpiredError(f"positions have expired at {address}: start again", missing={})
            return expired(missing, f"at {address}", remedy="", cause=RECREATED)
        case Reason.UNAVAILABLE:
            return UnreachableError(
                f"the server at {address} answers, but what it reads from does not, or it has no capacity now: retry "
                "later",
                address=address,
            )
        case Reason.FAILED:
            return TransportError(f"the server at {address} failed: its log has the reason")


def _away(reason: str, address: str, *, first: bool) -> UnreachableError:
    text = (
        f"no stream is served at {address}: {reason}; start `cardinal serve` there or correct the address"
        if first
        else f"the server at {address} is unreachable: {reason}"
    )
    return UnreachableError(text, address=address)


def _status(status: int, settings: WebsocketSettings, *, first: bool) -> CardinalError:
    address = settings.address
    if status in _UNAUTHORIZED:
        return RefusedError(
            f"the server at {address} does not accept the token: set the right one with token_file=PATH"
            if settings.headers
            else f"the server at {address} requires a token: set it with token_file=PATH"
        )
    if status == _FULL:
        return UnreachableError(
            f"the server at {address} has no capacity for another client: raise its --max-clients or use another one",
            address=address,
        )
    if not first or status in _TEMPORARY or status >= _SERVER_SIDE:
        return _away(f"HTTP status {status}", address, first=first)
    return RefusedError(f"what answers at {address} is not `cardinal serve`: HTTP status {status}")


def _closed(error: ConnectionClosed, settings: WebsocketSettings, *, first: bool) -> CardinalError:
    address, sent, received = settings.address, error.sent, error.rcvd
    if sent is not None and sent.code == _TOO_BIG and not error.rcvd_then_sent:
        return TransportError(
            f"a message of {address} is larger than {settings.frame_max} bytes: raise max.frame.bytes"
        )
    if received is None:
        return _away("the connection broke, or it stopped answering", address, first=first)
    if received.code == CloseCode.PROTOCOL:
        return RemoteProtocolError(f"the server at {address} refused a request: {received.reason!r}")
    reason = f": {received.reason}" if received.reason else ""
    return UnreachableError(f"the server at {address} closed the connection{reason}", address=address)
