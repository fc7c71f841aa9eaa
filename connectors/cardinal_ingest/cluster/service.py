"""Service of a cluster's member: publishers in front, agreement with the other members, the topics at the end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from cardinal._concurrency import run_in_thread
from cardinal.config.options import nearest
from cardinal.config.settings import find_url
from cardinal.errors import ConfigurationError
from cardinal.server.log_fields import SENTENCE
from cardinal.server.produce.conditions import Conditions
from cardinal_ingest.body_exchange.objects import Objects
from cardinal_ingest.body_exchange.served_bodies import Shelf
from cardinal_ingest.body_exchange.service import Peers
from cardinal_ingest.cluster.agreement import LOG, Agreement
from cardinal_ingest.cluster.claims import ClaimWriter
from cardinal_ingest.cluster.config import load_cluster
from cardinal_ingest.cluster.keys import load_key
from cardinal_ingest.cluster.links import Links
from cardinal_ingest.cluster.log_state import cluster_before
from cardinal_ingest.cluster.promoter import ClusterPromoter
from cardinal_ingest.cluster.promotion_writer import PromotionWriter
from cardinal_ingest.cluster.reading import LogReader
from cardinal_ingest.cluster.rows import ReplicaRows
from cardinal_ingest.cluster.topics import ClusterTopics
from cardinal_ingest.node.blocks import blocks_of, largest_message
from cardinal_ingest.node.listener import Listener
from cardinal_ingest.node.node import IngestNode
from cardinal_ingest.node.service import Parts, arbiter_settings
from cardinal_ingest.node.store import BodyStore
from cardinal_ingest.node.tls import peer_contexts, server_context
from cardinal_ingest.protocols.mesh import Identity
from cardinal_ingest.protocols.publish import BlockId
from cardinal_ingest.protocols.replication import Promotion, Replica, ReplicationSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.config.url import TransportUrl
    from cardinal.transports.kafka.admin import TopicInfo
    from cardinal_ingest.cluster.config import ClusterFile
    from cardinal_ingest.cluster.keys import SecretKey
    from cardinal_ingest.node.metrics import MemberStatus
    from cardinal_ingest.node.service import IngestSettings

_ALONE_SECONDS: Final = 7.0
"""Time without a majority after which publishers are sent to other members; a silent link is noticed after 3 s more."""
_WATCH_SECONDS: Final = 0.1


class Member:
    """One member of a cluster, from its data folder on.

    Arguments:
        url, app: the stream.
        settings: of the node.
        cluster: its members.
        key: of this one.

    """

    def __init__(
        self, url: TransportUrl, app: Application, settings: IngestSettings, cluster: ClusterFile, key: SecretKey
    ) -> None:
        self._url = url
        self._app = app
        self._settings = settings
        self._file = cluster
        self._blocks = blocks_of(app, settings.chain, largest_message(url))
        self._objects = Objects(forks=self._blocks.forks)
        self._mesh = cluster.cluster(app)
        self._membership = cluster.membership(app)
        self._identity = Identity(self._mesh, settings.node_id, key.sign, key.verify)
        self._store = BodyStore(settings.data, app.chain)
        rows = ReplicaRows(self._store, self._objects, self._mesh.digest)
        self._rows = rows
        replication = ReplicationSettings(pool_bytes=settings.limits.pool_bytes)
        self._replica = Replica(
            settings.node_id, self._membership, key.sign, key.verify, replication, rows=rows.stored()
        )

    async def run(self, listening: Callable[[int], object]) -> None:
        """Run until cancelled; ``listening`` is called with the port when publishers may come.

        Raises:
            CardinalError: what waiting does not heal.

        """
        claims_log, markers_log, previous = await Conditions().answer(self._open_topics)
        async with AsyncExitStack() as opened:
            opened.push_async_callback(asyncio.to_thread, self._store.close)
            writer = ClaimWriter(self._url, claims_log)
            opened.push_async_callback(asyncio.to_thread, writer.close)
            claims, markers = (LogReader(self._url, topic) for topic in (claims_log, markers_log.name))
            for reader in (claims, markers):
                opened.push_async_callback(reader.close)
            agreement = Agreement(self._replica, self._rows, self._blocks, self._objects, writer)
            async with _Tasks() as tasks:
                tasks.start(agreement.run())
                read = asyncio.Event()
                tasks.start(agreement.read_claims(claims, read))
                await tasks.until(read.wait())
                await tasks.until(agreement.committed())
                promoter = self._promoter(agreement, previous, markers_log)
                await self._serve(agreement, promoter, markers, tasks, listening)

    async def _open_topics(self) -> tuple[str, TopicInfo, bytes]:
        """The claim log, which exists, the topic of markers, and the cluster of the epoch before."""

        def find() -> tuple[str, TopicInfo, bytes]:
            topics = ClusterTopics(self._url, self._app.default_topic)
            claims = topics.check_claims(self._file.epoch)
            return claims, topics.ensure_promoted(), cluster_before(self._url, self._app, self._file)

        return await asyncio.wrap_future(run_in_thread(find, "cardinal-ingest-topics"))

    def _promoter(self, agreement: Agreement, previous: bytes, markers: TopicInfo) -> ClusterPromoter:
        key = self._membership.stream.encode()
        writer = PromotionWriter(self._url, self._app, cluster=self._file.name, key=key, markers=markers)
        promotion = Promotion(self._replica, previous)
        return ClusterPromoter(agreement, promotion, writer, self._store, self._blocks, self._objects)

    async def _serve(
        self,
        agreement: Agreement,
        promoter: ClusterPromoter,
        markers: LogReader,
        tasks: _Tasks,
        listening: Callable[[int], object],
    ) -> None:
        """Serve publishers and members, until a part of the node fails."""
        settings, state = self._settings, self._replica.state
        assert state is not None  # noqa: S101 - the log was read
        node = IngestNode(
            self._store, self._blocks,
            arbiter_settings(self._app, state.rules.start, forks=self._blocks.forks), lambda _: None,
            limits=settings.limits, obstacle=self._obstacle, majority=agreement, agreed=self._rows.agreed(),
        )  # fmt: skip
        shelf = Shelf(self._store, self._objects)
        for block in self._store.blocks():
            if not block.promoted:
                shelf.add(BlockId(block.number, block.hash))
        agreement.acknowledged, agreement.stored, agreement.changed = node.acknowledge, shelf.add, promoter.changed
        contexts = peer_contexts(settings.certificate, settings.key, settings.ca)
        here = self._file.members[settings.node_id]
        peers = Peers(
            node, shelf,
            replace(
                settings.peers, listen=here.bodies_address, server_tls=contexts.server, client_tls=contexts.client,
                peers=tuple(one.bodies_address for name, one in self._file.members.items() if name != settings.node_id),
            ),
        )  # fmt: skip
        links = Links(
            self._identity, agreement, here.link_address, server_tls=contexts.server, client_tls=contexts.client
        )
        agreement.connect(links)
        node.refuse("the other members are not connected yet")
        parts = Parts(node, self._store, promoter, peers, partial(self._status, node, agreement, links, promoter))
        with ExitStack() as served:
            if settings.metrics is not None:
                parts.serve_metrics(settings.metrics, served)
            tls = server_context(settings.certificate, settings.key, settings.ca)
            for work in (
                links.run(),
                peers.run(),
                promoter.follow(markers),
                promoter.run(),
                node.run(),
                parts.report(),
            ):
                tasks.start(work)
            tasks.start(self._watch(node, links, agreement))
            async with Listener(node, settings.listen, tls) as listener:
                LOG.info("publishers are served on port %(port)d", {"kind": "listening", "port": listener.port})
                listening(listener.port)
                try:
                    await tasks.until(asyncio.Event().wait())
                finally:
                    await node.close()

    def _status(
        self, node: IngestNode, agreement: Agreement, links: Links, promoter: ClusterPromoter
    ) -> MemberStatus | None:
        """The numbers of this moment."""
        from cardinal_ingest.node.metrics import MemberStatus  # noqa: PLC0415 - an extra of its own

        replica, state = self._replica, self._replica.state
        if state is None:
            return None
        missing = replica.wanted
        pending = {
            "publishers are refused": node.refuses,
            "no capacity": self._obstacle(),
            "promotion": promoter.waits_for or promoter.failure,
            "bodies are missing": missing,
        }
        return MemberStatus(
            leader={replica.leader or "": 1},
            agreed_batch=state.num,
            agreed_block=state.highest,
            promoted_batch=replica.promoted[0],
            acknowledged_block=node.last,
            unagreed_blocks=replica.unagreed,
            missing_bodies=len(missing),
            peers_connected=len(links.connected),
            peers_suspected=len(links.suspected),
            promoter=int(promoter.promotion.active),
            claim_offset=replica.log.position.offset,
            claims_total=agreement.claims,
            pending={reason: 1 for reason, why in pending.items() if why},
            links_ended_total=dict(links.ended),
            agreement_events_total=dict(agreement.events),
        )

    async def _watch(self, node: IngestNode, links: Links, agreement: Agreement) -> None:
        """Send publishers elsewhere while this member has no majority."""
        members, quorum = len(self._membership.members), self._membership.quorum
        loop = asyncio.get_running_loop()
        alone_since: float | None = loop.time()
        warned = False
        while True:
            connected = 1 + len(links.connected)
            if agreement.closed:
                node.refuse("the epoch is closed")
            elif connected >= quorum:
                alone_since, warned = None, False
                node.refuse("")
            else:
                alone_since = loop.time() if alone_since is None else alone_since
                if loop.time() - alone_since >= _ALONE_SECONDS:
                    why = f"{connected} of {members} members are connected, a majority is {quorum}"
                    node.refuse(why)
                    if not warned:  # before, it may be a start: members come one after another
                        LOG.warning(SENTENCE, {"kind": "no_majority", "message": why, "seconds": _ALONE_SECONDS})
                    warned = True
            await asyncio.sleep(_WATCH_SECONDS)

    def _obstacle(self) -> str:
        """Why no new block can be stored; empty where one can."""
        size = self._replica.pool.size
        return self._settings.limits.obstacle(self._store, size, "not agreed and on the topics")


class _Tasks:
    """Tasks of a member: the first one that fails ends it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run it in the background."""
        self._running.add(asyncio.ensure_future(work))

    async def until(self, work: Coroutine[None, None, object]) -> None:
        """Wait for this, or for a task to fail."""
        awaited = asyncio.ensure_future(work)
        try:
            await asyncio.wait((awaited, *self._running), return_when=asyncio.FIRST_COMPLETED)
            for task in (*self._running, awaited):
                if task.done():
                    task.result()
        finally:
            awaited.cancel()


def member_of(  # noqa: PLR0917 - the parts of a command line
    url: str | TransportUrl,
    app: Application,
    settings: IngestSettings,
    cluster: Path,
    key: Path | None,
    listening: Callable[[int], object],
) -> Callable[[], Coroutine[None, None, None]]:
    """The running of a member, until it is cancelled.

    Arguments:
        url: the stream's.
        app: the application.
        settings: the node's.
        cluster: the file of its members.
        key: the file of this one's secret key.
        listening: called with the port when publishers may come.

    Raises:
        ConfigurationError: a setting that makes no member of this cluster.

    """
    found = load_cluster(cluster)
    for warning in found.warnings:
        LOG.warning(SENTENCE, {"kind": "members", "message": warning})
    if settings.node_id not in found.members:
        raise ConfigurationError(
            f"{settings.node_id} is no member in {cluster}: {nearest(settings.node_id, found.members)}",
            setting="node_id",
        )
    if key is None:
        raise ConfigurationError(
            f"set --key to the secret key of {settings.node_id}, of `cardinal cluster keygen`", setting="key"
        )
    if settings.peers.peers or settings.peers.listen is not None or settings.first is not None:
        raise ConfigurationError(
            f"leave --peers, --peer-listen and --first out with --cluster: {cluster} and its claim log have them",
            setting="cluster",
        )
    secret = load_key(key)
    if secret.public != found.members[settings.node_id].key:
        raise ConfigurationError(f"{key} is not the key of {settings.node_id} in {cluster}", setting="key")
    member = Member(find_url(url), app, settings, found, secret)
    return partial(member.run, listening)
