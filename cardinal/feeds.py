"""Feeds of blocks: their protocol, its optional abilities, and their lookup by URL scheme.

A feed is an entry point of the group ``cardinal.feeds``, named after its URL scheme::

    [project.entry-points."cardinal.feeds"]
    my = "my_package:open_feed"                       # cardinal produce --from my://… --to kafka://…

It is a callable ``open_feed(url: NodeUrl, *, chain_id: int | None = None) -> BlockFeed`` and refuses options of the URL
that it does not have. :mod:`cardinal_devkit.testing.feeds` checks a feed against the laws of :class:`BlockFeed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cardinal import plugins
from cardinal.config.url import NodeUrl, parse_node_url
from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef


@runtime_checkable
class BlockFeed(Protocol):
    """Feed of one chain's blocks, in an order in which they can be published.

    Laws: a payload is yielded only after its checks passed; its parent was yielded before it, is in ``published``, or
    is the first payload's parent (a reorg of the first block yields its sibling), or it is the first; after a reorg the
    next payload is the new branch's first block above the common ancestor; no block of the node's chain is left out.
    """

    async def chain_id(self) -> int:
        """The id of the node's chain."""
        ...

    def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        """Backfill, then follow the head.

        Arguments:
            published: the newest published blocks, one chain, oldest first. The feed continues after the highest of
                them that is on the node's chain.
            start: the first block number, where nothing is published yet; default 0.
            until: stop after the block with this number is yielded and is on the node's chain; default: never.

        Raises:
            NodeUnreachableError, NodeAnswerError, WrongChainError, IntegrityError.

        """
        ...

    async def close(self) -> None:
        """Release connections. May be called twice."""
        ...


@runtime_checkable
class ByHash(Protocol):
    """A feed that fetches blocks by hash, also orphaned ones."""

    async def block(self, block_hash: bytes) -> Payload | None:
        """The block, checked like all others; None where the node does not have it."""
        ...


@runtime_checkable
class Learning(Protocol):
    """A feed that checks its node against the weights of published blocks."""

    def learn(self, weights: Mapping[bytes, int]) -> None:
        """Add the weights of blocks that are complete on the topics, by hash."""
        ...


@runtime_checkable
class Originating(Protocol):
    """A feed whose weights may count from an origin, which all producers of a stream have to share.

    Weights are a function of the chain and of the stream, never of where one producer began. So a producer of a stream
    without published blocks settles the origin on the topics first: the earliest proposal there counts for all.
    """

    async def origin(self, start: int | None) -> str:
        """The proposal for a stream that begins with this block; empty where weights follow from the chain alone."""
        ...

    def adopt(self, origin: str) -> None:
        """Count weights from this origin, which may be another producer's."""
        ...


@runtime_checkable
class Locating(Protocol):
    """A feed that finds a block's number by its hash or time."""

    async def locate(self, text: str) -> int:
        """The number of the block with this number, hash or time. FeedError: there is none."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A feed of a fixed set of blocks, which can check a start before a stream is created."""

    async def check_beginning(self, start: int | None, until: int | None) -> None:
        """ConfigurationError where it has no blocks from ``start`` (None: its first) to ``until``."""
        ...


@dataclass(frozen=True, slots=True)
class NodeReport:
    """State of one node.

    Attributes:
        address: its URL without credentials.
        head: the number of its head; None before it is known.
        requests: number of calls that were sent to it.
        errors: number of failures, by kind.

    """

    address: str
    head: int | None
    requests: int
    errors: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FeedReport:
    """State of a feed's nodes.

    Attributes:
        nodes: all of them, the followed one first.
        waits_for: the reason why no block can come, a sentence; empty while the followed node answers.

    """

    nodes: tuple[NodeReport, ...] = ()
    waits_for: str = ""

    @property
    def head(self) -> int | None:
        """The number of the followed node's head; None before it is known."""
        return self.nodes[0].head if self.nodes else None


@runtime_checkable
class HasHead(Protocol):
    """A feed of nodes: a stream may begin at the head."""

    async def head(self) -> int:
        """The number of the highest block that the feed yields now, as lag and finality allow."""
        ...

    @property
    def report(self) -> FeedReport:
        """State of the nodes."""
        ...


@runtime_checkable
class Aiming(Protocol):
    """A feed that reports its target."""

    @property
    def target(self) -> int | None:
        """The number of the highest block that it is fetching up to; None before it is known."""
        ...


def open_feed(url: str | NodeUrl, *, chain_id: int | None = None) -> BlockFeed:
    """Open the feed of a URL, found by its scheme.

    Arguments:
        url: see :mod:`cardinal.config.url`.
        chain_id: refuse a node of another chain; None accepts any.

    Raises:
        ConfigurationError: no feed is installed for the scheme, or the URL or an option cannot work.

    """
    url = parse_node_url(url)
    if url.scheme not in (schemes := plugins.names(plugins.FEEDS)):
        known = ", ".join(f"{name}://" for name in schemes) or "none is installed"
        raise ConfigurationError(f"no feed has this URL's scheme: write one of {known}", setting="from")
    feed: Any = plugins.load(plugins.FEEDS, url.scheme)(url, chain_id=chain_id)
    return feed  # type: ignore[no-any-return] # an entry point's type is known by contract only
