"""Links of a node to its peers, both ways."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from cardinal_ingest.body_exchange.counts import LOG, PeerCounts
from cardinal_ingest.body_exchange.fetching import PeerFetcher
from cardinal_ingest.body_exchange.serving import PeerServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal_ingest.body_exchange.served_bodies import Shelf
    from cardinal_ingest.body_exchange.settings import PeerSettings
    from cardinal_ingest.node.node import IngestNode


class Peers:
    """Links of one node.

    Arguments:
        node: takes what is fetched.
        shelf: what is served.
        settings: of the links.
        now: a monotonic clock.

    Attributes:
        counts: of the links.

    """

    def __init__(
        self,
        node: IngestNode,
        shelf: Shelf,
        settings: PeerSettings,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = PeerCounts()
        self._shelf = shelf
        self._settings = settings
        self._fetcher = PeerFetcher(node, shelf.objects, settings, self.counts, now)

    @property
    def absent(self) -> int:
        """Peers to which there is no link."""
        return len(self._settings.peers) - self.counts.connected

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of bodies that are requested, arriving, being verified or stored."""
        return self._fetcher.bytes_in_flight

    async def run(self, listening: Callable[[int], object] = lambda _: None) -> None:
        """Serve and fetch until cancelled.

        Arguments:
            listening: called with the port where peers are served.

        Raises:
            ConfigurationError: the address for peers cannot be had.

        """
        async with AsyncExitStack() as opened:
            if self._settings.listen is not None:
                server = await opened.enter_async_context(PeerServer(self._shelf, self._settings, self.counts))
                LOG.info("peers are served on port %(port)d", {"kind": "listening", "port": server.port})
                listening(server.port)
            await self._fetcher.run()
            await asyncio.Event().wait()
