"""Agreement of one member: its replica, driven by publishers' blocks, messages of peers, the claim log and the clock.

Rules:

1. Everything here runs on one event loop. An input is one step of the replica.
2. The rows of a step are committed before its actions are performed, and steps are performed in their order. Nothing is
   sent that could be lost (MD7).
3. A message of a peer is acknowledged when its step is committed.
4. A snapshot holds what is committed: it waits for the steps before it.
5. A commit that fails ends the node: a restart begins from what is on the disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.errors import ApplicationError, CardinalError, ConfigurationError
from cardinal.server.log_fields import SENTENCE, LoggedHash
from cardinal_ingest.body_exchange.objects import object_of
from cardinal_ingest.cluster.reading import OutOfRange
from cardinal_ingest.cluster.rows import AgreedBlock
from cardinal_ingest.errors import ClaimLogDivergedError, StoreError
from cardinal_ingest.protocols.publish import BlockId
from cardinal_ingest.protocols.replication import (
    KINDS,
    Acknowledged,
    Action,
    Agreed,
    Append,
    Block,
    Broadcast,
    ClaimRefused,
    Denial,
    Denied,
    Divergence,
    EpochClosed,
    PutBlock,
    Ref,
    Send,
    StateDivergence,
    Step,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cardinal_ingest.body_exchange.objects import Objects
    from cardinal_ingest.cluster.claims import ClaimWriter
    from cardinal_ingest.cluster.links import Links
    from cardinal_ingest.cluster.reading import LogReader
    from cardinal_ingest.cluster.rows import ReplicaRows
    from cardinal_ingest.node.blocks import Blocks
    from cardinal_ingest.protocols.replication import Message, Replica

LOG: Final = logging.getLogger("cardinal.ingest")
_LINGER_SECONDS: Final = 0.002
"""Blocks that are admitted within it are one step, and one message."""
_DENIALS: Final = {
    Denial.OTHER_CONTENT: "other members have other content for it",
    Denial.FORK_TOO_DEEP: "it forks off below the window",
}


class _Waiting(NamedTuple):
    """A step that waits for its commit."""

    committed: Future[None] | None
    """None where the step has no rows of its own."""
    actions: tuple[Action, ...]
    acknowledged: list[AgreedBlock]
    then: Callable[[], object]


class Agreement:
    """Agreement of one member.

    Arguments:
        replica: restored from the rows.
        rows: its rows.
        blocks: of the application.
        objects: how blocks are named.
        writer: of the claim log.

    Attributes:
        changed: called after every step; something may be there to promote.
        stored: called with a block whose body is durable.
        acknowledged: called with blocks that a majority has, and their parents, parents first; some come again.
        events: counts of what concerns an operator.
        claims: claims of this member.
        closed: the epoch ended: nothing more is agreed in it.

    """

    def __init__(
        self, replica: Replica, rows: ReplicaRows, blocks: Blocks, objects: Objects, writer: ClaimWriter
    ) -> None:
        self.replica = replica
        self.changed: Callable[[], object] = lambda: None
        self.stored: Callable[[BlockId], object] = lambda _: None
        self.acknowledged: Callable[[Sequence[AgreedBlock]], object] = lambda _: None
        self.events: Counter[str] = Counter()
        self.claims = 0
        self.closed = False
        self._rows = rows
        self._blocks = blocks
        self._objects = objects
        self._writer = writer
        self._links: Links | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._steps: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._uncommitted = 0
        self._ended = False
        self._admitted: dict[Ref, asyncio.Future[None]] = {}
        """Blocks that are not durable yet."""
        self._fresh: list[tuple[Block, bytes]] = []

    def connect(self, links: Links) -> None:
        """Messages of this member may be sent from now on."""
        self._links = links

    async def run(self) -> None:
        """Perform steps as they are committed, until cancelled.

        Raises:
            StoreError: a commit failed.

        """
        try:
            while True:
                step = await self._steps.get()
                if step.committed is not None:
                    await asyncio.wrap_future(step.committed)
                self._uncommitted -= 1
                self._act(step)
        finally:
            # The node ends when nobody waits for a block any more.
            self._ended = True
            for done in self._admitted.values():
                if not done.done():
                    done.set_exception(self._not_stored())

    # --- blocks -------------------------------------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """The highest number of which no block can be agreed any more; -1 while there is none."""
        state = self.replica.state
        return -1 if state is None or not state.ring else max(state.highest - state.rules.window, -1)

    def lacks(self, block: BlockId) -> bool:
        """True for a block that is to be fetched."""
        ref = self._ref(block)
        return ref not in self._admitted and self.replica.needs(ref)

    async def store(self, block: BlockId, parent: BlockId, body: bytes) -> None:
        """Store a verified block; returns when it is durable here.

        Raises:
            ApplicationError: the cluster has other content for it, or it comes too late.
            StoreError: there is no capacity, or no state of the cluster yet.

        """
        ref = self._ref(block)
        content = await asyncio.to_thread(lambda: hashlib.sha256(body).digest())
        if self._ended:
            raise self._not_stored()
        if ref not in self._admitted:
            parent_hash, weight = object_of(parent).hash, self._blocks.weight(block.number, body)
            facts = Block(block.number, ref.hash, parent_hash, weight, content, len(body))
            self._admitted[ref] = self._loop.create_future()
            if not self._fresh:
                self._loop.call_later(_LINGER_SECONDS, self._admit)
            self._fresh.append((facts, body))
        await asyncio.shield(self._admitted[ref])

    @staticmethod
    def _not_stored() -> StoreError:
        return StoreError("nothing is stored any more: this node ends")

    def _admit(self) -> None:
        """Admit the blocks that came together, lowest first."""
        fresh, self._fresh = sorted(self._fresh, key=lambda one: one[0].number), []
        blocks = [block for block, _ in fresh]
        bodies = {block.ref: body for block, body in fresh}
        self.take(self.replica.admit(blocks, self._loop.time()), bodies=bodies, then=partial(self._kept, blocks))

    def _kept(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            done = self._admitted.pop(block.ref)
            if not done.done():
                done.set_result(None)

    def _ref(self, block: BlockId) -> Ref:
        return Ref(block.number, object_of(block).hash)

    # --- peers --------------------------------------------------------------------------------------------------------

    def begin(self, peer: str) -> None:
        """See :class:`~.links.Host`."""
        self.take(self.replica.begin(peer, self._loop.time()))

    def receive(self, peer: str, kind: int, payload: bytes, committed: Callable[[], None]) -> None:
        """See :class:`~.links.Host`."""
        if kind not in KINDS.values():
            self.events["unknown_message"] += 1
            self.take(Step((), ()), then=committed)
            return
        self.take(self.replica.receive(peer, decode(kind, payload), self._loop.time()), then=committed)

    def snapshot(self, peer: str) -> None:
        """See :class:`~.links.Host`."""
        messages = [_encoded(message) for message in self.replica.snapshot(peer)]
        assert self._links is not None  # noqa: S101 - a link requests it
        self.take(Step((), ()), then=partial(self._links.snapshot, peer, messages))

    # --- the claim log ------------------------------------------------------------------------------------------------

    async def read_claims(self, reader: LogReader, opened: asyncio.Event) -> None:
        """Read the claim log from where this member stopped, until cancelled; ``opened`` is set at its end.

        Raises:
            ClaimLogDivergedError: it is not the log that this member has read.
            StateDivergedError: this member's state is not the majority's.
            ConfigurationError: the log is empty.

        """
        log = self.replica.log
        start = log.position.offset
        bounds = await reader.open(max(start - 1, 0))
        if isinstance(bounds, OutOfRange):
            bounds = bounds.bounds
            log.confirm(bounds.begin, bounds.end, None)
            await reader.open(bounds.begin)
        log.confirm(bounds.begin, bounds.end, None)
        if bounds.end == 0:
            raise ConfigurationError("the claim log is empty: run cardinal cluster init", setting="cluster")
        while True:
            if log.position.offset >= bounds.end:
                opened.set()
            records = await reader.read()
            if isinstance(records, OutOfRange):
                raise ClaimLogDivergedError(
                    f"the claim log ends at {records.bounds.end}, {records.offset} records were read of it",
                    offset=records.offset,
                )
            for record in records:
                if record.offset < start:
                    log.confirm(bounds.begin, bounds.end, record.value)
                else:
                    self.take(self.replica.read(record.offset, record.value, self._loop.time()))

    def _append(self, record: bytes) -> None:
        self.claims += 1
        key = self.replica.membership.stream.encode()
        self._writer.append(key, record).add_done_callback(self._appended)

    @staticmethod
    def _appended(appended: Future[int | None]) -> None:
        if (error := appended.exception()) is not None:
            LOG.warning("a claim may not be in the log, it is sent again: %(error)s", {"kind": "claim", "error": error})

    # --- steps --------------------------------------------------------------------------------------------------------

    async def committed(self) -> None:
        """Return when every step so far is committed."""
        done = asyncio.Event()
        self.take(Step((), ()), then=done.set)
        await done.wait()

    def take(
        self,
        step: Step,
        *,
        bodies: dict[Ref, bytes] | None = None,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Commit the rows of a step, then perform its actions, then call ``then``."""
        if self._ended:
            return
        self._arm()
        bodies = bodies or {}
        committed = self._rows.apply(step.rows, bodies) if step.rows else None
        new = [row.block for row in step.rows if isinstance(row, PutBlock)]
        waiting = _Waiting(committed, step.actions, self._with_parents(step), partial(self._done, new, then))
        if committed is None and not self._uncommitted:
            self._act(waiting)
            return
        self._uncommitted += 1
        self._steps.put_nowait(waiting)

    def _done(self, new: Sequence[Block], then: Callable[[], object]) -> None:
        for block in new:
            self.stored(self._block(block.ref))
        then()
        self.changed()

    def _block(self, ref: Ref) -> BlockId:
        return self._objects.block_of(object_of(BlockId(*ref)))

    def _with_parents(self, step: Step) -> list[AgreedBlock]:
        """Acknowledged blocks of a step, with their parents."""
        parents: dict[bytes, bytes] = {}
        found: list[AgreedBlock] = []
        for action in step.actions:
            match action:
                case Agreed(header):
                    path = [header.parent, *(item.hash for item in header.items)]
                    parents.update((item.hash, parent) for item, parent in zip(header.items, path, strict=False))
                case Acknowledged(refs):
                    for ref in refs:
                        here = self.replica.pool.blocks.get(ref.hash)
                        parent = parents.get(ref.hash) if here is None else here.parent
                        if parent is not None:
                            found.append(AgreedBlock(self._block(ref), self._block(Ref(ref.number - 1, parent))))
                case _:
                    pass
        return found

    def _arm(self) -> None:
        """Have the replica's clock run."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.replica.deadline < float("inf"):
            self._timer = self._loop.call_at(self.replica.deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.take(self.replica.tick(self._loop.time()))

    def _act(self, step: _Waiting) -> None:
        for action in step.actions:
            self._perform(action)
        if step.acknowledged:
            self.acknowledged(step.acknowledged)
        step.then()

    def _perform(self, action: Action) -> None:
        match action:
            case Send(peer, message):
                if self._links is not None:
                    self._links.send(peer, *_encoded(message))
            case Broadcast(message):
                if self._links is not None:
                    self._links.broadcast(*_encoded(message))
            case Append(record):
                self._append(record)
            case Denied(ref, reason):
                self._deny(ref, reason)
            case _:
                self._report(action)

    def _report(self, action: Action) -> None:
        """Log and count what concerns an operator."""
        match action:
            case Divergence(ref, _, _, by):
                other = by or "a majority of the members"
                named = {"block": ref.number, "hash": LoggedHash(ref.hash), "peer": other}
                self._event("divergence", f"block {ref.number} has other content at {other}", **named)
            case StateDivergence(peer, num):
                sentence = f"{peer} has another state before batch {num}: the next claim decides"
                self._event("state_divergence", sentence, peer=peer, batch=num)
            case ClaimRefused(offset, refusal):
                self.events[f"claim_{refusal.name.lower()}"] += 1
                fields = {"kind": f"claim_{refusal.name.lower()}", "offset": offset, "reason": refusal}
                LOG.debug("the claim at offset %(offset)d counts for nothing: %(reason)s", fields)
            case EpochClosed(num):
                self.closed = True
                sentence = f"the epoch ended with batch {num}: start this node with the next one"
                self._event("epoch_closed", sentence, batch=num)
            case _:  # Acknowledged, Agreed, Want, CheckpointRead: the replica's state has it
                pass

    def _deny(self, ref: Ref, reason: Denial) -> None:
        done = self._admitted[ref]
        error: CardinalError
        if reason in _DENIALS:
            error = ApplicationError(f"block {ref.number} is not stored: {_DENIALS[reason]}")
        else:
            error = StoreError(f"block {ref.number} is not stored: {reason}")
        done.set_exception(error)

    def _event(self, kind: str, sentence: str, **fields: object) -> None:
        self.events[kind] += 1
        LOG.warning(SENTENCE, {"kind": kind, "message": sentence, **fields})


def _encoded(message: Message) -> tuple[int, bytes]:
    return KINDS[type(message)], encode(message)
