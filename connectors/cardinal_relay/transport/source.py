"""Source of a served stream: ``ws://host:port``.

Positions are the client's: the server learns them on every connection and keeps none of them. An
unreachable server, also one that is another when it returns, is waited for and read on from there. Memory is bounded by
the window (:mod:`.inbox`). Paused partitions are not sent.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import RemoteProtocolError, TopicError, UnreachableError
from cardinal.transports.base import Source
from cardinal.transports.expired import check_positions

from . import protocol
from .client import Client
from .errors import RECREATED
from .inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition, Record

    from .settings import WebsocketSettings

_TOPICS_SECONDS: Final = 0.1


class WebsocketSource(Source):
    """Source on a server.

    Arguments:
        settings: the servers.
        topics: the topics to read.
        wait: seconds to wait for topics that do not exist yet.

    Raises:
        UnreachableError, RefusedError, TopicError: no server answers, it refuses, or has no such topic.

    """

    def __init__(self, settings: WebsocketSettings, topics: Sequence[str], *, wait: float = 0.0) -> None:
        self._inbox = Inbox(settings.window, settings.frame_max)
        self._topics = tuple(topics)
        self._address = settings.address
        self._client = Client(settings, self._inbox)
        try:
            self._partitions = self._find(wait)
        except BaseException:
            self._client.close()
            raise

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics as they are now, sorted; the last seen ones while the server is unreachable."""
        with contextlib.suppress(UnreachableError):
            self._partitions = tuple(sorted(self.watermarks()))
        return self._partitions

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read from these positions on: see :meth:`cardinal.transports.base.Source.assign`."""
        check_positions(positions, self.watermarks(), f"at {self._address}", remedy="", cause=RECREATED)
        self._inbox.assign(positions)
        self._client.wake()

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call; an empty call resumes all."""
        self._inbox.pause(partitions)
        if self._inbox.due:
            self._client.wake()

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """Records: see :meth:`cardinal.transports.base.Source.poll`. An error comes after the records before it."""
        try:
            records = self._inbox.take(limit, timeout)
        except RemoteProtocolError:
            self._client.close()
            raise
        if self._inbox.due:
            self._client.wake()
        return records

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition."""
        return self._inbox.positions()

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained and the next readable offset of every partition."""
        answer = self._client.request(
            lambda number: protocol.GetWatermarks(number, self._topics), protocol.Watermarks, "watermarks"
        )
        return protocol.by_partition(answer.partitions)

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        answer = self._client.request(
            lambda number: protocol.FindTime(number, self._topics, timestamp_ms), protocol.Offsets, "offsets by time"
        )
        return protocol.by_partition(answer.partitions)

    def close(self) -> None:
        """Release the connection. May be called twice."""
        self._client.close()

    def _find(self, wait: float) -> tuple[Partition, ...]:
        deadline = time.monotonic() + wait
        while True:
            try:
                return tuple(sorted(self.watermarks()))
            except TopicError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_TOPICS_SECONDS)
