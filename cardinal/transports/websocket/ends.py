"""Why a connection to a server could not be made, or ended: one error of ours for each.

What heals by itself is an :class:`~cardinal.errors.UnreachableError`: who has it connects again. All else ends a link.
Where there was a connection before, another HTTP answer than about the token is a balancer's, for as long as the server
behind it is away.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

from cardinal.errors import CardinalError, RefusedError, RemoteProtocolError, TransportError, UnreachableError

from .frames import CLIENT_FRAME_MAX, CloseCode

if TYPE_CHECKING:
    from .settings import WebsocketSettings

_TOO_BIG: Final = 1009
_UNAUTHORIZED: Final = frozenset({401, 403})
_FULL: Final = 503
_FOR_NOW: Final = frozenset({408, 425, 429})
_SERVERS_SIDE: Final = 500
"""From here on: the server's side, or a proxy's."""


class Ends:
    """See the module.

    Arguments:
        settings: the servers.
        errors: the websocket library's exceptions; it is imported late.

    """

    def __init__(self, settings: WebsocketSettings, errors: Any) -> None:  # noqa: ANN401 - a module
        self._settings = settings
        self._errors = errors
        self.why = ""
        """Of the last one that heals by itself."""

    def silent(self, seconds: float) -> CardinalError:
        """A connection on which nothing came for so long."""
        return self._gone(f"nothing came from it for {seconds:g} s")

    def of(self, error: Exception, *, first: bool) -> CardinalError:
        """A connection that broke, or was not made. ``first``: there was none before."""
        mapped = self._mapped if isinstance(error, self._errors.WebSocketException) else self._io
        return mapped(error, first=first)

    def _mapped(self, error: Any, *, first: bool) -> CardinalError:  # noqa: ANN401 - the library is imported late
        where = self._settings.address
        if isinstance(error, self._errors.ConnectionClosed):
            received = error.rcvd
            if error.sent is not None and error.sent.code == _TOO_BIG and not error.rcvd_then_sent:
                return TransportError(
                    f"a frame of {where} is larger than {self._settings.frame_max} bytes: raise max.frame.bytes"
                )
            return self._by_code(received.code, received.reason) if received else self._gone("the connection broke")
        if isinstance(error, self._errors.InvalidStatus):
            return self._by_status(error.response.status_code, first=first)
        if isinstance(error, self._errors.InvalidMessage) and isinstance(error.__cause__, EOFError | OSError):
            return self._gone("it ended the connection before it answered")
        if not first:
            return self._gone("what answers there now is another")
        return RefusedError(f"what answers at {where} is no `cardinal serve`: use its address and ws:// or wss://")

    def _by_status(self, status: int, *, first: bool) -> CardinalError:
        where = self._settings.address
        if status in _UNAUTHORIZED:
            return RefusedError(
                f"the stream's server at {where} does not accept the token: give the right one by token_file=PATH"
                if self._settings.headers
                else f"the stream's server at {where} wants a token: give it by token_file=PATH"
            )
        if status == _FULL:
            return self._gone("it has no room for another client now", "raise its --max-clients or take another server")
        if not first or status in _FOR_NOW or status >= _SERVERS_SIDE:
            return self._gone(f"HTTP status {status}")
        return RefusedError(f"what answers at {where} is no `cardinal serve`: HTTP status {status}")

    def _by_code(self, code: int | None, reason: str) -> CardinalError:
        if code == CloseCode.PROTOCOL:
            return RemoteProtocolError(f"the server at {self._settings.address} did not understand us: {reason!r}")
        if code == _TOO_BIG:
            return TransportError(
                f"a request of ours is larger than {CLIENT_FRAME_MAX} bytes, and the server at "
                f"{self._settings.address} takes no larger one: it names too many partitions; read fewer topics"
            )
        return self._gone(f"it closed the connection: {reason!r}" if reason else "it closed the connection")

    def _io(self, error: Exception, *, first: bool) -> CardinalError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return RefusedError(
                f"the certificate of {self._settings.address} is not trusted: {error.verify_message}; "
                "check the host name and ssl.ca.location"
            )
        if isinstance(error, ssl.SSLError) and first:
            return RefusedError(
                f"the TLS handshake with {self._settings.address} failed: does it speak ws:// without TLS?"
            )
        if isinstance(error, TimeoutError):
            return self._gone(f"no answer within {self._settings.connect_timeout:g} s")
        return self._gone((error.strerror if isinstance(error, OSError) else None) or type(error).__name__)

    def _gone(self, why: str, do: str = "start `cardinal serve` there or correct the address") -> UnreachableError:
        where = self._settings.address
        self.why = why
        return UnreachableError(f"no stream is served at {where}: {why}; {do}", address=where)
