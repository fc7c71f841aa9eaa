"""Where a new checkpoint begins: the earliest record, the latest, a block's number, or the end of a lake.

Rules:

1. Only the offset that comes out of here is ever used: finding it may take clocks, samples and what is on the broker.
2. Whatever is chosen lies low enough that every message of the first block is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError, CursorExpiredError
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.messages import BATCH

from .index import Index
from .offsets import PlanOffset, lineage_origin
from .planner import initial_offset
from .state import PlanSettings, State

if TYPE_CHECKING:
    from cardinal.protocols.streams.types import Partition, Record
    from cardinal_spark.lake import LastCommitted

    from .window import Window

_MARGIN_MS: Final = 600_000
"""A block's first message is published at most so long before the Batch of a block 2 x threshold below it."""

_PROBE: Final = 200


class Starting:
    """Finds first offsets.

    Arguments:
        settings: of the stream.
        window: on its topics.
        default_topic: where the Batches are.

    """

    def __init__(self, settings: PlanSettings, window: Window, default_topic: str) -> None:
        self._settings = settings
        self._window = window
        self._default_topic = default_topic

    def earliest(self) -> PlanOffset:
        """The start of what the topics hold."""
        return initial_offset(self._settings, self._lows())

    def latest(self) -> PlanOffset:
        """The end of the topics: the first block whose messages are all yet to come is the first one delivered."""
        return initial_offset(self._settings, self._highs())

    def block(self, number: int) -> PlanOffset:
        """So far below a block that the block and its forks are read whole; nothing below it is delivered.

        Raises:
            ConfigurationError: no block so high is on the topics yet.

        """
        wanted = max(0, number - 2 * self._settings.follower.reorg_threshold)
        found: dict[Partition, Record] = {}
        highest = -1
        for where, (low, high) in self._window.marks().items():
            if where[0] == self._default_topic:
                highest = max(highest, self._highest(where, low, high))
                if (batch := self._bisect(where, low, high, wanted)) is not None:
                    found[where] = batch
        if highest < number:
            raise ConfigurationError(
                f"block {number} is not on the topics yet, their highest is {highest}: start there or at 'latest'",
                setting="startingOffsets",
            )
        times = self._window.times(min(batch.timestamp_ms for batch in found.values()) - _MARGIN_MS)
        lows = self._lows()
        pos = {where: max(lows[where], at) for where, at in times.items()}
        for where, batch in found.items():
            pos[where] = min(pos[where], batch.offset)
        return initial_offset(self._settings, pos, number)

    def behind(self, last: LastCommitted) -> PlanOffset:
        """Behind the end of a lake: the next row is ``last.seq + 1``.

        Raises:
            CursorMismatchError: the lake belongs to another chain, or was written with other options.
            CursorExpiredError: the lake's head is not on the topics, or not whole.

        """
        origin = lineage_origin(last.lineage, self._settings.options)
        threshold = self._settings.follower.reorg_threshold
        chain = [row for row in last.chain if row.number >= last.head.number - threshold]
        lowest = chain[0]
        begin = self._lows()
        if lowest.published_at is not None:
            times = self._window.times(lowest.published_at // 1000 - _MARGIN_MS)
            begin = {where: max(low, times[where]) for where, low in begin.items()}
        reached, missing = self._read_until({row.hash for row in chain}, begin)
        if missing:
            gone = next(row for row in reversed(chain) if row.hash in missing)
            raise CursorExpiredError(
                f"block {gone.number} (0x{gone.hash.hex()}) of the lake is not whole on the topics, so no stream "
                "can go on behind it: read a stream that still holds it, or start a new lake",
                missing={},
            )
        return replace(
            initial_offset(self._settings, reached),
            floor=begin,
            seq=last.seq,
            top=last.head.number,
            head=last.head,
            start=lowest.head,
            origin=origin,
            judge=True,
        )

    # --- inside --------------------------------------------------------------------------------------------------

    def _lows(self) -> dict[Partition, int]:
        return {where: low for where, (low, _) in self._window.marks().items()}

    def _highs(self) -> dict[Partition, int]:
        return {where: high for where, (_, high) in self._window.marks().items()}

    def _highest(self, where: Partition, low: int, high: int) -> int:
        """The highest number among the last Batches of a partition, -1 where it has none."""
        for end in range(high, low, -_PROBE):
            batches = self._batches(where, max(low, end - _PROBE), end)
            if batches:
                return max(avro.read_batch(batch.value).number for batch in batches)
        return -1

    def _bisect(self, where: Partition, low: int, high: int, number: int) -> Record | None:
        """About the first Batch of a partition with this number or a higher one."""
        best: Record | None = None
        end = high
        while low < end:
            middle = (low + end) // 2
            batch = next((b for at in range(middle, high, _PROBE) for b in self._batches(where, at, high)), None)
            if batch is not None and avro.read_batch(batch.value).number < number:
                low = batch.offset + 1
            else:
                best, end = batch or best, middle
        return best

    def _batches(self, where: Partition, low: int, high: int) -> list[Record]:
        """The Batches among at most ``_PROBE`` records."""
        end = {where: min(high, low + _PROBE)}
        self._window.seek({where: low})
        self._window.fetch(end)
        return [record for record in self._window.peek(end) if record.key[0] == BATCH]

    def _read_until(
        self, blocks: set[bytes], begin: Mapping[Partition, int]
    ) -> tuple[dict[Partition, int], set[bytes]]:
        """How far to read from ``begin`` until these blocks are whole, and those that are not anywhere."""
        index = Index(self._settings, State(initial_offset(self._settings, begin)))
        missing = set(blocks)
        for chunk in self._window.chunks(begin, self._highs()):
            missing -= {block.header.hash for block in index.add(sorted(chunk))}
            if not missing:
                break
        return dict(self._window.start), missing
