"""Ingest node: what its arbiter decides is carried out here.

Rules:

1. Everything here runs on one event loop. Verification runs beside it, and one thread writes the store.
2. A copy is verified, then stored. Its block is acknowledged when its row is durable, and nothing is sent before.
3. Where memory is full, only the lowest block's stream is read. Where nothing can be stored, and where as many blocks
   are open as may be, no stream is read beyond its block. Publishers notice by flow control; Behind is sent only where
   blocks are lacking.
4. After a restart every stored block is restored: those up to the first gap as acknowledged, those above it as stored.
5. A block from a peer is verified and stored as a copy is, and then stored to the arbiter: its publishers are
   skipped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.errors import ApplicationError, RemoteProtocolError
from cardinal.server.log_fields import SENTENCE, LoggedHash
from cardinal_ingest.body import frame
from cardinal_ingest.errors import StoreError, VerifierError
from cardinal_ingest.node.blocks import check_items
from cardinal_ingest.node.events import Event, end_name, end_of, event_of, kind_of
from cardinal_ingest.node.limits import Limits
from cardinal_ingest.node.log_limit import LogLimit
from cardinal_ingest.node.verifier import Verifier
from cardinal_ingest.protocols.publish import (
    Acknowledged,
    Arbiter,
    ArbiterSettings,
    BlockId,
    Complete,
    Discard,
    Effect,
    EndOfStream,
    EndStream,
    Failure,
    Items,
    Response,
    Send,
    Start,
    Status,
    decode_request,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardinal_ingest.cluster.agreement import Agreement
    from cardinal_ingest.node.blocks import Blocks
    from cardinal_ingest.node.store import BodyStore, StoredBlock

LOG: Final = logging.getLogger("cardinal.ingest")
TICK_SECONDS: Final = 0.05
FORGET_BLOCKS: Final = 1_000
"""Blocks by which the floor rises before the store forgets what is below it."""

_CHECK_SECONDS: Final = 1.0
_HEALING_SECONDS: Final = 10.0
_NAMES_MOST: Final = 256

Deliver = Callable[[bytes | None], object]
"""Sends a response to a publisher; None ends its stream."""


class _Stream(NamedTuple):
    """A publisher's stream."""

    identity: str
    deliver: Deliver
    address: str

    @property
    def where(self) -> str:
        """The address, where the name is another."""
        return f" at {self.address}" if self.address not in ("", self.identity) else ""


class _Copy:
    """A copy of a block that comes in: its items, framed as they come; ``heard``: when the last came."""

    def __init__(self, parent: BlockId, connection: Hashable, identity: str, now: float) -> None:
        self.parent = parent
        self.connection = connection
        self.identity = identity
        self.heard = now
        self.size = 0
        self.framed: list[bytes] = []
        self.work: asyncio.Task[None] | None = None


class IngestNode:
    """One node.

    Arguments:
        store: of its data folder.
        blocks: the application's.
        settings: of the arbiter; what is stored is added.
        promote: called with each acknowledged block, parents first, each once; after a restart again with those that
            are not on the topics yet.
        now: a monotonic clock.
        limits: of memory and publishers.
        obstacle: why no new block can be stored; empty where one can.
        majority: of a cluster: a block is acknowledged when a majority has stored it. None: when the store has, alone.
        agreed: blocks of a cluster from which a fork may begin, and their parents.

    Attributes:
        observe: called with the seconds from a block's last item to its acknowledgement.
        responses, first_copies, events, acknowledged: counts, of :class:`.metrics.IngestStatus`.
        memory: bytes of the copies that come in, are verified or stored.

    """

    def __init__(
        self,
        store: BodyStore,
        blocks: Blocks,
        settings: ArbiterSettings,
        promote: Callable[[BlockId], object],
        now: Callable[[], float] = time.monotonic,
        *,
        limits: Limits = Limits(),  # noqa: B008 - a value
        obstacle: Callable[[], str] = str,
        majority: Agreement | None = None,
        agreed: Iterable[tuple[BlockId, BlockId]] = (),
    ) -> None:
        self._limits = limits
        self._majority = majority
        self._attempts: dict[BlockId, int] = {}
        """Attempts of blocks that wait for a majority."""
        self.refuses = ""
        """Why publishers are sent to another node; empty where they are served."""
        self._obstacle = obstacle
        self._obstructed = False
        self._store = store
        self._blocks = blocks
        self._promote = promote
        self._now = now
        self._verifier = Verifier(blocks)
        self._copies: dict[tuple[BlockId, int], _Copy] = {}
        self._streams: dict[Hashable, _Stream] = {}
        self._ends: dict[Hashable, tuple[int, str]] = {}
        """Log level and reason of streams that end."""
        self._lines = LogLimit(now)
        self._heard: dict[BlockId, float] = {}
        self._closing = False
        self._forgotten = -1
        self._failure = ""
        self._check_at = now()
        self.waits_for = ""
        """Why no new block is accepted; empty where they are."""
        self.observe: Callable[[float], object] = lambda _: None
        self.responses: Counter[str] = Counter()
        self.first_copies: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self._logged: dict[str, float] = {}
        self.acknowledged = 0
        self.memory = 0
        self._from_peers = asyncio.Lock()
        """One block of peers is verified at a time: publishers' blocks have the other workers."""
        first = store.first()
        self._first = settings.first if first is None else first
        self._arbiter = self._restored(settings) if majority is None else self._agreed(settings, dict(agreed))

    # --- publishers -------------------------------------------------------------------------------------------------

    def connect(self, connection: Hashable, identity: str, deliver: Deliver, address: str = "") -> None:
        """A publisher opened a stream."""
        crowded = len(self._streams) >= self._limits.publishers
        self._streams[connection] = stream = _Stream(identity, deliver, address)
        sentence = f"the publisher {identity}{stream.where} is connected"
        self._event("connected", sentence, level=logging.INFO, peer=identity, address=address)
        self._carry_out(self._arbiter.connect(connection, identity, self._now()))
        if crowded:
            allowed = self._limits.publishers
            sentence = f"the publisher {identity} was disconnected: {allowed} are connected"
            self._event("crowded", sentence, peer=identity)
        if crowded or self._closing or self.refuses:
            status = Status.SUCCESS if self._closing else Status.ERROR
            self._carry_out(self._arbiter.end(connection, status, self._now()))

    def receive(self, connection: Hashable, data: bytes) -> None:
        """A message came on a stream."""
        try:
            request = decode_request(data)
        except RemoteProtocolError:
            request = None
        self._carry_out(self._arbiter.receive(connection, request, self._now()))
        if isinstance(request, EndStream) and connection in self._streams:
            self._ends[connection] = logging.INFO, f"it ended its stream ({end_name(request)})"
            self._streams[connection].deliver(None)

    def disconnect(self, connection: Hashable, reason: str = "the connection was lost") -> None:
        """A stream was lost, or ended; the reason where nobody ended it."""
        level, why = self._ends.pop(connection, (logging.INFO, reason))
        stream = self._streams.pop(connection, None)
        if stream is not None:
            sentence = f"the publisher {stream.identity}{stream.where} is disconnected: {why}"
            self._event("disconnected", sentence, level=level, peer=stream.identity, address=stream.address)
        self._carry_out(self._arbiter.disconnect(connection, self._now()))

    def must_wait(self, connection: Hashable) -> bool:
        """True while a stream is not to be read: what it sends could not be taken.

        A block that comes in is read on, unless memory is full. Then, blocks that are being stored free some; where
        there are none, the lowest one that comes in is read on. No other block begins meanwhile, nor where nothing can
        be stored.
        """
        if not self._crowded:
            return bool(self.waits_for and self._begins(connection)) or self._arbiter.must_wait(connection)
        coming = {copy.connection: block for (block, _), copy in self._copies.items() if copy.work is None}
        return len(coming) < len(self._copies) or coming.get(connection) != min(coming.values())

    def _begins(self, connection: Hashable) -> bool:
        """True if the next that a stream sends is a new block."""
        return all(copy.connection != connection or copy.work is not None for copy in self._copies.values())

    def refuse(self, reason: str) -> None:
        """Send all publishers to another node; an empty reason ends that."""
        if reason and not self.refuses:
            self._event("refused", f"publishers are sent to other nodes: {reason}", level=logging.INFO)
            for connection in list(self._streams):
                self._carry_out(self._arbiter.end(connection, Status.ERROR, self._now()))
        elif self.refuses and not reason:
            LOG.info("publishers are served")
        self.refuses = reason

    def unread(self, connection: Hashable) -> None:
        """A publisher reads no responses: its stream is lost."""
        if connection in self._streams:
            identity = self._streams[connection].identity
            self._ends[connection] = logging.INFO, "it reads no responses"
            self._event("unread", f"the publisher {identity} reads no responses", peer=identity)
            self._carry_out(self._arbiter.disconnect(connection, self._now()))

    # --- peers ------------------------------------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """The highest number of which no block is accepted any more."""
        return self._arbiter.floor if self._majority is None else self._majority.floor

    def lacks(self, block: BlockId) -> bool:
        """True if a block is not stored, and could be used."""
        return self._arbiter.lacks(block) if self._majority is None else self._majority.lacks(block)

    def joins(self, block: BlockId, parent: BlockId) -> bool:
        """True if a block would be acknowledged as soon as it is stored."""
        return self._majority is not None or self._arbiter.joins(block, parent)

    def unlinked(self, block: BlockId) -> bool:
        """True if a stored block waits for an ancestor."""
        return self._majority is None and self._arbiter.unlinked(block)

    async def keep(self, block: BlockId, parent: BlockId, body: bytes) -> None:
        """A body came from a peer: verify it, store it, and acknowledge what follows. One that comes too late is none.

        Raises:
            ApplicationError: it is not this block.
            VerifierError, StoreError: nothing is known of the block, or it could not be stored.

        """
        async with self._from_peers:
            if not self._blocks.reads_content:
                await asyncio.to_thread(check_items, body)
            await self._verifier.verify(block, parent, body)
        try:
            await self._write(block, parent, body)
        except ApplicationError:
            if block.number > self.floor:
                raise
            return  # the chain went on while it was fetched and verified, which is no fault of the peer
        if self._majority is None:
            self._carry_out(self._arbiter.stored(block, parent.hash, self._now()))

    def acknowledge(self, blocks: Iterable[tuple[BlockId, BlockId]]) -> None:
        """A majority has stored these blocks, parents first; their parents beside them. Some come again."""
        for block, parent in blocks:
            self._first = block.number if self._first is None else self._first
            attempt = self._attempts.pop(block, None)
            if attempt is not None:
                self._carry_out(self._arbiter.verified(block, attempt, self._now()))
                self._carry_out(self._arbiter.persisted(block, attempt, self._now()))
            elif self._arbiter.lacks(block):
                self._carry_out(self._arbiter.stored(block, parent.hash, self._now()))

    def remove(self, block: BlockId) -> None:
        """Remove a block of a peer that the chain left behind, unlinked."""
        self._store.remove(block.number, block.hash)

    # --- the service ------------------------------------------------------------------------------------------------

    @property
    def memory_most(self) -> int:
        """Bytes of memory at which only the lowest block is read on."""
        return self._limits.memory_bytes

    @property
    def last(self) -> int | None:
        """The highest acknowledged block; None while there is none."""
        return self._arbiter.last

    @property
    def open_blocks(self) -> int:
        """Blocks that are not acknowledged."""
        return self._arbiter.open_blocks

    @property
    def first(self) -> int | None:
        """The first block of the stream; None while there is none."""
        return self._first

    @property
    def publishers(self) -> int:
        """Connected publishers."""
        return len(self._streams)

    @property
    def ignored(self) -> int:
        """Sets and block ends that belonged to no block in progress."""
        return self._arbiter.ignored

    async def run(self) -> None:
        """Run the clock rules until cancelled."""
        while True:
            if self._failure and self._now() >= self._check_at:
                await self._check()
            obstacle = self._obstacle()
            if obstacle and not self._obstructed:
                LOG.warning(SENTENCE, {"kind": "obstacle", "message": obstacle})
            elif self._obstructed and not obstacle:
                LOG.info("new blocks are accepted again")
            self._obstructed = bool(obstacle)
            self.waits_for = self._failure or obstacle
            self._carry_out(self._arbiter.tick(self._now()))
            if self._majority is None and self.floor >= self._forgotten + FORGET_BLOCKS:
                self._forgotten = self.floor
                self._store.forget(self.floor)
            await asyncio.sleep(TICK_SECONDS)

    async def close(self) -> None:
        """End all streams in good order, and what is being verified or stored."""
        self._closing = True
        self._carry_out(self._arbiter.shutdown(self._now()))
        work = [copy.work for copy in self._copies.values() if copy.work is not None]
        await asyncio.gather(*work, return_exceptions=True)
        await asyncio.to_thread(self._verifier.close)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _restored(self, settings: ArbiterSettings) -> Arbiter:
        """The arbiter as it was: rule 4."""
        stored = self._store.blocks()
        acknowledged = _acknowledged(stored, self._first, forks=self._blocks.forks)
        settings = replace(settings, first=self._first if settings.first is None else settings.first)
        if self._blocks.forks:
            tree = {BlockId(block.number, block.hash): block.parent for block in acknowledged}
            arbiter = Arbiter(settings, tree, self._now())
        else:
            last = acknowledged[-1].number if acknowledged else None
            arbiter = Arbiter(replace(settings, last_stored=last, reorg_threshold=None), now=self._now())
        for block in acknowledged:
            if not block.promoted:
                self._promote(BlockId(block.number, block.hash))
        known = {block.ticket for block in acknowledged}
        for block in stored:
            if block.ticket in known:
                continue
            if block.number <= arbiter.floor:
                self._store.remove(block.number, block.hash)
            else:
                arbiter.stored(BlockId(block.number, block.hash), block.parent, self._now())
        return arbiter

    def _agreed(self, settings: ArbiterSettings, agreed: dict[BlockId, BlockId]) -> Arbiter:
        """The arbiter of a cluster's member: of agreed blocks; a majority acknowledges others again."""
        settings = replace(settings, first=self._first if settings.first is None else settings.first)
        if self._blocks.forks:
            return Arbiter(settings, {block: parent.hash for block, parent in agreed.items()}, self._now())
        last = max((block.number for block in agreed), default=None)
        return Arbiter(replace(settings, last_stored=last, reorg_threshold=None), now=self._now())

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(connection, response):
                    self._send(connection, response)
                case Start(block, attempt, connection, parent):
                    identity = self._streams[connection].identity
                    self._copies[block, attempt] = _Copy(parent, connection, identity, self._now())
                    self._first = block.number if self._first is None else self._first
                case Items(block, attempt, items):
                    copy = self._copies[block, attempt]
                    copy.framed.append(frame(items))
                    size = sum(map(len, items))
                    copy.size += size
                    self.memory += size
                    copy.heard = self._now()
                case Complete(block, attempt):
                    copy = self._copies[block, attempt]
                    self._heard[block] = copy.heard
                    copy.work = asyncio.ensure_future(self._keep(block, attempt, copy))
                case Discard(block, attempt):
                    self._attempts.pop(block, None)
                    self._heard.pop(block, None)
                    discarded = self._copies.pop((block, attempt), None)
                    if discarded is not None and discarded.work is None:
                        self.memory -= discarded.size
                case Acknowledged(block):
                    self.acknowledged += 1
                    if block in self._heard:
                        self.observe(self._now() - self._heard.pop(block))
                    self._promote(block)
                case _:
                    self._report(event_of(effect))

    @property
    def _crowded(self) -> bool:
        return self.memory >= self._limits.memory_bytes

    def _event(self, kind: str, sentence: str, *, level: int = logging.WARNING, **fields: object) -> None:
        self._report(Event(kind, sentence, fields, level))

    def _report(self, event: Event) -> None:
        """Count an event, and log it. What heals by itself comes with every block: a line in ten seconds is enough."""
        self.events[event.kind] += 1
        level, now, peer = event.level, self._now(), str(event.fields.get("peer", ""))
        if level < logging.WARNING and not peer:
            if now - self._logged.get(event.kind, float("-inf")) < _HEALING_SECONDS:
                level = logging.DEBUG
            else:
                self._logged[event.kind] = now
        if level > logging.DEBUG and (left_out := self._lines.take(event.kind, peer)) is None:
            return
        more = f" ({left_out} more such lines were left out)" if level > logging.DEBUG and left_out else ""
        LOG.log(level, SENTENCE, {"kind": event.kind, "message": event.sentence + more, **event.fields})

    async def _check(self) -> None:
        """The store failed: see whether it can be written again."""
        try:
            await asyncio.wrap_future(self._store.check())
        except StoreError as error:
            self._failure = str(error)
        else:
            self._failure = ""
            LOG.info("the data folder can be written again")
        self._check_at = self._now() + _CHECK_SECONDS

    def _send(self, connection: Hashable, response: Response) -> None:
        self.responses[kind_of(response)] += 1
        stream = self._streams.get(connection)
        if stream is not None:
            stream.deliver(encode(response))
            if isinstance(response, EndOfStream):
                self._ends[connection] = end_of(response)
                stream.deliver(None)

    async def _keep(self, block: BlockId, attempt: int, copy: _Copy) -> None:
        """Verify a complete copy, and store it."""
        why: Failure | None = None
        try:
            body = await asyncio.to_thread(b"".join, copy.framed)
            copy.framed.clear()
            await self._verifier.verify(block, copy.parent, body)
            if self._majority is not None and (block, attempt) in self._copies:
                self._attempts[block] = attempt
            await self._write(block, copy.parent, body)
        except ApplicationError as error:
            named = {"block": block.number, "hash": LoggedHash(block.hash), "peer": copy.identity}
            if self._lines.take("refused", copy.identity) is not None:
                LOG.warning(
                    "block %(block)d of the publisher %(peer)s was refused: %(error)s",
                    {"kind": "refused", "error": error, **named},
                )
            why = Failure.BAD
        except VerifierError as error:
            self._event("verifier_ended", f"{error}: publishers send it again")
            why = Failure.UNDECIDED
        except StoreError:
            why = Failure.PERSISTENCE
        finally:
            self.memory -= copy.size
        if self._copies.pop((block, attempt), None) is None:
            return  # discarded meanwhile
        if why is None:
            known = copy.identity in self.first_copies or len(self.first_copies) < _NAMES_MOST
            self.first_copies[copy.identity if known else "others"] += 1
        if why is not None:
            self._attempts.pop(block, None)
            self._carry_out(self._arbiter.failed(block, attempt, why, self._now()))
            return
        if self._majority is None:
            self._carry_out(self._arbiter.verified(block, attempt, self._now()))
            self._carry_out(self._arbiter.persisted(block, attempt, self._now()))

    async def _write(self, block: BlockId, parent: BlockId, body: bytes) -> None:
        """Store a body; where that fails, nothing is accepted until the store can be written again."""
        first = block.number if self._first is None else self._first
        try:
            if self._majority is not None:
                await self._majority.store(block, parent, body)
                return
            await asyncio.wrap_future(self._store.add(block.number, block.hash, parent.hash, body, first))
        except StoreError as error:
            LOG.error(SENTENCE, {"kind": "store", "message": str(error)})  # noqa: TRY400 - the sentence says it all
            self._failure = self.waits_for = str(error)
            self._check_at = self._now()
            raise


def _acknowledged(stored: Iterable[StoredBlock], first: int | None, *, forks: bool) -> list[StoredBlock]:
    """The blocks that were acknowledged: on the topics, the first of the stream, or a child of one of these."""
    found: list[StoredBlock] = []
    known: set[BlockId] = set()
    for block in stored:
        parent = BlockId(block.number - 1, block.parent if forks else b"")
        if block.promoted or block.number == first or parent in known:
            known.add(BlockId(block.number, block.hash))
            found.append(block)
    return found
