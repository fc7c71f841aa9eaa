"""Blocks of producers that do not seal, seen complete by reading all of their topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardinal.protocols.streams.events import Completed
from cardinal.protocols.streams.reassembler import Reassembler
from cardinal.transports.url import open_source

if TYPE_CHECKING:
    from cardinal.producing.stream import Stream
    from cardinal.protocols.streams.types import Record
    from cardinal.transports.url import TransportUrl

_LIMIT: Final = 5_000
_BEFORE_BATCH_MS: Final = 60_000


class Whole:
    """Sees blocks complete whose Batches are not sealed: reads all topics from a minute before the first of them."""

    def __init__(self, url: str | TransportUrl, app: Stream, first: Record) -> None:
        self._source = open_source(url, app)
        self._reassembler = Reassembler(tuple(app.topics) or None, prefixes=tuple(app.topics))
        self._source.assign(self._source.offsets_for_time(max(0, first.timestamp_ms - _BEFORE_BATCH_MS)))

    def read(self) -> list[bytes]:
        """The blocks that have become complete."""
        records = self._source.poll(_LIMIT, 0.0)
        return [event.payload.hash for event in self._reassembler.receive(records) if isinstance(event, Completed)]

    def close(self) -> None:
        """Release the connection."""
        self._source.close()
