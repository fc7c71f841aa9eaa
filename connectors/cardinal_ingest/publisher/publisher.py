"""Publisher: payloads in, blocks on ingest nodes, acknowledged when they are verified and durable there.

Rules:

1. A publisher holds one chain: the blocks that no node has acknowledged. ``add`` of a block whose parent is below the
   tip, and ``reorg``, leave the chain above that parent.
2. A block's future ends when a node has acknowledged it. It fails with :class:`~cardinal.errors.OrphanedError` where
   the block leaves the chain before: a node may have it, or never get it, and consumers follow the heavier chain in
   both cases.
3. One node of the URL is used at a time; where it is unreachable, late or refuses, the next one is, and it gets
   everything that is not acknowledged.
4. ``add`` waits while too many blocks or bytes are held. It never drops and never queues without bound.
5. A node that needs blocks which are not held any more fails everything that is, with
   :class:`~cardinal.errors.NodeBehindError`: publish again from its ``number`` on. So does a node that is ahead of
   all of it by more than a reorg may be deep, and accepts none.
6. A block that every node refuses fails everything that is held, with :class:`~cardinal.errors.RefusedError`.

Threads: ``add`` and ``reorg`` may be called from several threads.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from cardinal._concurrency import new_future, run_in_thread, settle
from cardinal.config.settings import find_url
from cardinal.errors import (
    CardinalError,
    ConfigurationError,
    DeliveryError,
    OrphanedError,
    OversizeError,
    TransportError,
)
from cardinal.producing.deep_reorg import linked
from cardinal.producing.inflight import all_of
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.texts import Count
from cardinal_ingest import items as opaque
from cardinal_ingest.body import items_of
from cardinal_ingest.protocols.publish.buffer import BLOCK_BYTES
from cardinal_ingest.protocols.publish.items import framed_size
from cardinal_ingest.publisher.driver import Driver
from cardinal_ingest.publisher.nodes import IngestNodes, NodeStatus
from cardinal_ingest.publisher.pending import PendingBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType

    from cardinal.apps import Application
    from cardinal.config.url import TransportUrl
    from cardinal.producing.inflight import ProducerStats
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef

__all__ = ["NodeStatus", "Publisher"]

_CLOSE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5
_THREAD: Final = "cardinal-publisher"
_MAX_BLOCKS: Final = 48
_MAX_BYTES: Final = 128 << 20


class Publisher:
    """Publishes payloads to ingest nodes.

    Arguments:
        url: ``ingest://host:port,host:port``, see :mod:`cardinal.config.url`; or the name of a stream of the settings
            file. The first node is preferred.
        app: the application, as :func:`cardinal.apps.get` gives it.
        publisher_id: this publisher's name, in the user agent that nodes see.
        max_blocks: blocks that are held before ``add`` waits.
        max_bytes: bytes of their items before ``add`` waits.
        config: TOML file that names streams, see :mod:`cardinal.config.settings`; default: the one that
            ``CARDINAL_CONFIG`` names.

    Raises:
        ConfigurationError: the URL, an option or a file cannot be used.
        UnreachableError: no node answers.
        RefusedError: nodes answer, and none accepts a publisher.

    """

    def __init__(
        self,
        url: str | TransportUrl,
        app: Application,
        *,
        publisher_id: str,
        max_blocks: int = _MAX_BLOCKS,
        max_bytes: int = _MAX_BYTES,
        config: str | Path | None = None,
    ) -> None:
        url = find_url(url, config)
        if url.scheme != "ingest":
            raise ConfigurationError(
                f"a publisher needs ingest nodes, not {url.scheme}://: write ingest://host:port, or use a Producer",
                setting="url",
            )
        if (
            not (publisher_id.isascii() and publisher_id.isprintable() and publisher_id)
            or min(max_blocks, max_bytes) < 1
        ):
            raise ConfigurationError("a publisher needs an id of printable ASCII, and capacity for a block")
        self._app = app
        self._forks = app.name != "items"
        self._chain_id = int(app.chain.rpartition(":")[2])
        self._nodes = IngestNodes(url, publisher_id)
        self._bounds = max_blocks, max_bytes
        self._adding = threading.Lock()
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._driver: Driver
        opened: Future[None] = new_future()
        self._running = run_in_thread(lambda: asyncio.run(self._run(opened)), _THREAD)
        opened.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stats(self) -> ProducerStats:
        """Counters of what was acknowledged since the start, and of what is in flight; ``messages`` are items."""
        return self._driver.pending.stats

    @property
    def node(self) -> str | None:
        """The node that blocks go to; None while there is none."""
        return self._driver.node

    @property
    def failure(self) -> str:
        """Why there is no such node, in a sentence; empty while there is one."""
        return self._driver.failure

    def status(self) -> NodeStatus:
        """Query the first and the last block of the first node that answers.

        Raises:
            UnreachableError, RefusedError: as the constructor.
            TransportError: the publisher is closed.

        """
        self._check()
        return asyncio.run_coroutine_threadsafe(self._nodes.status(), self._loop).result()

    def add(self, payload: Payload) -> Future[None]:
        """Publish a block. Its parent was added before, or a node has it.

        Returns:
            A future that ends when a node has acknowledged the block (rule 2), and fails with OrphanedError,
            NodeBehindError, RefusedError, or with DeliveryError where the publisher is closed first.

        Raises:
            ApplicationError: the payload announces a sub batch without its content, which cannot be published.
            SplitError: the payload contradicts itself or the application's topics.
            OversizeError: an entry is larger than nodes accept.
            LocalProtocolError: the block is in flight already, or is no child of the block below it that was added.
            NodeBehindError: a node needs another block first (rule 5).
            RefusedError: a block below it was refused (rule 6).
            TransportError: the publisher is closed.

        """
        block = self._block(payload)
        with self._adding:
            self._call(self._driver.prepare, block)
            self._append(block)
        return block.future

    def reorg(self, ancestor: BlockRef, payloads: Iterable[Payload]) -> Future[None]:
        """Publish a branch in place of the blocks above an ancestor.

        Arguments:
            ancestor: the last block that both branches have.
            payloads: the blocks above it, oldest first, each the parent of the next.

        Returns:
            A future that ends when all of it is acknowledged, or fails when a part of it has.

        Raises:
            LocalProtocolError: no branch above the ancestor, or a sub batch without content; and as :meth:`add`.

        """
        blocks = [self._block(payload) for payload in linked(ancestor, payloads)]
        with self._adding:
            self._call(self._driver.prepare, blocks[0])
            for block in blocks:
                self._append(block)
        return all_of([block.future for block in blocks])

    def flush(self, timeout: float = 60.0) -> None:
        """Wait until every block that was added is acknowledged, or has left the chain.

        Raises:
            NodeBehindError, RefusedError, DeliveryError: a block failed.
            TransportError: not done after ``timeout`` seconds.

        """
        done, waiting = wait(self._driver.pending.futures, timeout)
        if waiting:
            raise TransportError(
                f"{Count(len(waiting), 'block was', 'blocks were')} not acknowledged within {timeout:.0f} s"
                + (f": {self.failure}" if self.failure else "")
            )
        for error in filter(None, (future.exception() for future in done)):
            if not isinstance(error, OrphanedError):
                raise error

    def close(self) -> None:
        """Flush for a bounded time and end the stream. Blocks that are not acknowledged fail. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(CardinalError):  # the futures report it
            self.flush(_CLOSE_SECONDS)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._running.result(_CLOSE_SECONDS)

    # --- inside ------------------------------------------------------------------------------------------------

    async def _run(self, opened: Future[None]) -> None:
        """The life of the event loop."""
        try:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await self._nodes.status()
            blocks, size = self._bounds
            self._driver = Driver(
                self._nodes,
                forks=self._forks,
                reorg_threshold=self._app.reorg_threshold,
                most_blocks=blocks,
                most_bytes=size,
            )
        except BaseException as error:  # noqa: BLE001 - raised by the constructor
            settle(opened, error)
            return
        settle(opened, None)
        try:
            await self._driver.run(self._stop)
        finally:
            self._driver.pending.fail(_unacknowledged)
            self._driver.capacity.set()

    def _block(self, payload: Payload) -> PendingBlock:
        """A payload as it is pushed; what nodes would refuse is refused here."""
        split(payload, self._app.topics, self._app.default_topic)
        items = items_of(payload, chain_id=self._chain_id) if self._forks else opaque.read(payload).items
        if (size := sum(framed_size(len(item)) for item in items)) > BLOCK_BYTES:
            raise OversizeError(
                f"block {payload.number} has {size} bytes: ingest nodes accept {BLOCK_BYTES}",
                path=None,
                size=size,
                limit=BLOCK_BYTES,
            )
        return PendingBlock(payload.ref, payload.parent, items, sum(map(len, items)))

    def _append(self, block: PendingBlock) -> None:
        while not self._driver.capacity.wait(_LOOK_SECONDS):
            self._check()
        self._call(self._driver.append, block)

    def _check(self) -> None:
        if self._is_closed or self._running.done():
            raise TransportError("the publisher is closed")

    def _call(self, call: Callable[[PendingBlock], None], block: PendingBlock) -> None:
        """Call something of the driver on its loop, and wait for it."""
        self._check()
        called = new_future()

        def run() -> None:
            try:
                call(block)
            except BaseException as error:  # noqa: BLE001 - raised below
                settle(called, error)
            else:
                settle(called, None)

        with suppress(RuntimeError):  # the loop has ended: the check says so
            self._loop.call_soon_threadsafe(run)
        while True:
            try:
                return called.result(_LOOK_SECONDS)
            except FutureTimeout:
                self._check()


def _unacknowledged(ref: BlockRef) -> CardinalError:
    return DeliveryError(
        f"block {ref.number} was not acknowledged before the publisher was closed: add it to another one",
        block_hash=ref.hash,
    )
