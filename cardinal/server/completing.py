"""Half-published blocks while a producer runs: named, looked for once more, and asked of the node by their hash.

Rules:

1. The feed is followed first: most of them come by themselves, parents before children. What is still half then is
   asked for, parents first.
2. Nothing is sent that is higher than what was followed: the feed may be told to stay below its node's head. It is
   asked for again later, and named apart from what the node does not give.
3. Bytes that a killed producer had on their way may reach the topics after its successor has looked. So it looks again,
   around the moments of the first look, and what it has under way itself is not meant.
4. What the node does not give is left and named: consumers expire it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, FeedError
from cardinal.feeds import ByHash
from cardinal.producing.survey.mux import half_in_members
from cardinal.producing.survey.partial import place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from cardinal.feeds import BlockFeed
    from cardinal.producing.layout import Stream
    from cardinal.producing.survey.frontier import Survey
    from cardinal.producing.survey.partial import HalfPublished
    from cardinal.protocols.streams.payload import Payload
    from cardinal.transports import TransportUrl

_HELD: Final = 256
"""Blocks that are asked for before the lowest of them is sent."""


class Completing:
    """See the module.

    Arguments:
        feed: the node; only one that gives blocks by their hash is asked.
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
        self._half: dict[bytes, HalfPublished] = {}
        self._moments: tuple[int, ...] = ()
        self._under_way: set[bytes] = set()
        self._during: set[bytes] = set()
        self._done: set[bytes] = set()

    @property
    def left(self) -> tuple[HalfPublished, ...]:
        """What is half published."""
        return tuple(self._half.values())

    def above(self, highest: int) -> tuple[HalfPublished, ...]:
        """What of it is higher than this number, as far as numbers are known."""
        return tuple(one for one in self._half.values() if one.number is not None and one.number > highest)

    def begin(self, found: Survey) -> None:
        """What the first look has found."""
        self._half = {one.hash: one for one in found.half}
        self._moments = found.moments

    def taken(self, hashes: Iterable[bytes]) -> None:
        """Blocks are about to be sent."""
        taken = tuple(hashes)
        self._under_way.update(taken)
        self._during.update(taken)

    def sealed(self, block_hash: bytes) -> None:
        """A block is complete."""
        self._under_way.discard(block_hash)
        if self._half.pop(block_hash, None) is not None:
            self._done.add(block_hash)

    async def look(self) -> None:
        """Look again. Where the stream cannot be read, what is known stays."""
        if not self._moments:
            return
        before, self._during = self._half, set(self._under_way)
        with contextlib.suppress(CardinalError):
            found = await asyncio.to_thread(half_in_members, self._url, self._app, self._moments, tuple(before))
            there = self._half
            meant = (one for one in found.values() if one.hash not in self._done)
            half = [
                replace(one, number=there[one.hash].number) if one.hash in there and one.number is None else one
                for one in meant
                if one.hash in there or one.hash not in self._during
            ]
            self._half = {one.hash: one for one in sorted(half, key=place)}

    async def ask(self, highest: int) -> bool:
        """Ask for what is half published, and send it where it is not above this number; whether some of it is."""
        if not isinstance(self._feed, ByHash):
            return False
        given: list[Payload] = []
        above = False
        for block_hash in list(self._half):
            if len(given) == _HELD:
                await self._send(given)
            with contextlib.suppress(FeedError):  # it stays named; whether the node is there, `follow` finds out
                payload = await self._feed.block(block_hash)
                if payload is not None and payload.number > highest:
                    above = True
                    if block_hash in self._half:  # it may have come by itself meanwhile
                        self._half[block_hash] = replace(self._half[block_hash], number=payload.number)
                elif payload is not None:
                    given.append(payload)
        await self._send(given)
        return above

    async def _send(self, given: list[Payload]) -> None:
        for payload in sorted(given, key=lambda payload: (payload.number, payload.hash)):
            if payload.hash in self._half:  # it may have come by itself meanwhile
                await self._add(payload)
        given.clear()
