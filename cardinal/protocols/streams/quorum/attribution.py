"""Whose record a record is.

Rules:

1. A record's producer is what its header ``cardinal-producer`` says; no header is the id ``anonymous``. Anybody who
   may write to a topic may write that header: it is authentic only where the broker's access rules bind principals to
   topics.
2. Records of producers that are not in the list do not count; each such producer is reported once
   (:class:`~.events.Untrusted`), so many of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cardinal.protocols.streams.events import ReassemblyEvent, Untrusted
from cardinal.protocols.streams.following.reorg_channels import ANONYMOUS
from cardinal.protocols.streams.types import PRODUCER_HEADER, Headers, Row, path_bytes, path_text

_UNTRUSTED_MAX: Final = 64
_ID_SHOWN: Final = 128
"""Bytes of an unknown producer's id that are kept."""


class Attribution:
    """See the module. ``producers``: the ids of those that count; a producer is its place in them."""

    def __init__(self, producers: Sequence[str]) -> None:
        self._places = {path_bytes(name): index for index, name in enumerate(producers)}
        self._untrusted: dict[bytes, None] = {}
        alone: dict[Headers, int] = {((PRODUCER_HEADER, name),): index for name, index in self._places.items()}
        self.by_headers = alone.get
        """The producer of a record whose only header says it, as most records'; None for all others."""

    def producer_of(self, record: Row, events: list[ReassemblyEvent]) -> int | None:
        """Whose record it is; None where it is nobody's who counts, which is reported."""
        producer = next((value for name, value in record[6] if name == PRODUCER_HEADER), ANONYMOUS)
        index = self._places.get(producer)
        if index is None:
            shown = (producer or b"")[:_ID_SHOWN]  # Kafka's headers may have no value at all
            if shown not in self._untrusted and len(self._untrusted) < _UNTRUSTED_MAX:
                self._untrusted[shown] = None
                events.append(Untrusted(path_text(shown), record[:3]))
        return index
