"""Copies of messages that come after their block was completed: only whether they differ is of interest."""

from __future__ import annotations

from cardinal.errors import DecodeError
from cardinal.protocols.streams.events import Divergence, ReassemblyEvent, Rejected, Surplus
from cardinal.protocols.streams.types import Record, Row
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG

from .counters import Taken, Tracked
from .divergence import Copies, held_content
from .finished import FinishedBlock


class LateCopies:
    """How a late copy is judged.

    Arguments:
        copies: how copies are compared.
        tracked: which entries are followed; None: all.

    """

    def __init__(self, copies: Copies, tracked: Tracked | None) -> None:
        self._copies = copies
        self._tracked = tracked

    def compare(self, done: FinishedBlock, late: Row, events: list[ReassemblyEvent]) -> None:
        """Report a copy that differs, as long as what to compare it with is held."""
        if done.held is None or done.candidate is None:
            return
        key = late[3]
        block_hash = key[1:HASH_END]
        kept = done.candidate.batch if key[0] == BATCH else done.held.messages.get(key)
        if kept is None:
            followed = key[0] < BATCH_MSG or self._tracked is None or self._tracked.may_belong(key[HASH_END:])
            if followed and done.candidate.take(key) is Taken.BEYOND:
                events.append(Surplus(block_hash, key, late[:3]))
            return
        if kept[4] == late[4]:
            return
        kept, record = Record._make(kept), Record._make(late)
        try:
            if key[0] == BATCH:
                same = self._copies.same_batch(done.candidate.fields, avro.read_batch(record.value))
            else:
                same = self._copies.same(kept, record, held_content(done.held, key))
        except DecodeError as error:
            events.append(Rejected(record[:3], key, error.reason))
            return
        if not same:
            events.append(Divergence(block_hash, key, kept.value, record.value, (kept[:3], record[:3])))
