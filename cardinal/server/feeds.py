"""What services need of a feed of blocks, and how a URL finds one.

:class:`cardinal_connectors.BlockFeed` says in full what a feed does; here stands what is called, and what a feed may
offer beyond it. Feeds are guests: they come by the entry points ``cardinal.connectors``, one for each scheme.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable
from urllib.parse import urlsplit

from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef

_GROUP: Final = "cardinal.connectors"


class Feed(Protocol):
    """What every feed does."""

    async def chain_id(self) -> int:
        """The id of the chain that the node serves."""
        ...

    def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        """Backfill, then follow the head."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


@runtime_checkable
class ByHash(Protocol):
    """A feed whose node gives blocks by their hash, also such that are not on its chain any more."""

    async def block(self, block_hash: bytes) -> Payload | None:
        """The block, checked as all others; None where the node does not have it."""
        ...


@runtime_checkable
class Learning(Protocol):
    """A feed that holds its node to the weights of what is published."""

    def learn(self, weights: Mapping[bytes, int]) -> None:
        """Take the weights of blocks that are complete on the topics, by hash."""
        ...


@runtime_checkable
class Locating(Protocol):
    """A feed that finds a block's number by more than the number."""

    async def locate(self, text: str) -> int:
        """The number of the block that a user named, by number, hash or time. FeedError: there is none."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A feed whose blocks are all there, so that it can be asked beforehand whether a stream may begin with one."""

    async def check_beginning(self, start: int | None, until: int | None) -> None:
        """ConfigurationError where a new stream from ``start`` (None: the feed's first) to ``until`` would be none."""
        ...


@runtime_checkable
class Aiming(Protocol):
    """A feed that knows how far it is going."""

    @property
    def target(self) -> int | None:
        """The number of the block that is being gone to now; None while it is not known."""
        ...


def open_feed(url: str, *, chain_id: int | None = None) -> Feed:
    """The feed for a URL, found by its scheme among the entry points ``cardinal.connectors``.

    Raises:
        ConfigurationError: no feed is installed for the scheme, the URL has none, or it cannot be read.

    """
    points = {point.name: point for point in entry_points(group=_GROUP)}
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() not in points:
        known = ", ".join(f"{name}://" for name in sorted(points)) or "none is installed"
        raise ConfigurationError(
            f"no feed of blocks is known for this URL: it begins with one of {known}", setting="from"
        )
    try:
        urlsplit(url)
    except ValueError:
        raise ConfigurationError(
            f"the URL of the node cannot be read: write {scheme.lower()}://host:port", setting="from"
        ) from None
    feed: Any = points[scheme.lower()].load()(url, chain_id=chain_id)
    return feed  # type: ignore[no-any-return] # what an entry point gives is known by contract only
