"""Partially published blocks while a producer runs: named, searched once more, and requested by hash from the node.

Rules:

1. The feed is followed first: most of them come by themselves, parents before children. What is still partially
   published then is requested, parents first.
2. Nothing is sent that is higher than what was followed: the feed may be set to stay below its node's head. It is
   requested again later, and reported apart from what the node does not have.
3. Bytes that a killed producer had in flight may reach the topics after its successor has read them. So they are read
   once more, around the moments of the first survey; what this service has in flight itself does not count.
4. What the node answers that it does not have, and what a feed without requests by hash did not yield, is reported and
   left: consumers abandon it. What could not be requested is left for the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, FeedError
from cardinal.feeds import ByHash
from cardinal.producing.survey.mux import partial_in_members
from cardinal.producing.survey.partial import place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from cardinal.feeds import BlockFeed
    from cardinal.producing.layout import Stream
    from cardinal.producing.survey.frontier import Survey
    from cardinal.producing.survey.partial import PartialBlock
    from cardinal.protocols.streams.payload import Payload
    from cardinal.transports import TransportUrl

_HELD: Final = 256
"""Blocks that are requested before the lowest of them is sent."""


class PartialBlocks:
    """Completes partially published blocks.

    Arguments:
        feed: the node; requests need one that yields blocks by their hash.
        url, app: the stream.
        add: sends a block.

    """

    def __init__(
        self, feed: BlockFeed, url: str | TransportUrl, app: Stream, add: Callable[[Payload], Awaitable[None]]
    ) -> None:
        self._feed = feed
        self._url = url
        self._app = app
        self._add = add
        self._partial: dict[bytes, PartialBlock] = {}
        self._absent: set[bytes] = set()
        self._moments: tuple[int, ...] = ()
        self._in_flight: set[bytes] = set()
        self._during: set[bytes] = set()
        self._done: set[bytes] = set()

    @property
    def left(self) -> tuple[PartialBlock, ...]:
        """The blocks that are partially published."""
        return tuple(self._partial.values())

    def above(self, highest: int) -> tuple[PartialBlock, ...]:
        """Those of a known number higher than this one."""
        return tuple(one for one in self._partial.values() if one.number is not None and one.number > highest)

    @property
    def absent(self) -> frozenset[bytes]:
        """The hashes of those that the node does not have."""
        return frozenset(self._absent & self._partial.keys())

    def begin(self, found: Survey) -> None:
        """Begin with the results of the first survey."""
        self._partial = {one.hash: one for one in found.partial}
        self._moments = found.moments

    def sends(self, hashes: Iterable[bytes]) -> None:
        """Blocks are about to be sent."""
        sent = tuple(hashes)
        self._in_flight.update(sent)
        self._during.update(sent)

    def sealed(self, block_hash: bytes) -> None:
        """A block is complete."""
        self._in_flight.discard(block_hash)
        if self._partial.pop(block_hash, None) is not None:
            self._done.add(block_hash)

    async def look(self) -> None:
        """Read the topics once more. Where the stream cannot be read, the result of the last time stays."""
        if not self._moments:
            return
        before, self._during = self._partial, set(self._in_flight)
        with contextlib.suppress(CardinalError):
            found = await asyncio.to_thread(partial_in_members, self._url, self._app, self._moments, tuple(before))
            now = self._partial
            relevant = (one for one in found.values() if one.hash not in self._done)
            partial = [
                replace(one, number=now[one.hash].number) if one.hash in now and one.number is None else one
                for one in relevant
                if one.hash in now or one.hash not in self._during
            ]
            self._partial = {one.hash: one for one in sorted(partial, key=place)}

    async def request(self, highest: int) -> bool:
        """Request the partially published blocks and send those up to this number; True where some are higher."""
        if not isinstance(self._feed, ByHash):
            self._absent = self._partial.keys() - {one.hash for one in self.above(highest)}
            return False
        fetched: list[Payload] = []
        above = False
        for block_hash in list(self._partial):
            if len(fetched) == _HELD:
                await self._send(fetched)
            with contextlib.suppress(FeedError):  # it stays reported; `follow` raises where the node is unreachable
                payload = await self._feed.block(block_hash)
                (self._absent.add if payload is None else self._absent.discard)(block_hash)
                if payload is not None and payload.number > highest:
                    above = True
                    if block_hash in self._partial:  # it may have come by itself meanwhile
                        self._partial[block_hash] = replace(self._partial[block_hash], number=payload.number)
                elif payload is not None:
                    fetched.append(payload)
        await self._send(fetched)
        return above

    async def _send(self, fetched: list[Payload]) -> None:
        for payload in sorted(fetched, key=lambda payload: (payload.number, payload.hash)):
            if payload.hash in self._partial:  # it may have come by itself meanwhile
                await self._add(payload)
        fetched.clear()
