"""Fetching side of the links between ingest nodes: this node dials its peers, and pulls the bodies that it lacks.

Rules:

1. One fetcher decides over all peers. Bodies in flight are bounded by it, until they are durable.
2. A body is verified as a published one is, one at a time: published blocks have the other workers. Then it is stored,
   and then the arbiter is notified: publishers of the block are skipped.
3. Where nothing can be stored, all links are closed; they are dialed again when there is space.
4. Blocks from one peer that wait for an ancestor are bounded. The link of a peer that exceeds this is closed, so is
   that of a peer that breaks a rule, which is barred besides. No other link is touched.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import ApplicationError
from cardinal_ingest.body_exchange.counts import LOG, PeerCounts, notice_loss
from cardinal_ingest.body_exchange.settings import PAUSE_SECONDS, READ_BYTES, PeerSettings
from cardinal_ingest.errors import StoreError, VerifierError
from cardinal_ingest.protocols.diffusion import Action, Close, Fetcher, ObjectId, Send, Status, TooLarge, Verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cardinal_ingest.body_exchange.objects import Named, Objects
    from cardinal_ingest.node.node import IngestNode
    from cardinal_ingest.protocols.publish import BlockId

_TICK_SECONDS: Final = 0.05


class _NeededBlocks:
    """The pool that the fetcher fills: a block is in it when its row is durable, before its verdict."""

    def __init__(self, node: IngestNode, objects: Objects) -> None:
        self._node = node
        self._objects = objects

    def status(self, one: ObjectId) -> Status:
        """Need for a block."""
        if one.number <= self._node.floor:
            return Status.NEVER
        return Status.WANT if self._node.lacks(self._objects.block_of(one)) else Status.HAVE

    def add(self, one: ObjectId, body: bytes) -> None:
        """Nothing: a block that is valid and not here could not be stored, and is wanted still."""


class PeerFetcher:
    """Fetches bodies from peers.

    Arguments:
        node: takes the blocks.
        objects: how bodies are read.
        settings: of the links.
        counts: of the node's links.
        now: a monotonic clock.

    """

    def __init__(
        self,
        node: IngestNode,
        objects: Objects,
        settings: PeerSettings,
        counts: PeerCounts,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._objects = objects
        self._settings = settings
        self._counts = counts
        self._now = now
        self._fetcher = Fetcher(_NeededBlocks(node, objects), objects.identify, settings.diffusion)
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._barred: dict[str, float] = {}
        self._unlinked: dict[str, dict[BlockId, int]] = {}
        self._too_large: set[str] = set()
        """Peers of which this was logged: one can announce any number."""
        self._verdicts: list[tuple[Verify, bool]] = []
        self._work: set[asyncio.Task[None]] = set()

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that are requested, arriving, being verified or stored."""
        return self._fetcher.loads().total()

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for host, port in self._settings.peers:
                    tasks.create_task(self._dial(host, port))
                while True:
                    await asyncio.sleep(_TICK_SECONDS)
                    self._tick()
        finally:
            for work in self._work:
                work.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)

    # --- links ------------------------------------------------------------------------------------------------------

    async def _dial(self, host: str, port: int) -> None:
        """Keep a link to a peer, while blocks can be stored."""
        peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        wait, reported = self._settings.backoff, ""
        while True:
            while not self._accepts:  # noqa: ASYNC110 - the node notifies nobody
                await asyncio.sleep(_TICK_SECONDS)
            began = self._now()
            try:
                await self._link(peer, host, port)
                reason = "the link ended"
            except (OSError, TimeoutError) as error:
                reason = str(error) or "it does not answer"
            linked = self._now() - began >= self._settings.backoff_most
            if reason != reported or linked:
                fields = {"kind": "unlinked", "peer": peer, "reason": reason}
                LOG.info("the peer %(peer)s is not linked: %(reason)s; it is dialed again", fields)
            reported = reason
            wait = self._settings.backoff if linked else min(2 * wait, self._settings.backoff_most)
            await asyncio.sleep(max(wait, self._barred.pop(peer, 0.0) - self._now()))

    async def _link(self, peer: str, host: str, port: int) -> None:
        """One connection to a peer, until it ends."""
        async with asyncio.timeout(self._settings.connect_seconds):
            reader, writer = await asyncio.open_connection(host, port, limit=READ_BYTES, ssl=self._settings.client_tls)
        try:
            notice_loss(writer)
            self._writers[peer] = writer
            self._counts.connected = len(self._writers)
            fields = {"kind": "linked", "peer": peer, "block": self._node.floor + 1}
            LOG.info("bodies are fetched from the peer %(peer)s, from block %(block)d on", fields)
            self._act(self._fetcher.join(peer, self._node.floor + 1, self._now()))
            while data := await reader.read(READ_BYTES):
                self._act(self._fetcher.receive(peer, data, self._now()))
                if not self._fetcher.loads()[peer]:
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            writer.transport.abort()
            self._writers.pop(peer, None)
            self._counts.connected = len(self._writers)
            self._act(self._fetcher.leave(peer, self._now()))

    @property
    def _accepts(self) -> bool:
        return not self._node.waits_for and self._node.first is not None

    def _close(self, peer: str) -> None:
        """End a link; its reader notices."""
        writer = self._writers.get(peer)
        if writer is not None:
            writer.transport.abort()
        self._act(self._fetcher.leave(peer, self._now()))

    def _tick(self) -> None:
        if not self._accepts:
            for peer in list(self._writers):
                self._close(peer)
        self._act(self._fetcher.tick(self._now()))
        for blocks in self._unlinked.values():
            for block in [block for block in blocks if not self._node.unlinked(block)]:
                del blocks[block]
                if block.number <= self._node.floor:
                    self._node.remove(block)

    # --- what the fetcher decides -------------------------------------------------------------------------------------

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send(peer, data):
                    if peer in self._writers:
                        self._writers[peer].write(data)
                case Verify():
                    work = asyncio.ensure_future(self._take(action))
                    self._work.add(work)
                    work.add_done_callback(self._work.discard)
                case TooLarge(peer, one, size):
                    self._counts.refusals["too_large"] += 1
                    if peer not in self._too_large:
                        fields = {"kind": "too_large", "block": one.number, "peer": peer, "bytes": size}
                        LOG.warning(
                            "block %(block)d of the peer %(peer)s is not fetched: it has %(bytes)d bytes", fields
                        )
                    self._too_large.add(peer)
                case Close(peer, violation, barred_until):
                    if violation is not None and barred_until is not None:
                        self._barred[peer] = barred_until
                        self._counts.refuse(
                            violation.violation,
                            peer,
                            f"the link to the peer {peer} was closed for {barred_until - self._now():.0f} s, it broke "
                            f"the protocol ({violation.violation}): {violation.reason}",
                        )
                    if peer in self._writers:
                        self._writers[peer].transport.abort()

    async def _take(self, copy: Verify) -> None:
        """Verify a body, store it, and report the verdict."""
        valid = True
        try:
            named = self._objects.read(copy.body)
            assert named is not None  # noqa: S101 - the fetcher has identified it
            if self._may_store(copy, named):
                await self._node.keep(named.block, named.parent, copy.body)
                self._counts.fetched += 1
                if self._node.unlinked(named.block):
                    self._unlinked.setdefault(copy.peer, {})[named.block] = len(copy.body)
        except ApplicationError as error:
            fields = {"kind": "refused", "block": copy.id.number, "peer": copy.peer, "error": error}
            LOG.warning("block %(block)d of the peer %(peer)s was refused: %(error)s", fields)
            valid = False
        except (StoreError, VerifierError) as error:
            self._counts.refuse("undecided", copy.peer, f"the link to the peer {copy.peer} was closed: {error}")
            self._close(copy.peer)
        if not self._verdicts:
            asyncio.get_running_loop().call_soon(self._judge)
        self._verdicts.append((copy, valid))

    def _judge(self) -> None:
        """Report verdicts: those of one commit together."""
        verdicts, self._verdicts = self._verdicts, []
        self._act(self._fetcher.verdicts(verdicts, self._now()))

    def _may_store(self, copy: Verify, named: Named) -> bool:
        """True if a block joins the chain, or may wait for an ancestor."""
        waiting = {
            block: size for block, size in self._unlinked.get(copy.peer, {}).items() if self._node.unlinked(block)
        }
        most = self._settings
        full = len(waiting) >= most.unlinked_blocks or sum(waiting.values()) >= most.unlinked_bytes
        if not full or self._node.joins(named.block, named.parent):
            return True
        self._counts.refuse(
            "unlinked",
            copy.peer,
            f"the link to the peer {copy.peer} was closed: {len(waiting)} of its blocks do not join the chain of this "
            f"node, which lacks blocks from {self._node.floor + 1} on",
        )
        self._close(copy.peer)
        return False
