"""The ingest nodes of a URL: channels to them, and queries of their status. Foreign errors end here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cardinal._tls_probe import GRPC, speaks_other
from cardinal.errors import CardinalError, MissingExtraError, RefusedError, RemoteProtocolError, UnreachableError

try:
    import grpc
    import grpc.aio
except ModuleNotFoundError as absent:
    raise MissingExtraError("publishing to ingest nodes", "ingest") from absent

from cardinal.protocols.publish import METHOD, NONE, SERVICE, STATUS_METHOD, STATUS_SERVICE
from cardinal.protocols.publish.node_status_pb2 import ServerStatusResponse
from cardinal.publishing.settings import IngestOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.config.url import TransportUrl

CONNECT_SECONDS: Final = 10.0
"""In which a node must accept a connection, or answer a query."""
_RESPONSE_BYTES: Final = 1 << 20
_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
    }
)
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _RESPONSE_BYTES),
    ("grpc.max_send_message_length", -1),  # the session bounds sets and items
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise a new channel waits out the back-off of the one before it
    ("grpc.enable_retries", 0),
)


class NodeStatus(NamedTuple):
    """The blocks that a node has: the first and the last; None where it is empty."""

    first: int | None
    last: int | None


_UNTRUSTED: Final = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification", "is not in peer certificate")


class IngestNodes:
    """The nodes of a URL.

    Arguments:
        url: an ``ingest://`` URL; its files are read now.
        publisher_id: the name that nodes see in the user agent.

    Attributes:
        addresses: ``host:port`` of each, the preferred one first.

    Raises:
        ConfigurationError: an option or a file cannot be used.

    """

    def __init__(self, url: TransportUrl, publisher_id: str) -> None:
        self._credentials = IngestOptions.of(url).credentials()
        self._agent = (("grpc.primary_user_agent", f"cardinal-publisher/{publisher_id}"),)
        self.addresses = tuple(dict.fromkeys(url.hosts))

    def stream(self, address: str) -> tuple[grpc.aio.Channel, Callable[[], grpc.aio.StreamStreamCall]]:
        """A channel of its own for one stream, and the call that opens the stream."""
        channel = self._channel(address)
        return channel, channel.stream_stream(f"/{SERVICE}/{METHOD}")

    async def status(self) -> NodeStatus:
        """The status of the first node that answers.

        Raises:
            UnreachableError: none answers.
            RefusedError: none accepts a publisher, and one has refused it.

        """
        failures: list[CardinalError] = []
        for address in self.addresses:
            try:
                return await self._status(address)
            except CardinalError as failure:
                failures.append(failure)
        raise next((failure for failure in failures if not failure.retriable), failures[0])

    async def _status(self, address: str) -> NodeStatus:
        async with self._channel(address) as channel:
            query = channel.unary_unary(f"/{STATUS_SERVICE}/{STATUS_METHOD}")
            try:
                found = ServerStatusResponse.FromString(await query(b"", timeout=CONNECT_SECONDS))
            except Exception as error:
                if (failure := failure_of(error, address)) is None:
                    raise
                raise _untrusted(error, address) or await self._wrong_tls(address) or failure from None
        first, last = found.first_available_block, found.last_available_block
        return NodeStatus(None, None) if NONE in (first, last) else NodeStatus(first, last)

    async def _wrong_tls(self, address: str) -> RefusedError | None:
        """Error for a node that speaks TLS where the URL does not, or the reverse: no wait heals it."""
        host, _, port = address.rpartition(":")
        tls = self._credentials is not None
        if not await speaks_other(host.strip("[]"), int(port), tls=tls, greeting=GRPC):
            return None
        remedy = "does not speak TLS: leave tls=1 out" if tls else "speaks TLS only: add ?tls=1"
        return RefusedError(f"the ingest node {address} {remedy}")

    def _channel(self, address: str) -> grpc.aio.Channel:
        options = (*_OPTIONS, *self._agent)
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, self._credentials, options=options)


def _untrusted(error: Exception, address: str) -> RefusedError | None:
    """Error for a certificate that is not accepted: no wait heals it. A running publisher waits for another one."""
    details = (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else ""
    if not any(word in details for word in _UNTRUSTED):
        return None
    return RefusedError(
        f"the certificate of the ingest node {address} is not accepted: name its authority by ssl.ca.location, and the "
        "node as its certificate does"
    )


def failure_of(error: BaseException, address: str) -> CardinalError | None:
    """The error of ours for one of a stream or query; None for a bug."""
    match error:
        case grpc.aio.AioRpcError():
            return _of_status(error, address)
        case TimeoutError() | asyncio.InvalidStateError():
            return UnreachableError(f"the ingest node {address} does not answer", address=address)
        case RemoteProtocolError():
            return UnreachableError(f"{address} does not speak the publish protocol: {error}", address=address)
        case _:
            return None


def _of_status(error: Any, address: str) -> CardinalError:  # noqa: ANN401 - grpc's, which has no types
    code, details = error.code(), error.details() or ""
    if code in _REFUSALS:
        return RefusedError(f"{address} refuses publishers ({code.name.lower()}): is it an ingest node?")
    if any(word in details for word in ("CERTIFICATE_VERIFY_FAILED", "SSL_ERROR", "andshake")):
        return UnreachableError(
            f"there is no encrypted connection to the ingest node {address}: check tls, ssl.ca.location, the name in "
            "its certificate, and ssl.certificate.location where it requires one",
            address=address,
        )
    return UnreachableError(f"the ingest node {address} cannot be reached ({code.name.lower()})", address=address)
