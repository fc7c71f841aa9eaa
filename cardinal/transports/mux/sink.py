"""Sink that writes to several transports at once: see :mod:`cardinal.transports.mux`."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from cardinal._concurrency import new_future, report, settle
from cardinal.errors import CardinalError
from cardinal.transports.base import Capabilities, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from cardinal._concurrency import Done
    from cardinal.protocols.streams.types import Record, Routed
    from cardinal.transports.written import Written


class MuxSink(Sink):
    """Sink that writes to several transports, with their common capabilities.

    Arguments:
        members: the first partition number and the sink of each.

    """

    def __init__(self, members: Sequence[tuple[int, Sink]]) -> None:
        self._members = tuple(members)
        capabilities = [sink.capabilities for _, sink in self._members]
        self.capabilities = Capabilities(
            channels=all(each.channels for each in capabilities),
            records=all(each.records for each in capabilities),
            foreign_clock=next(filter(None, (each.foreign_clock for each in capabilities)), ""),
        )

    def check(self, messages: Sequence[Routed]) -> int:
        """Refuse messages that a member does not carry: see :meth:`cardinal.transports.base.Sink.check`."""
        return max(sink.check(messages) for _, sink in self._members)

    def post(self, block: Sequence[Routed], seal: Routed | None, done: Done, written: Written | None = None) -> None:
        """Send to every member: see :meth:`cardinal.transports.base.Sink.post`."""
        del written  # offsets differ from member to member
        self.check(block if seal is None else (*block, seal))
        report(_all([partial(sink.send, block, seal) for _, sink in self._members]), done)

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Send to every member: see :meth:`cardinal.transports.base.Sink.replay`."""
        return _all([partial(sink.replay, records) for _, sink in self._members])

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition in every member."""
        for _, sink in self._members:
            sink.open_channel(topic)

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic in every member, at most ``limit`` a partition."""
        return [
            record._replace(partition=first + record.partition)
            for first, sink in self._members
            for record in sink.recent(limit)
        ]

    def flush(self, timeout: float) -> None:
        """Wait until everything sent is acknowledged by all."""
        deadline = time.monotonic() + timeout
        for _, sink in self._members:
            sink.flush(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Close every member."""
        for _, sink in self._members:
            sink.close()


def _all(calls: Sequence[Callable[[], Future[None]]]) -> Future[None]:
    """Make these calls; the future ends with the last of their futures, with the first error."""
    done = new_future()
    lock = threading.Lock()
    left = len(calls)
    first: BaseException | None = None

    def ended(error: BaseException | None) -> None:
        nonlocal left, first
        with lock:
            left -= 1
            first = first or error
            last = left == 0
        if last:
            settle(done, first)

    for call in calls:
        try:
            future = call()
        except CardinalError as error:  # other members may have accepted it already: it fails as a whole
            ended(error)
        else:
            future.add_done_callback(lambda future: ended(future.exception()))
    return done
