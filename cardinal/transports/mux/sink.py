"""Writing to several transports at once: see :mod:`cardinal.transports.mux`."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from cardinal.errors import CardinalError, TransportError
from cardinal.transports.base import ChannelSink, RecordSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cardinal.protocols.streams.types import Record, Routed
    from cardinal.transports.base import Sink


class MuxSink:
    """A :class:`~cardinal.transports.base.Sink` that writes to several, a ``ChannelSink`` where all of them are."""

    def __init__(self, members: Sequence[tuple[int, Sink]]) -> None:
        self._members = tuple(members)

    def check(self, messages: Sequence[Routed]) -> None:
        """Refuse what a member does not carry: see :meth:`cardinal.transports.base.Sink.check`."""
        for _, sink in self._members:
            sink.check(messages)

    def send(self, block: Sequence[Routed], seal: Routed | None) -> Future[None]:
        """Hand over to every member: see :meth:`cardinal.transports.base.Sink.send`."""
        self.check(block if seal is None else (*block, seal))
        return _all([partial(sink.send, block, seal) for _, sink in self._members])

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition in every member."""
        for _, sink in self._members:
            if not isinstance(sink, ChannelSink):
                raise TransportError(f"a member of this mux cannot carry the reorg channel {topic}")
            sink.open_channel(topic)

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic in every member, at most ``limit`` a partition."""
        return [
            record._replace(partition=first + record.partition)
            for first, sink in self._members
            for record in sink.recent(limit)
        ]

    def flush(self, timeout: float) -> None:
        """Wait until everything handed over is acknowledged by all."""
        deadline = time.monotonic() + timeout
        for _, sink in self._members:
            sink.flush(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Close every member."""
        for _, sink in self._members:
            sink.close()


class MuxRecordSink(MuxSink):
    """One whose members all are a :class:`~cardinal.transports.base.RecordSink`; so it is one."""

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Hand over to every member: see :meth:`cardinal.transports.base.RecordSink.replay`."""
        takers = [sink for _, sink in self._members if isinstance(sink, RecordSink)]
        return _all([partial(sink.replay, records) for sink in takers])


def _all(calls: Sequence[Callable[[], Future[None]]]) -> Future[None]:
    """Make these calls; the future ends when the last of theirs has, with the first error."""
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()
    lock = threading.Lock()
    left = len(calls)
    error: BaseException | None = None

    def ended(failure: BaseException | None) -> None:
        nonlocal left, error
        with lock:
            left -= 1
            error = error or failure
            last = left == 0
        if last and error is None:
            done.set_result(None)
        elif last:
            done.set_exception(error)

    for call in calls:
        try:
            future = call()
        except CardinalError as failure:  # others may have taken it already: it fails as a whole
            ended(failure)
        else:
            future.add_done_callback(lambda future: ended(future.exception()))
    return done
