"""Service of an ingest node: publishers in front, the store behind them, the topics at the end."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cardinal.config.settings import find_url
from cardinal.server.produce.connection import StreamConnection
from cardinal.server.produce.settings import ProduceSettings
from cardinal.texts import Count
from cardinal_ingest.body_exchange.objects import Objects
from cardinal_ingest.body_exchange.served_bodies import Shelf
from cardinal_ingest.body_exchange.service import Peers
from cardinal_ingest.body_exchange.settings import PeerSettings
from cardinal_ingest.node.blocks import blocks_of, largest_message
from cardinal_ingest.node.limits import MEBIBYTE, Limits
from cardinal_ingest.node.listener import Listener
from cardinal_ingest.node.node import IngestNode
from cardinal_ingest.node.promoter import Promoter, Promoting
from cardinal_ingest.node.store import BodyStore
from cardinal_ingest.node.tls import peer_contexts, server_context
from cardinal_ingest.protocols.publish import ArbiterSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.transports import TransportUrl
    from cardinal_ingest.node.metrics import IngestStatus, MemberStatus
    from cardinal_ingest.protocols.publish import BlockId

LOG: Final = logging.getLogger("cardinal.ingest")
_BLOCK_TIME: Final = {"evm": 12.0}
_SIDE_BRANCHES: Final = 32
"""Blocks of one number that an identity may send: with fewer, a chain that reorganizes often enough at one number, or
two publishers behind one address, would be refused for good there.
"""
_REPORT_SECONDS: Final = 2.0
_SCRAPE_SECONDS: Final = 5.0
SHUTDOWN_SECONDS: Final = 5.0
"""In which a node that is stopped puts acknowledged blocks on the topics; the rest waits for its next start."""


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """Settings of the service.

    Attributes:
        node_id: the node's name, which is its producer's id.
        listen: ``HOST:PORT`` for publishers.
        data: the folder of its store.
        first: the first block of an empty node; None: the first that a publisher offers.
        limits: of memory, disk and publishers.
        certificate, key, ca: PEM files of TLS, see :func:`.tls.server_context`.
        metrics: ``HOST:PORT`` of metrics and health; None: they are not served.
        chain: TOML file with the parameters of an Ethereum-like chain; None: its preset.
        peers: links to other nodes; TLS is added, by the files.

    """

    node_id: str
    listen: str
    data: Path
    first: int | None = None
    limits: Limits = field(default_factory=Limits)
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    metrics: str | None = None
    chain: Path | None = None
    peers: PeerSettings = field(default_factory=PeerSettings)


class Parts:
    """The parts of a running node, and its status; ``member``: that of a cluster's member."""

    def __init__(
        self,
        node: IngestNode,
        store: BodyStore,
        promoter: Promoting,
        peers: Peers,
        member: Callable[[], MemberStatus | None] = lambda: None,
    ) -> None:
        self._member = member
        self.node = node
        self.store = store
        self.promoter = promoter
        self.peers = peers

    @property
    def waits_for(self) -> str:
        """Why blocks are not accepted, or not put on the topics; empty where they are."""
        return "; ".join(filter(None, (self.node.refuses, self.node.waits_for, self.promoter.waits_for)))

    def serve_metrics(self, address: str, opened: ExitStack) -> None:
        """Serve metrics and health; the status is taken on the event loop."""
        from cardinal.metrics import Endpoint  # noqa: PLC0415 - an extra of its own
        from cardinal_ingest.node.metrics import IngestMetrics  # noqa: PLC0415 - the same

        loop = asyncio.get_running_loop()

        async def status() -> tuple[IngestStatus, MemberStatus | None]:
            return self.status(), self._member()

        metrics = IngestMetrics(lambda: asyncio.run_coroutine_threadsafe(status(), loop).result(_SCRAPE_SECONDS))
        self.node.observe = metrics.acknowledged
        endpoint = opened.enter_context(Endpoint(address, metrics.registry, lambda: self.waits_for))
        LOG.info("metrics at http://%(address)s/metrics", {"kind": "metrics", "address": endpoint.address})

    def status(self) -> IngestStatus:
        """The numbers of this moment."""
        from cardinal_ingest.node.metrics import IngestStatus  # noqa: PLC0415 - an extra of its own

        node, promoter, peers = self.node, self.promoter, self.peers
        return IngestStatus(
            ready=not self.waits_for,
            publishers=node.publishers,
            open_blocks=node.open_blocks,
            memory_bytes=node.memory,
            pool_bytes=self.store.pool_bytes,
            waiting_blocks=promoter.waiting,
            promotion_lag_seconds=promoter.lag,
            last_acknowledged=node.last,
            last_promoted=promoter.last,
            acknowledged_blocks_total=node.acknowledged,
            promoted_blocks_total=promoter.promoted,
            ignored_sets_total=node.ignored,
            responses_total=dict(node.responses),
            first_copies_total=dict(node.first_copies),
            peers=peers.counts.connected,
            peers_absent=peers.absent,
            peer_clients=peers.counts.clients,
            peer_bytes=peers.bytes_in_flight,
            fetched_blocks_total=peers.counts.fetched,
            served_blocks_total=peers.counts.served,
            peer_refusals_total=dict(peers.counts.refusals),
            events_total=dict(node.events),
        )

    async def report(self) -> None:
        """Log progress, until cancelled."""
        said, before = time.monotonic(), self.node.acknowledged
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            now, node = time.monotonic(), self.node
            if node.acknowledged != before:
                LOG.info(
                    "block %(block)s acknowledged: %(blocks_per_second).1f blocks/s, %(publishers)s, "
                    "%(open_blocks)s, %(waiting_blocks)s (%(waiting_mib).1f MiB) not on the topics",
                    {
                        "kind": "progress",
                        "block": node.last,
                        "blocks_per_second": round((node.acknowledged - before) / (now - said), 3),
                        "publishers": Count(node.publishers, "publisher"),
                        "open_blocks": Count(node.open_blocks, "open block"),
                        "waiting_blocks": Count(self.promoter.waiting, "block"),
                        "waiting_mib": round(self.store.pool_bytes / MEBIBYTE, 3),
                    },
                )
            said, before = now, node.acknowledged


def arbiter_settings(app: Application, first: int | None, *, forks: bool) -> ArbiterSettings:
    """The times of the application, and the node's first block."""
    block_time = _BLOCK_TIME.get(app.name, 2.0)
    return ArbiterSettings(
        block_time=block_time,
        idle_timeout=4 * block_time,
        block_timeout=16 * block_time,
        first=first,
        reorg_threshold=app.reorg_threshold if forks else None,
        side_branches=_SIDE_BRANCHES,
    )


def _peer_settings(settings: IngestSettings) -> PeerSettings:
    """The links with TLS; bodies are retained where they are served."""
    contexts = peer_contexts(settings.certificate, settings.key, settings.ca)
    peers = replace(settings.peers, server_tls=contexts.server, client_tls=contexts.client)
    return peers if peers.listen is not None else replace(peers, retain=0)


async def run_ingest(
    url: str | TransportUrl, app: Application, settings: IngestSettings, listening: Callable[[int], object]
) -> None:
    """Run a node until it is cancelled.

    Arguments:
        url: the stream's.
        app: the application.
        settings: the node's.
        listening: called with the port when publishers may come.

    Raises:
        CardinalError: what waiting does not heal.

    """
    found = find_url(url)
    if found.scheme == "kafka":
        found = found.with_options({"transactional": "update"})
    blocks = blocks_of(app, settings.chain, largest_message(found))
    arbiting = arbiter_settings(app, settings.first, forks=blocks.forks)
    tls = server_context(settings.certificate, settings.key, settings.ca)
    linking = _peer_settings(settings)
    store = BodyStore(settings.data, app.chain, retain=linking.retain)
    connection = StreamConnection(found, app, ProduceSettings(settings.node_id))
    promoter = Promoter(store, blocks, connection)
    opened = ExitStack()
    try:
        shelf = Shelf(store, Objects(forks=blocks.forks))

        def acknowledged(block: BlockId) -> None:
            promoter.add(block)
            shelf.add(block)

        def obstacle() -> str:
            return settings.limits.obstacle(store, store.pool_bytes if promoter.waiting else 0, "not on the topics")

        node = IngestNode(store, blocks, arbiting, acknowledged, limits=settings.limits, obstacle=obstacle)
        peers = Peers(node, shelf, linking)
        parts = Parts(node, store, promoter, peers)
        if settings.metrics is not None:
            parts.serve_metrics(settings.metrics, opened)
        async with Listener(node, settings.listen, tls) as listener:
            LOG.info("publishers are served on port %(port)d", {"kind": "listening", "port": listener.port})
            listening(listener.port)
            promoting, linked = map(asyncio.ensure_future, (promoter.run(), peers.run()))
            running = [promoting, linked, *map(asyncio.ensure_future, (node.run(), parts.report()))]
            try:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                await done.pop()  # raises why; unlike gather, a wait that is cancelled lets the promoter finish
            finally:
                linked.cancel()
                await asyncio.wait((linked,))
                await node.close()
                if not promoting.done():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(promoter.drained(), SHUTDOWN_SECONDS)
                for task in running:
                    task.cancel()
                if promoter.waiting:
                    waiting = Count(promoter.waiting, "block is", "blocks are")
                    fields = {"kind": "waiting", "waiting_blocks": waiting}
                    LOG.info("%(waiting_blocks)s not on the topics yet: the next start puts them there", fields)
    finally:
        await asyncio.to_thread(opened.close)
        await connection.close()
        await asyncio.to_thread(store.close)
