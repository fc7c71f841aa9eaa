"""Transport of JSON-RPC requests to a node: interface, replies and errors.

Rules:

1. A transport carries bytes and matches responses to requests. It does not retry and is independent of methods.
2. Every failure is one of :mod:`.faults`: :class:`.faults.FailedError` (transient; :class:`.faults.SlowError` after a
   timeout, perhaps of a large request), :class:`.faults.NoNodeError` and :class:`.faults.CredentialsError`,
   :class:`.faults.TooLargeError` (requires smaller requests). An error object in a response is no failure.
3. ``connects`` counts connections. A new connection may lead to another node: the chain is compared again
   (``connectors/cardinal_ethereum/docs/nodes.md``, rule 7).
4. No error names more of the URL than scheme, host and port.
5. A refused request is repeated only with other credentials (:mod:`.credentials`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

import aiohttp
import msgspec

from cardinal._tls_probe import speaks_other
from cardinal.config.url import Endpoint
from cardinal.errors import ConfigurationError, NodeAnswerError
from cardinal_ethereum.feed.settings import RpcSettings

from .credentials import Credentials
from .faults import CallRefusedError, CredentialsError, FailedError, Fault, NoNodeError, Refusal, SlowError

UNAUTHORIZED: Final = 401
TOO_MANY: Final = 429
"""Statuses of HTTP."""

_TLS: Final = MappingProxyType({"http": False, "ws": False, "https": True, "wss": True})
"""Schemes of nodes to whether they require TLS."""


class Reply(msgspec.Struct):
    """Response, or notification of a subscription. ``result`` is unparsed: its type depends on the method."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: Refusal | None = None
    method: str = ""


Replies: TypeAlias = list[Reply]


class _Written(msgspec.Struct):
    """A response as written: gateways write an error as an object, a text or true, and some write no member of it."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    method: str = ""
    message: msgspec.Raw = msgspec.Raw()

    def reply(self) -> Reply:
        number = int(self.id) if isinstance(self.id, str) and self.id.isascii() and self.id.isdecimal() else self.id
        return Reply(number, self.result, self._refusal(), self.method)

    def _refusal(self) -> Refusal | None:
        if bytes(self.error) in _NOTHING:
            spoken = len(self.message) and not len(self.result) and not self.method
            return Refusal(message=_text(self.message)) if spoken else None
        members = _members(self.error)
        if members is None:
            said = _text(self.error)
            return Refusal(message=_text(self.message) if said in {"true", "{}"} else said)
        code = _text(members.get("code", msgspec.Raw()))
        message = next((members[name] for name in ("message", "reason", "error", "msg") if name in members), self.error)
        return Refusal(int(code) if _INTEGER.fullmatch(code) else 0, _text(message), members.get("data", msgspec.Raw()))


_DECODER = msgspec.json.Decoder(_Written | list[_Written])
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_INTEGER: Final = re.compile(r"-?\d{1,9}")
_NOTHING: Final = frozenset({b"", b"null", b"false"})


def _members(error: msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    try:
        return _MEMBERS.decode(error)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(written: msgspec.Raw) -> str:
    """A JSON text's value, or the JSON of anything else."""
    try:
        return msgspec.json.decode(written, type=str)
    except (msgspec.DecodeError, RecursionError):
        return bytes(written).decode(errors="replace")


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
    """Parse the responses in a body; NoNodeError if it is not JSON-RPC."""
    try:
        read = _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError) as malformed:  # the latter for deep nesting
        raise NoNodeError(
            f"the address answers, but not in JSON-RPC ({malformed}); check that the URL is a node's"
        ) from malformed
    return [one.reply() for one in read] if isinstance(read, list) else [read.reply()]


def closed_error(endpoint: Endpoint) -> NodeAnswerError:
    """Error for a closed feed."""
    return NodeAnswerError(f"the feed of {endpoint.address} was closed; open another one")


def denied(endpoint: Endpoint, status: int, credentials: Credentials) -> CallRefusedError:
    """Error for a node that refuses or requires credentials; with 403 a gateway may refuse for other reasons."""
    message = f"the node at {endpoint.address} refuses the credentials (HTTP {status}); {credentials.advice}"
    return CredentialsError(message, code=status) if status == UNAUTHORIZED else NoNodeError(message, code=status)


def elsewhere(endpoint: Endpoint, status: int, location: str) -> NoNodeError:
    """Error for a redirection; names scheme, host and port of the target."""
    address = endpoint.address
    try:
        to = f", to {Endpoint.parse(location).address}" if "://" in location else ""
    except ConfigurationError:
        to = ""
    return NoNodeError(f"{address} redirects to another URL (HTTP {status}{to}): use that URL", code=status)


def is_away(status: int) -> bool:
    """True for a status of HTTP by which a gateway reports that its node is unreachable or busy.

    Not 501 and 505: a server that is no node refuses every request so.
    """
    return status in {408, 429} or (status >= 500 and status not in {501, 505})  # noqa: PLR2004 - server errors of HTTP


def unreachable(  # noqa: PLR0911 - one for each kind of failure
    endpoint: Endpoint, failure: Exception, settings: RpcSettings
) -> FailedError | NoNodeError:
    """Error for a failed connection; foreign texts may contain the URL and are omitted."""
    address = endpoint.address
    match failure:
        case aiohttp.WSServerHandshakeError(status=status, headers=headers):
            message = f"the node at {address} opens no WebSocket (HTTP {status}): check the URL's WebSocket port"
            if not is_away(status):
                return NoNodeError(message, code=status)
            fault = Fault.RATE if status == TOO_MANY else Fault.REQUEST
            return FailedError(message, address=address, fault=fault, seconds=retry_after(headers or {}))
        case aiohttp.ClientConnectorCertificateError():
            return NoNodeError(f"the certificate of the node at {address} is not accepted; check the address")
        case aiohttp.InvalidURL() | ValueError():  # an error of certificates is one too
            return NoNodeError(f"{address} is not an address of a node; check the URL")
        case aiohttp.ClientSSLError():
            return NoNodeError(f"the server at {address} does not speak TLS as required; check scheme and port")
        case aiohttp.ClientResponseError():
            return NoNodeError(f"the server at {address} answers, but not in HTTP; check scheme and port")
        case TimeoutError():
            return SlowError(
                f"the node at {address} did not answer within {settings.timeout:g} seconds", address=address
            )
        case _:
            return FailedError(
                f"no node answers at {address} ({_reason(failure)}); check that it runs and the URL is right",
                address=address,
            )


async def wrong_scheme(endpoint: Endpoint) -> NoNodeError | None:
    """Error for a server that closes our connections because it speaks TLS and the URL does not, or the reverse."""
    parts = endpoint.parts
    if parts.scheme not in _TLS or parts.hostname is None:
        return None
    tls = _TLS[parts.scheme]
    port = parts.port or (443 if tls else 80)
    if not await speaks_other(parts.hostname, port, tls=tls):
        return None
    other = parts.scheme.removesuffix("s") if tls else f"{parts.scheme}s"
    speaks = "does not speak TLS" if tls else "speaks TLS only"
    return NoNodeError(f"the server at {endpoint.address} {speaks}: write {other}://, or check the port")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """``Retry-After`` in seconds; a date counts from the response's own date. None where there is none."""
    later = (headers.get("Retry-After") or "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", later):
        return float(later)
    try:
        until, now = parsedate_to_datetime(later), parsedate_to_datetime(headers.get("Date") or "")
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):
        return None


def _reason(failure: Exception) -> str:
    match failure:
        case aiohttp.ClientConnectorDNSError():
            return "its host name is not known"
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number).lower()
        case _:
            return "the connection ended"
