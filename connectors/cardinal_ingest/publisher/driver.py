"""Driver: a publisher's session, carried out over gRPC on one event loop.

Rules:

1. Everything here runs on the loop. ``PublisherSession`` decides; the driver opens streams, sends what it pushes, and
   ends the futures of blocks that it releases.
2. A node that needs blocks which are not held any more (``EndStream`` TOO_FAR_BEHIND) fails all pending blocks with
   NodeBehindError: its host publishes again from that number. Nothing else is added until then. So does a node that
   accepts none of them, because it is ahead by more than a reorg may be deep.
3. Pending blocks and bytes are bounded below half of a session's buffer: one that fills makes it try
   another node, and a feed that is faster than a node does not mean that another one is needed. Nodes accept 64 blocks
   before the first is acknowledged.
4. A block that every node of the URL has refused fails all pending blocks: no wait heals it.
5. What nodes refuse is logged with the reason. No line contains more of a URL than a node's address.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, NodeBehindError, RefusedError
from cardinal.texts import short_hash
from cardinal_ingest.protocols.publish import (
    NONE,
    BehindPublisher,
    Close,
    EndCode,
    EndOfStream,
    EndStream,
    Open,
    PublisherSession,
    Push,
    Released,
    ResendBlock,
    Response,
    SessionEffect,
    SessionSettings,
    Status,
    encode,
)
from cardinal_ingest.publisher.link import Link
from cardinal_ingest.publisher.pending import Pending, PendingBlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.protocols.streams.types import BlockRef
    from cardinal_ingest.publisher.nodes import IngestNodes

LOG: Final = logging.getLogger("cardinal_ingest.publisher.publisher")
_TICK_SECONDS: Final = 0.05
_END_SECONDS: Final = 2.0
_REFUSES: Final = "it refuses the block; its log names the reason, such as another chain id"


class Driver:
    """One session.

    Arguments:
        nodes: where to publish.
        forks: whether blocks have hashes.
        reorg_threshold: depth of the forks that nodes accept.
        most_blocks, most_bytes: that are pending.

    Attributes:
        pending: blocks that are not acknowledged.
        capacity: set while another block may be added.
        node: the node of the open stream; None while there is none.
        failure: why there is none, in a sentence.

    """

    def __init__(
        self, nodes: IngestNodes, *, forks: bool, reorg_threshold: int, most_blocks: int, most_bytes: int
    ) -> None:
        self.pending = Pending()
        self.capacity = threading.Event()
        self.capacity.set()
        self.node: str | None = None
        self.failure = "no ingest node has accepted a stream yet"
        self._nodes = nodes
        self._forks = forks
        self._most_blocks, self._most_bytes = most_blocks, most_bytes
        self._threshold = reorg_threshold
        settings = SessionSettings(forks=forks, buffer_blocks=3 * most_blocks, buffer_bytes=3 * most_bytes)
        order = [(address, place) for place, address in enumerate(nodes.addresses)]
        self._session = PublisherSession(settings, order, random.random, time.monotonic())
        self._links: dict[int, Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._needed: int | None = None
        self._failed_with: CardinalError | None = None
        self._accepted = 0
        self._refused: tuple[BlockRef | None, set[str]] = None, set()
        """The block that was refused last, and the nodes that refused it."""
        self._is_reported = self._is_stopping = False
        self._broken: BaseException | None = None

    # --- inputs of the host ------------------------------------------------------------------------------------

    def prepare(self, block: PendingBlock) -> None:
        """Leave the chain above a block's parent, if that is not the tip.

        Raises:
            LocalProtocolError: as :meth:`.pending.Pending.turns`.
            NodeBehindError, RefusedError: a lower block is needed first.

        """
        if self._needed is not None:
            self._begin_again(block.ref.number)
        elif self.pending.turns(block.ref, block.parent):
            self.pending.cut(block.ref.number - 1)
            self._carry_out(self._session.reorg(block.ref.number - 1, time.monotonic()))

    def append(self, block: PendingBlock) -> None:
        """Add the next block of the chain. LocalProtocolError, and as :meth:`prepare`: it was not added."""
        if self._needed is not None:
            self._begin_again(block.ref.number)
        try:
            effects = self._session.append(block.items, time.monotonic(), sealed=True)
        except CardinalError:
            self._session.reorg(block.ref.number - 1, time.monotonic())  # what it has taken of the block
            raise
        self.pending.append(block)
        self._carry_out(effects)
        for link in self._links.values():
            link.wake()

    # --- the loop ----------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until stopped; then end the stream."""
        while not stop.is_set() and self._broken is None:
            self._carry_out(self._session.tick(time.monotonic()))
            for link in self._links.values():
                link.wake()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _TICK_SECONDS)
        self._is_stopping = True
        self._carry_out(self._session.stop(time.monotonic()))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_END_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._broken is not None:
            raise self._broken

    # --- what happens to links ---------------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        """A stream is open."""
        if self._links.get(link.stream) is link:
            LOG.info("blocks go to the ingest node %s", link.address)
            self.node, self.failure, self._is_reported = link.address, "", False
        self._carry_out(self._session.opened(link.stream, time.monotonic()))

    def draw(self, link: Link) -> None:
        """One more message can be sent: push it, if there is one."""
        self._carry_out(self._session.ready(link.stream, time.monotonic()))

    def received(self, link: Link, response: Response | None) -> None:
        """A response came; None: one of an unknown kind."""
        if self._links.get(link.stream) is not link:
            return
        if isinstance(response, EndOfStream):
            self._report_end(link, response)
        effects = self._session.receive(link.stream, response, time.monotonic())
        self._carry_out(effects)
        if any(isinstance(one, Push) and _is_too_far(one) for one in effects):
            self._fall_behind(link, response)
        elif isinstance(response, EndOfStream) and response.status == Status.DUPLICATE_BLOCK:
            self._skip_ahead(link, response.block_number)
        elif isinstance(response, EndOfStream) and response.status == Status.BAD_BLOCK_PROOF:
            self._refuse(link, response.proximate_block_number)
        link.wake()

    def closed(self, link: Link, failure: CardinalError | None) -> None:
        """A stream has ended; the error, where it was not by agreement."""
        if self._links.get(link.stream) is link:
            self._lose(link, str(failure) if failure else f"the ingest node {link.address} closed the stream")
            self._carry_out(self._session.closed(link.stream, time.monotonic()))

    # --- inside ------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[SessionEffect]) -> None:
        for effect in effects:
            match effect:
                case Open(node, stream):
                    link = self._links[stream] = Link(self._nodes, node, stream, self)
                    self._tasks.add(link.task)
                    link.task.add_done_callback(self._finished)
                case Push(stream, request):
                    self._links[stream].push(encode(request))
                case Close(stream):
                    link = self._links[stream]
                    self._lose(link, self.failure or f"the stream to {link.address} has ended")
                    link.end()
                case Released(number):
                    self.pending.acknowledge(number)
                case _:
                    pass  # the buffer is never full: fewer blocks are added
        self._measure()

    def _measure(self) -> None:
        if len(self.pending) < self._most_blocks and self.pending.size < self._most_bytes:
            self.capacity.set()
        else:
            self.capacity.clear()

    def _lose(self, link: Link, failure: str) -> None:
        """Forget a stream; its reason is logged once until another one is open."""
        del self._links[link.stream]
        self.node, self.failure = None, failure
        if not self._is_reported and not self._is_stopping:
            LOG.warning("%s", failure)
        self._is_reported = True

    def _finished(self, task: asyncio.Task[None]) -> None:
        """A link's task is over; an error of it is a bug, which ends the driver."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._broken = task.exception()

    def _report_end(self, link: Link, end: EndOfStream) -> None:
        """The node ended the stream: keep its reason, and log what an operator should know."""
        known = end.status in set(Status)
        name = Status(end.status).name.lower() if known else "error"
        if end.status == Status.SUCCESS:
            name = "it was stopped"
        elif end.status == Status.ERROR or not known:
            name = "error: its log names the reason, such as other members of a cluster that are not connected"
        elif end.status == Status.BAD_BLOCK_PROOF:
            name += f": {_REFUSES}"
        concerns = f" at block {end.proximate_block_number}" if end.proximate_block_number else ""
        self.failure = f"the ingest node {link.address} ended the stream{concerns}: {name}"

    def _fall_behind(self, link: Link, response: Response | None) -> None:
        """Fail what is pending, where the node needs blocks that are not held (rule 2)."""
        match response:
            case BehindPublisher(number):
                needed = (number + 1) & NONE
            case ResendBlock(number):
                needed = number
            case _:
                return
        lowest = self.pending.lowest
        if self._forks and lowest is not None and needed >= lowest - 1:
            needed -= self._threshold  # it has the blocks below, of another branch
        needed = max(0, needed)
        acknowledged = self._session.acknowledged
        if not self._forks and acknowledged is not None and needed <= acknowledged:
            return  # durable at another node, from which this one will have it
        LOG.warning("the ingest node %s needs blocks from %d on, which are not held any more", link.address, needed)
        message = f"the ingest node {link.address} needs block {needed}: publish again from there"
        self._fail(NodeBehindError(message, number=needed), needed, accepted=0)

    def _skip_ahead(self, link: Link, floor: int) -> None:
        """Fail what is pending, where the node accepts only blocks above it (rule 2)."""
        highest = self.pending.highest
        if self._forks and floor != NONE and highest is not None and highest <= floor:
            needed = floor + 1
            message = f"the ingest node {link.address} accepts no block below {needed}: publish again from there"
            LOG.warning("%s", message)
            self._fail(NodeBehindError(message, number=needed), needed, accepted=needed)

    def _refuse(self, link: Link, number: int) -> None:
        """Fail what is pending, where every node has refused this block (rule 4)."""
        block = self.pending.ref(number)
        if block is None:
            return
        if self._refused[0] != block:
            self._refused = block, set()
        self._refused[1].add(link.address)
        if self._refused[1].issuperset(self._nodes.addresses):
            nodes = (
                f"the ingest node {link.address} refuses" if len(self._refused[1]) == 1 else "all ingest nodes refuse"
            )
            message = f"{nodes} block {number} {short_hash(block.hash)}: the log of a node names the reason"
            self._fail(RefusedError(f"{message}, such as another chain id"), number, accepted=0)

    def _fail(self, error: CardinalError, needed: int, *, accepted: int) -> None:
        """Fail what is pending; the next block is at most ``needed``, and at least the lowest ``accepted`` one."""
        self._failed_with, self._needed, self._accepted = error, needed, accepted
        lowest = self.pending.lowest
        self.pending.fail(lambda _: error)
        ancestor = min(needed, needed if lowest is None else lowest) - 1
        self._carry_out(self._session.reorg(ancestor, time.monotonic()))

    def _begin_again(self, number: int) -> None:
        """Begin again with a block. NodeBehindError: it is too high, or too low; RefusedError: too high (rule 4)."""
        needed = self._needed
        if needed is not None and not self._accepted <= number <= needed:
            if isinstance(self._failed_with, RefusedError):
                raise self._failed_with
            raise NodeBehindError(f"an ingest node needs block {needed}: publish again from there", number=needed)
        self._needed = None
        self._carry_out(self._session.reorg(number - 1, time.monotonic()))


def _is_too_far(push: Push) -> bool:
    return isinstance(push.request, EndStream) and push.request.end_code == EndCode.TOO_FAR_BEHIND
