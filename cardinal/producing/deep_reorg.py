"""A reorg through a channel of its own, and what a producer asks of any branch (specification, Reorg Handling).

Rules:

1. The channel's topic is there before it is announced, and the announcement is acknowledged before anything else is
   sent: whoever reads the announcement can read the channel.
2. On the channel stand Reorg, every message of every block, and ReorgComplete, which is handed over when all the rest
   is acknowledged. Batches are sealed as everywhere.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError, LocalProtocolError
from cardinal.producing.unit import Unit, nothing
from cardinal.protocols.streams.publishing.splitter import split_reorg
from cardinal.protocols.streams.wire.messages import BATCH
from cardinal.transports.base import ChannelSink, TransactionalSink
from cardinal.transports.posting import end, new_future, size_of, tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef, Routed
    from cardinal.transports.base import Sink
    from cardinal.transports.posting import Done

_BATCH: Final = bytes((BATCH,))


def linked(ancestor: BlockRef, payloads: Iterable[Payload]) -> list[Payload]:
    """The branch, if it is one.

    Raises:
        LocalProtocolError: it is empty, its blocks are no chain above the ancestor, or a sub batch has no content.

    """
    branch = list(payloads)
    if not branch:
        raise LocalProtocolError(f"a reorg above block {ancestor.number} needs at least one block")
    below = ancestor
    for payload in branch:
        if (payload.number, payload.parent) != (below.number + 1, below.hash):
            raise LocalProtocolError(
                f"block {payload.number} (0x{payload.hash.hex()}) is no child of block {below.number} "
                f"(0x{below.hash.hex()}): give a reorg's blocks oldest first, each the parent of the next"
            )
        if None in payload.sub_batches.values():
            raise LocalProtocolError(f"block {payload.number} of a reorg announces a sub batch without its content")
        below = payload.ref
    return branch


def all_of(futures: Sequence[Future[None]]) -> Future[None]:
    """A future that ends when all of these have, with the first error."""
    whole = new_future()
    lock = threading.Lock()
    left = len(futures)
    errors: list[BaseException] = []

    def ended(one: Future[None]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if (error := one.exception()) is not None:
                errors.append(error)
            if left:
                return
        end(whole, errors[0] if errors else None)

    for future in futures:
        future.add_done_callback(ended)
    return whole


def well_or_failed(futures: Sequence[Future[None]]) -> Future[None]:
    """A future that ends when all of these have ended well, or with the first error: others may wait for that one."""
    whole = new_future()
    lock = threading.Lock()
    left = len(futures)

    def ended(one: Future[None]) -> None:
        nonlocal left
        error = one.exception()
        with lock:
            left = 0 if error is not None and left > 0 else left - 1
            last = left == 0
        if last:
            end(whole, error)

    for future in futures:
        future.add_done_callback(ended)
    return whole


class Channel:
    """One attempt at a reorg through a channel; ``unit`` is what moves through the queue.

    Raises:
        ConfigurationError: the sink carries no channels.
        SplitError, OversizeError, TopicError, …: of the sink; nothing was sent.

    """

    def __init__(self, sink: Sink, app: Stream, ancestor: BlockRef, branch: Sequence[Payload]) -> None:
        if not isinstance(sink, ChannelSink):
            raise ConfigurationError(
                f"this transport has no reorg channels, and a reorg down to block {ancestor.number} needs one"
            )
        self._sink = sink
        self._announcement, messages = split_reorg(ancestor, branch, app.topics, app.default_topic)
        sink.open_channel(messages[0].topic)
        sink.check((self._announcement,))
        sink.check(messages)
        self._began, self._complete = messages[0], messages[-1]
        self._blocks: list[tuple[list[Routed], Routed]] = []
        content: list[Routed] = []
        for message in messages[1:-1]:
            if message.key[:1] == _BATCH:
                self._blocks.append((content, message))
                content = []
            else:
                content.append(message)
        whole = isinstance(sink, TransactionalSink)
        self.unit = Unit(
            branch[-1].hash,
            ancestor.hash,
            None,
            [],
            start=nothing if whole else self._start,
            finish=partial(self._transact, sink) if isinstance(sink, TransactionalSink) else self._finish,
            blocks=len(branch),
            messages=len(messages) + 1,
            size=size_of(messages),
        )

    def _start(self, unit: Unit, done: Done) -> None:
        del unit
        announced = self._sink.send((self._announcement,), None)
        if announced.exception() is None:
            sent = [self._sink.send((self._began,), None)]
            sent += [self._sink.send(content, seal) for content, seal in self._blocks]
            announced = all_of(sent)
        tell(announced, done)

    def _finish(self, unit: Unit, done: Done) -> None:
        del unit
        tell(self._sink.send((self._complete,), None), done)

    def _transact(self, sink: TransactionalSink, unit: Unit, done: Done) -> None:
        del unit
        content = [message for messages, _ in self._blocks for message in messages]
        seals = [seal for _, seal in self._blocks]
        tell(sink.transact([self._announcement, self._began, *content], seals, [self._complete]), done)
