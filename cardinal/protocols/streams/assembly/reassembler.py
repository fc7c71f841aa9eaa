"""Records in any order and any number of copies to complete blocks (specification, Consumers).

Rules, where the specification is silent:

1. Nothing here depends on the clock, on how records are cut into calls, or on anything but their sequence.
2. Of the copies of one (block, key) seen before completion the one at the lowest (topic, partition, offset)
   counts. A copy that differs is a :class:`~.events.Divergence`, also after completion within the window.
3. A key counts under the longest counted prefix of its block that it starts with; beyond its count it is
   :class:`~.events.Surplus` and not part of the block.
4. A value that does not decode is :class:`~.events.Rejected` and ignored; a later good copy works.
5. Up to four distinct Batches of a hash are held. Where the first cannot be completed by the deadline and another
   can, that one is delivered and the first reported (:class:`~.events.Superseded`).
6. The deadline is counted in blocks that were completed since the first message of a block: numbers come from the
   wire and prove nothing. An overdue block is reported once (:class:`~.events.Incomplete`), so that somebody can
   supply what it lacks. A message that was supplied counts where no topic brought one.
7. Open blocks are bounded in number and bytes. Hashes without a Batch go first, oldest first, then the lowest
   numbers, what is read again last; every eviction is an :class:`~.events.Overflow`. Where the messages of a block lay
   is remembered, so that it can be read again.
8. It never raises on anything that a record can hold, and never decides an order between blocks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import length_hint
from typing import Final

from cardinal.errors import ConfigurationError, DecodeError
from cardinal.protocols.streams.events import (
    Completed,
    Header,
    Incomplete,
    Overflow,
    PingSeen,
    Quarantined,
    ReassemblyEvent,
    Rejected,
    ReorgBegan,
    ReorgEnded,
    Stale,
    Superseded,
)
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.quorum.standings import all_below, lowest
from cardinal.protocols.streams.types import SEALED_HEADER, BlockRef, Partition, Record, Routed, Row, path_text, short
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH_DELETE_MSG, BATCH_MSG, Ping, Reorg, ReorgComplete

from .block import MESSAGE_OVERHEAD, Candidate, Explanation, OpenBlock
from .contents import Contents, HeaderOnly
from .counters import NO_RUN, Tracked, path_test
from .divergence import Copies
from .finished import FinishedBlock, FinishedBlocks
from .intake import Intake
from .late import LateCopies
from .tombstones import Tombstones
from .window import Bounds, OpenBlocks

_BOUNDS: Final = Bounds()
_NO_HEAD: Final = bytes(HASH_END + 1)
"""What no key begins with: type and hash are shorter."""
_SUPPLIED: Final = -1
"""Partition and offset of a message that came from no topic."""
_NO_DELETES: Final[frozenset[str]] = frozenset()


class Reassembler:
    """Blocks under assembly.

    Arguments:
        tracked: expressions searched in a Batch's entries; None follows everything.
        reorg_threshold: blocks. Late copies of completed blocks are recognised for twice as many.
        prefixes: the expressions under which the application counts; an entry of a Batch that says nothing and
            matches one is a count of 0, not an empty value.
        volatile: expressions searched in a path: copies whose values differ only there are equal.
        inline: whether a Batch's own values and deletes are delivered whatever ``tracked`` says.
        contents: whether records carry values or digests.
        deadline: blocks completed since a block's first message, after which it is overdue; None: a quarter of the
            threshold.
        bounds: see :class:`Bounds`.

    Raises:
        ConfigurationError: a threshold below 1, an expression that does not compile.

    """

    def __init__(
        self,
        tracked: Sequence[str] | None = None,
        reorg_threshold: int = 128,
        *,
        prefixes: Iterable[str] = (),
        volatile: Iterable[str] = (),
        inline: bool = False,
        contents: Contents = Contents.VALUES,
        deadline: int | None = None,
        bounds: Bounds = _BOUNDS,
    ) -> None:
        if reorg_threshold < 1:
            raise ConfigurationError("the reorg threshold must be 1 block or more", setting="reorg_threshold")
        self._tracked = None if tracked is None else Tracked(tracked, inline=inline)
        self._is_prefix = path_test(prefixes, "prefixes", re.Pattern.match)
        copies = Copies(path_test(volatile, "volatile", re.Pattern.search), decoded=contents is Contents.VALUES)
        self._contents = contents
        self._threshold = reorg_threshold
        self._bounds = bounds
        self._open = OpenBlocks(bounds, max(1, reorg_threshold // 4) if deadline is None else deadline)
        self._intake = Intake(self._open, copies, self._tracked, self._is_prefix, contents)
        self._late = LateCopies(copies, self._tracked)
        self._records = 0
        self._done = FinishedBlocks(2 * reorg_threshold, bounds.finished_bytes)
        self._done_names: frozenset[bytes] = frozenset()
        self._tombstones = Tombstones(bounds.headless_distance)
        self._trimmed = -1

    # --- reading ---------------------------------------------------------------------------------------------

    def receive(  # noqa: C901, PLR0912, PLR0915 - the hot loop: a call per message would cost a third of the speed
        self, records: Iterable[Row]
    ) -> list[ReassemblyEvent]:
        """Take records in the order read; returns what came of them, in order.

        Messages mostly come in runs: new values of one block, under one counted prefix, from one partition. What they
        need of their block stands in local names, and is written back when the run ends: with its room or count used
        up, or at the first record that does not belong to it (``room = 0`` ends it).
        """
        events: list[ReassemblyEvent] = []
        find, done = self._open.get, self._done.get
        most, overhead = self._bounds.open_bytes, MESSAGE_OVERHEAD
        records = records if isinstance(records, list) else list(records)
        reading = iter(records)
        end = self._records + len(records)
        late, topic, partition = _NO_HEAD, "", _SUPPLIED
        block, finished = OpenBlock(b"", 0), FinishedBlock(0)  # until there are others
        messages: dict[bytes, Row] = {}
        hold = messages.setdefault
        copies: dict[bytes, Row] = {}
        begins, counted, expected = NO_RUN
        left = size = room = held = 0
        for record in reading:
            key = record[3]
            if not room or not key.startswith(begins) or record[1] is not partition or record[0] is not topic:
                if size:
                    self._took(block, counted, expected - left, size)
                size = room = 0
                head = key[:HASH_END]
                if head == late:
                    known = copies.get(key)
                    if known is None or known[4] != record[4]:
                        self._late.compare(finished, record, events)
                    continue
                if len(head) < HASH_END or head[0] > BATCH_DELETE_MSG:
                    if key:
                        self._special(record, events)
                    continue
                found = find(head[1:])
                if found is None:
                    self._records = end - length_hint(reading)
                    if (past := done(head[1:])) is not None:
                        self._late.compare(past, record, events)
                        if past.held is not None and head[0] == BATCH_MSG:
                            late, finished, copies = head, past, past.held.messages
                        continue
                    found = self._open_block(record, events)
                    if found is None:
                        continue
                block, topic, partition = found, record[0], record[1]
                if partition >= 0 and (topic, partition) not in block.first:
                    block.first[topic, partition] = record[2]
                begins, counted, expected = self._intake.run(block, key)
                if not expected:
                    self._other(block, record, events)
                    late = _NO_HEAD
                    continue
                messages, hold = block.messages, block.messages.setdefault
                held, left, room = len(messages), expected, most - self._open.bytes
            known = hold(key, record)
            if len(messages) == held:
                if known[4] != record[4] or known[1] < 0:
                    self._took(block, counted, expected - left, size)
                    size = room = 0
                    self._intake.copy(block, Record._make(known), Record._make(record), events)
                continue
            held += 1
            left -= 1
            size += len(key) + len(record[4]) + overhead
            if not left or size > room:
                self._took(block, counted, expected - left, size)
                size, room, late = 0, 0, _NO_HEAD
                self._settle(block, events)
        if size:
            self._took(block, counted, expected - left, size)
        self._records = end
        return events

    def _took(self, block: OpenBlock, counted: bytes, count: int, size: int) -> None:
        """So many messages of a run are held."""
        if block.counters is not None:
            block.counters.take_run(counted, count)
        self._open.grow(block, size)

    def supply(self, messages: Iterable[Routed]) -> list[ReassemblyEvent]:
        """Take messages that a node or an archive had: they count where no topic brought a copy."""
        return self.receive(Record(topic, _SUPPLIED, _SUPPLIED, key, value) for topic, key, value in messages)

    def _open_block(self, record: Row, events: list[ReassemblyEvent]) -> OpenBlock | None:
        key = record[3]
        block_hash = key[1:HASH_END]
        if key[0] >= BATCH_MSG and self._tracked is not None and not self._tracked.may_belong(key[HASH_END:]):
            return None
        if block_hash in self._tombstones:
            if self._tombstones.wants_reading(Record._make(record)):
                explanation = Explanation(
                    block_hash,
                    None,
                    "dropped",
                    positions=self._tombstones.positions(block_hash),
                    reason="its messages were dropped before its Batch came",
                )
                events.append(Incomplete(explanation))
            return None
        if self._done_names and short(block_hash) in self._done_names:
            return None
        block = self._open.open(block_hash, self._records, self._tombstones.begins(block_hash))
        if len(self._open) > self._bounds.open_blocks:
            self._evict(events)
            if block_hash not in self._open:
                return self._open_block(record, events)  # it was dropped itself: where this record lies is noted
        return block

    def _special(self, row: Row, events: list[ReassemblyEvent]) -> None:
        """Pings, reorg channels, and what is no message at all."""
        record = Record._make(row)
        position = record[:3]
        try:
            message = decode(record.key, record.value)
        except DecodeError as error:
            events.append(Rejected(position, record.key, error.reason))
            return
        match message:
            case Ping():
                events.append(PingSeen(message, position))
            case Reorg():
                events.append(ReorgBegan(BlockRef(message.number, message.hash), position))
            case ReorgComplete():
                events.append(ReorgEnded(BlockRef(message.number, message.hash), position))
            case _:  # decode gives nothing else for these types
                raise AssertionError(message)

    def _other(self, block: OpenBlock, record: Row, events: list[ReassemblyEvent]) -> None:
        """Every message but a BatchMsg of a block that is in time: the same, one step after the other."""
        self._intake.take(block, record, events)
        if block.messages or block.candidates:
            self._settle(block, events)
        else:
            self._open.drop(block)  # a block that holds nothing must not pin positions

    def _settle(self, block: OpenBlock, events: list[ReassemblyEvent]) -> None:
        """Finish the block if it can be, or stay within the bounds."""
        for candidate in block.candidates[: None if block.overdue else 1]:
            if candidate.complete():
                self._finish(block, candidate, events)
                return
        if self._open.bytes > self._bounds.open_bytes:
            self._evict(events)

    # --- blocks as a whole -----------------------------------------------------------------------------------

    def _finish(self, block: OpenBlock, candidate: Candidate, events: list[ReassemblyEvent]) -> None:
        self._open.drop(block)
        fields, batch = candidate.fields, candidate.batch
        payload: Header
        if self._contents is Contents.VALUES:
            deletes, updates = block.content(candidate, self._is_prefix)
            payload = Payload(
                fields.number,
                block.hash,
                fields.parent,
                fields.weight,
                updates,
                frozenset(map(path_text, deletes)) if deletes else _NO_DELETES,
            )
        else:
            marks = {entry.path: entry.value for entry in fields.entries.values() if entry.value}
            payload = HeaderOnly(fields.number, block.hash, fields.parent, fields.weight, marks)
        if candidate is not block.candidates[0]:
            replaced = block.candidates[0].batch
            events.append(Superseded(block.hash, fields.number, replaced[:3], batch[:3]))
        ends = block.ends(candidate)
        self._tombstones.settled(block.hash)
        self._done.add(block.hash, FinishedBlock(fields.number, block, candidate))
        sealed = any(name == SEALED_HEADER for name, _ in batch.headers)
        events.append(Completed(payload, block.first, ends, batch.timestamp_ms, sealed, block.size))
        if fields.parent in self._done or fields.parent in self._open:
            self._open.progress()  # blocks that stand on nothing that is known prove none
        for due in self._open.overdue():
            self._overdue(due, events)

    def _overdue(self, block: OpenBlock, events: list[ReassemblyEvent]) -> None:
        block.overdue = True
        for candidate in block.candidates[1:]:
            if candidate.complete():
                self._finish(block, candidate, events)
                return
        events.append(Incomplete(block.explain()))

    def _evict(self, events: list[ReassemblyEvent]) -> None:
        for block in self._open.surplus():
            number = None if block.fields is None else block.fields.number
            events.append(Overflow(block.hash, number, dict(block.first), "open blocks are over their bound"))
            self._tombstones.bury(block)

    def give_up(self, block_hash: bytes, reason: str) -> list[ReassemblyEvent]:
        """Wait no longer for an open block."""
        block = self._open.get(block_hash)
        if block is None:
            return []
        self._open.drop(block)
        self._tombstones.settled(block_hash)
        fields = block.fields
        number, header = 0, None
        if fields is not None:
            number = fields.number
            header = HeaderOnly(number, block_hash, fields.parent, fields.weight, {})
        self._done.add(block_hash, FinishedBlock(number, reason=reason))
        return [Quarantined(block_hash, None if fields is None else number, reason, header)]

    def reread(self, block_hash: bytes, known: Mapping[Partition, int] | None = None) -> Mapping[Partition, int] | None:
        """Hold a block again that was dropped, or finished and then dropped by whoever orders blocks.

        Arguments:
            block_hash: which.
            known: where its messages begin, if somebody else knows it.

        Returns:
            Where to read its messages from; None where that is not known here.

        """
        self._done.forget(block_hash)
        return self._tombstones.lift(block_hash, known)

    def needless(self, block_hash: bytes) -> None:
        """Whoever joins several reassemblers has decided this block: what was dropped of it is needed no longer."""
        self._tombstones.settled(block_hash)

    # --- what the rest of the room needs ---------------------------------------------------------------------

    def resumed(self, until: Mapping[Partition, int], waited: Collection[bytes]) -> frozenset[bytes]:
        """What was delivered before is read again: see :class:`~.assembler.Assembler`."""
        unnamed = (block for block in self._open.values() if short(block.hash) not in waited)
        old = [block for block in unnamed if all_below(block.first, until)]
        for block in old:
            block.late = True
        return frozenset(block.hash for block in old)

    def head_moved(self, number: int) -> list[ReassemblyEvent]:
        """The chain's head is at ``number``: give up open blocks below the threshold, forget old late copies."""
        events: list[ReassemblyEvent] = []
        # Done at whole steps of the number, so that the work is spread and still a function of the head alone.
        step = max(1, self._threshold // 8)
        head = number - number % step
        if head == self._trimmed:
            return events
        self._trimmed = head
        self._tombstones.passed(head - self._threshold)
        for block in self._open.below(head - self._threshold):
            events += self._pass_over(block)
        self._done.head_moved(head)
        return events

    def _pass_over(self, block: OpenBlock) -> list[ReassemblyEvent]:
        """An open block below the threshold.

        One whose Batch came when the chain was past it was never waited for: it is a copy of an old block that was
        sent again, or a part of one that is read again after a restart.
        """
        late = "came when the chain was past it"
        given_up = self.give_up(block.hash, late if block.late else f"still incomplete {self._threshold} blocks later")
        if block.fields is None or not block.late:
            return given_up
        return [Stale(BlockRef(block.fields.number, block.hash), late)]

    def open_positions(self) -> dict[Partition, int]:
        """For every partition the lowest offset that an open block still needs, or a dropped one, or one lower."""
        return lowest(self._open.positions(self._records), self._tombstones.lowest(self._records))

    def open_blocks(self) -> list[bytes]:
        """The hashes of the open blocks, oldest first."""
        return list(self._open)

    def dropped_blocks(self) -> Collection[bytes]:
        """The hashes of the blocks that were dropped and can be read again, oldest first."""
        return self._tombstones.blocks()

    def dropped(self, block_hash: bytes) -> bool:
        """Whether this is one of :meth:`dropped_blocks`."""
        return block_hash in self._tombstones

    @property
    def recovers(self) -> bool:
        """Whether there are blocks that were dropped and are not whole yet, read again or not."""
        return self._tombstones.pending

    @property
    def fullness(self) -> float:
        """How much of the room for open blocks is taken, 0 to 1, in number or in bytes."""
        return max(len(self._open) / self._bounds.open_blocks, self._open.bytes / self._bounds.open_bytes)

    @property
    def lowest_open(self) -> int | None:
        """The number of the lowest open block that has a Batch; None without one."""
        return self._open.lowest

    @property
    def held_bytes(self) -> int:
        """What open blocks, and completed ones that are kept to compare with, cost in bytes."""
        return self._open.bytes + self._done.held_bytes

    def done_blocks(self) -> list[tuple[int, bytes]]:
        """Number and hash of the completed blocks that are still recognised."""
        return list(self._done)

    def ignore(self, names: Iterable[bytes]) -> None:
        """Treat blocks whose hash has one of these short names as done (resuming: late copies of old blocks)."""
        self._done_names = frozenset(names)

    def held(self, block_hash: bytes) -> OpenBlock | FinishedBlock | None:
        """What there is of this block: under assembly, or finished with; None where it is neither."""
        return self._open.get(block_hash) or self._done.get(block_hash)

    def number_of(self, block_hash: bytes) -> int | None:
        """The number that its Batch gives to a block; None before the Batch came, and when the block is forgotten."""
        if (block := self._open.get(block_hash)) is not None:
            return None if block.fields is None else block.fields.number
        done = self._done.get(block_hash)
        return None if done is None else done.number

    def explain(self, block_hash: bytes) -> Explanation:
        """What this block waits for, or what became of it."""
        if (block := self._open.get(block_hash)) is not None:
            return block.explain()
        if (done := self._done.get(block_hash)) is not None:
            return Explanation(
                block_hash, done.number, "quarantined" if done.reason else "complete", reason=done.reason
            )
        if block_hash in self._tombstones:
            return Explanation(block_hash, None, "dropped", positions=self._tombstones.positions(block_hash))
        if self._done_names and short(block_hash) in self._done_names:
            return Explanation(block_hash, None, "done", reason="it was done with before the stream was resumed")
        return Explanation(block_hash, None, "unknown")
