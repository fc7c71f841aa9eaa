"""The ingest nodes of a URL: connections to them, and queries of their status. Foreign errors end here."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal._tls_probe import GRPC, speaks_other
from cardinal.errors import CardinalError, MissingExtraError, RefusedError, RemoteProtocolError, UnreachableError

try:
    from cardinal_ingest.rpc.client import connected
except ModuleNotFoundError as absent:
    raise MissingExtraError("publishing to ingest nodes", "ingest") from absent

from cardinal_ingest.protocols.publish import METHOD, NONE, SERVICE, STATUS_METHOD, STATUS_SERVICE
from cardinal_ingest.protocols.publish.node_status_pb2 import ServerStatusResponse
from cardinal_ingest.publisher.settings import IngestOptions
from cardinal_ingest.rpc.status import Code, RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cardinal.config.url import TransportUrl
    from cardinal_ingest.rpc.stream import Stream

CONNECT_SECONDS: Final = 10.0
"""In which a node must accept a connection, or answer a query."""
_RESPONSE_BYTES: Final = 1 << 20
_REFUSALS: Final = frozenset({Code.UNIMPLEMENTED, Code.PERMISSION_DENIED, Code.INVALID_ARGUMENT})


class NodeStatus(NamedTuple):
    """The blocks that a node has: the first and the last; None where it is empty."""

    first: int | None
    last: int | None


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
        self._tls = IngestOptions.of(url).context()
        self._agent = f"cardinal-publisher/{publisher_id}"
        self.addresses = tuple(dict.fromkeys(url.hosts))

    @asynccontextmanager
    async def stream(self, address: str) -> AsyncIterator[Stream]:
        """A stream to a node, on a connection of its own."""
        async with (
            connected(address, self._tls, limit=_RESPONSE_BYTES, agent=self._agent) as client,
            client.call(f"/{SERVICE}/{METHOD}") as stream,
        ):
            yield stream

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
        try:
            async with (
                asyncio.timeout(CONNECT_SECONDS),
                connected(address, self._tls, limit=_RESPONSE_BYTES, agent=self._agent) as client,
            ):
                found = ServerStatusResponse.FromString(await client.query(f"/{STATUS_SERVICE}/{STATUS_METHOD}", b""))
        except Exception as error:
            if (failure := failure_of(error, address)) is None:
                raise
            raise _untrusted(error, address) or await self._wrong_tls(address) or failure from None
        first, last = found.first_available_block, found.last_available_block
        return NodeStatus(None, None) if NONE in (first, last) else NodeStatus(first, last)

    async def _wrong_tls(self, address: str) -> RefusedError | None:
        """Error for a node that speaks TLS where the URL does not, or the reverse: no wait heals it."""
        host, _, port = address.rpartition(":")
        tls = self._tls is not None
        if not await speaks_other(host.strip("[]"), int(port), tls=tls, greeting=GRPC):
            return None
        remedy = "does not speak TLS: leave tls=1 out" if tls else "speaks TLS only: add ?tls=1"
        return RefusedError(f"the ingest node {address} {remedy}")


def _untrusted(error: Exception, address: str) -> RefusedError | None:
    """Error for a certificate that is not accepted: no wait heals it. A running publisher waits for another one."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    return RefusedError(
        f"the certificate of the ingest node {address} is not accepted: name its authority by ssl.ca.location, and the "
        "node as its certificate does"
    )


def failure_of(error: BaseException, address: str) -> CardinalError | None:
    """The error of ours for one of a stream or query; None for a bug."""
    match error:
        case RpcError(code=code):
            return _of_status(code, address)
        case TimeoutError():
            message = f"the ingest node {address} does not answer"
        case ssl.SSLError():
            return _of_status(Code.UNAUTHENTICATED, address)
        case OSError():
            return _of_status(Code.UNAVAILABLE, address)
        case RemoteProtocolError():
            message = f"{address} does not speak the publish protocol: {error}"
        case _:
            return None
    return UnreachableError(message, address=address)


def _of_status(code: Code, address: str) -> CardinalError:
    if code is Code.UNAUTHENTICATED:
        return UnreachableError(
            f"there is no encrypted connection to the ingest node {address}: check tls, ssl.ca.location, the name in "
            "its certificate, and ssl.certificate.location where it requires one",
            address=address,
        )
    if code in _REFUSALS:
        return RefusedError(f"{address} refuses publishers ({code.name.lower()}): is it an ingest node?")
    return UnreachableError(f"the ingest node {address} cannot be reached ({code.name.lower()})", address=address)
