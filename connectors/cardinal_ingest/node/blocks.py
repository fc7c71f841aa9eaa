"""Blocks of an application as an ingest node sees them: verified as items, promoted as payloads."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from cardinal.errors import ApplicationError, LocalProtocolError
from cardinal.protocols.streams import split
from cardinal.transports.kafka.settings import kafka_settings
from cardinal_ingest import items as opaque
from cardinal_ingest.body import payload_of, unframe, weight_of
from cardinal_ingest.protocols.publish import read_set

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.config.url import TransportUrl
    from cardinal.protocols.streams import Payload
    from cardinal_ingest.protocols.publish import BlockId


_RECORD_BYTES: Final = 1_024
"""Key, headers and framing of a record, at most."""


class Blocks(Protocol):
    """Blocks of an application, for a node."""

    forks: bool
    """True if headers carry hashes."""

    reads_content: bool
    """True if verification decodes the content of the items, which is slow."""

    def verify(self, block: BlockId, parent: BlockId, body: bytes) -> None:
        """Raise an ApplicationError for a body that is not this block."""
        ...

    def payload(self, number: int, body: bytes) -> Payload:
        """Payload to publish of a stored body."""
        ...

    def weight(self, number: int, body: bytes) -> int:
        """The weight of a verified block."""
        ...


class OpaqueBlocks:
    """Blocks of the application items: numbers, and items that mean something to others only.

    Arguments:
        largest: bytes of a message that the topics accept.

    """

    forks = False
    reads_content = False

    def __init__(self, largest: float = inf) -> None:
        self._largest = largest

    def verify(self, block: BlockId, parent: BlockId, body: bytes) -> None:
        """Each message fits the topics; the protocol has checked the structure."""
        del parent
        size = min(max(map(len, unframe(body)), default=0), opaque.PART_BYTES)
        if size + _RECORD_BYTES > self._largest:
            raise _too_large(block.number, size, self._largest)

    def payload(self, number: int, body: bytes) -> Payload:
        """Each item as it came."""
        return opaque.payload(opaque.Block(number, unframe(body)))

    def weight(self, number: int, body: bytes) -> int:
        """Its number: there is one chain."""
        del body
        return number


class PayloadBlocks:
    """Blocks whose items are a payload: any other application.

    Arguments:
        app: the application, whose verifier is run.
        chain: file with the parameters of its chain; None: those that are known.
        largest: bytes of a message that the topics accept.

    """

    forks = True
    reads_content = True

    def __init__(self, app: Application, chain: Path | None, largest: float = inf) -> None:
        self._app = app
        self._largest = largest
        self._check = app.verifier(chain)
        self._chain_id = int(app.chain.rpartition(":")[2])

    def verify(self, block: BlockId, parent: BlockId, body: bytes) -> None:
        """The body is that of a payload of this chain, the one that its header names, and fits the topics."""
        payload, chain_id = payload_of(unframe(body))
        if (payload.number, payload.hash, payload.parent) != (*block, parent.hash):
            raise ApplicationError(f"the items are of block {payload.number}, and their stream's header is of another")
        if chain_id != self._chain_id:
            raise ApplicationError(f"block {payload.number} is of chain {chain_id}, not of {self._chain_id}")
        if self._check is not None:
            self._check(payload)
        try:
            messages = split(payload, self._app.topics, self._app.default_topic)
        except LocalProtocolError as error:
            raise ApplicationError(f"block {payload.number} does not fit the topics: {error}") from None
        size = max(len(message.key) + len(message.value) for message in messages)
        if size + _RECORD_BYTES > self._largest:
            raise _too_large(payload.number, size, self._largest)

    def payload(self, number: int, body: bytes) -> Payload:
        """The payload that the publisher wrote."""
        del number
        return payload_of(unframe(body)).payload

    def weight(self, number: int, body: bytes) -> int:
        """The weight in its header."""
        del number
        return weight_of(unframe(body)[0])


def check_items(body: bytes) -> None:
    """Raise an ApplicationError for a body that no publisher can push: it is a header, content, and then a proof."""
    seen = read_set(unframe(body))
    if seen is None or seen.header is None or not seen.proven:
        raise ApplicationError("the body of a block begins with its header, and ends with its proof")


def largest_message(url: TransportUrl) -> float:
    """Bytes of a message that the topics of a stream accept, as they are created."""
    return kafka_settings(url).max_message_bytes if url.scheme == "kafka" else inf


def _too_large(number: int, size: int, largest: float) -> ApplicationError:
    return ApplicationError(
        f"block {number} has a message of {size:,} bytes, and the topics accept {largest:,.0f}: create them with a "
        "higher cardinal.max.message.bytes"
    )


def blocks_of(app: Application, chain: Path | None = None, largest: float = inf) -> Blocks:
    """The blocks of an application.

    Arguments:
        app: the application.
        chain: TOML file with the parameters of an Ethereum-like chain; None: its preset.
        largest: bytes of a message that the topics accept.

    Raises:
        ConfigurationError: the file cannot be used, or the application is none that has one.
        MissingExtraError: the application's extra is not installed.

    """
    if app.name != "items":
        return PayloadBlocks(app, chain, largest)
    app.verifier(chain)  # refuses the file of a chain
    return OpaqueBlocks(largest)
