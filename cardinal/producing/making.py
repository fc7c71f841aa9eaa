"""Payloads to units: what is sent of a block at once, and what when its turn has come.

Rules:

1. Nothing of a block is sent that the topics cannot carry as a whole: it is split and measured first.
2. Without transactions a block's content goes at once and its Batch when it is free to be sealed. With them all of it
   goes when it is free, as one transaction.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cardinal.producing.unit import Unit, nothing
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.transports.base import TransactionalSink
from cardinal.transports.posting import posting, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef, Routed
    from cardinal.transports.base import Sink
    from cardinal.transports.posting import Done


class Maker:
    """See the module."""

    def __init__(self, sink: Sink, app: Stream) -> None:
        self._app = app
        self._poster = posting(sink)
        self._transactions = sink if isinstance(sink, TransactionalSink) else None

    def block(self, payload: Payload) -> Unit:
        """One block. SplitError, OversizeError, TopicError, TransportError: nothing was sent."""
        messages = split(payload, self._app.topics, self._app.default_topic)
        size = self._poster.measure(messages)
        count = len(messages)
        batch = messages.pop()
        announced = {one for one, content in payload.sub_batches.items() if content is None}
        start, finish = (self._post, self._seal) if self._transactions is None else (nothing, self._commit)
        return Unit(payload.hash, payload.parent, batch, messages, start, finish, 1, count, size, announced)

    def together(self, ancestor: BlockRef, units: Sequence[Unit]) -> Unit:
        """A branch above its ancestor as one unit that is one transaction."""
        seals = [unit.batch for unit in units if unit.batch is not None]
        content = [message for unit in units for message in unit.content]
        return Unit(
            units[-1].hash,
            ancestor.hash,
            None,
            content,
            start=nothing,
            finish=partial(self._commit_all, seals),
            blocks=len(units),
            messages=len(content) + len(seals),
            size=sum(unit.size for unit in units),
        )

    # --- steps ---------------------------------------------------------------------------------------------

    def _post(self, unit: Unit, done: Done) -> None:
        content, unit.content = unit.content, []
        self._poster.post(content, unit.size, done)

    def _seal(self, unit: Unit, done: Done) -> None:
        if unit.batch is not None:
            self._poster.post_seal(unit.batch, done)

    def _commit(self, unit: Unit, done: Done) -> None:
        self._commit_all([unit.batch] if unit.batch is not None else [], unit, done)

    def _commit_all(self, seals: Sequence[Routed], unit: Unit, done: Done) -> None:
        content, unit.content = unit.content, []
        if self._transactions is not None:
            tell(self._transactions.transact(content, seals), done)
