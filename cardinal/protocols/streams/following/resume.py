"""Resuming from a cursor: its checks, the offsets to read from, and the blocks collected until it is done.

1. A cursor of another application, chain or choice of options is refused: ``seq`` counts within a lineage.
2. Records between a cursor's ``next`` and the earliest retained one were never read: refused. Records between its
   ``floor`` and its ``next`` were: where they expired, the content of blocks that have to be removed is missing.
3. A partition that ends before the cursor's ``next`` was recreated: refused. So is one that is gone, unless nothing
   of it is needed and others of its topic exist: a drained member of a mux may go. A reorg channel may go.
4. Recreated topics that are longer by now are detected by the blocks that they lack: where everything from the
   floors on is retained, and nothing of any delivered block was re-read, these are other topics.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace

from cardinal.errors import CursorExpiredError, CursorMismatchError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.events import Completed, ReorgBegan
from cardinal.protocols.streams.types import SHORT, Partition

from .settings import FollowerSettings


class Resume:
    """State of a stream that resumes from a cursor, until the delivered blocks are re-read.

    Attributes:
        cursor: the cursor, without partitions that are gone and of which nothing is needed.
        active: whether delivered blocks are still being re-read.
        until: the offsets to be passed; none where all delivered blocks had been supplied.
        channels: topics of channels that are read for the content of delivered blocks alone.
        announced: announcements that wait until such a topic is no longer read.

    """

    def __init__(self, settings: FollowerSettings, cursor: Cursor, is_channel: Callable[[str], bool]) -> None:
        check(settings, cursor)
        self.cursor = cursor
        self.active = bool(cursor.ring)
        self.until: Mapping[Partition, int] = dict(cursor.next) if cursor.ring else {}
        self.channels: tuple[str, ...] = ()
        self.announced: list[ReorgBegan] = []
        self._is_channel = is_channel
        self._is_kept = False
        self._blocks: dict[bytes, Completed] = {}
        self._bytes = 0
        self._ring = frozenset(ref.hash for ref in cursor.ring)
        self._floor = cursor.ring[0].number - settings.reorg_threshold if cursor.ring else 0
        self._max_blocks = settings.max_waiting + settings.max_side
        self._max_bytes = 2 * settings.max_bytes

    def begin_at(self, watermarks: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """The offset from which to read every partition, given low and high watermarks.

        CursorExpiredError by rules 2 and 3.
        """
        cursor, here = self.cursor, {topic for topic, _ in watermarks}
        missing: dict[Partition, tuple[int, int]] = {}
        gone: set[Partition] = set()
        for partition, following in cursor.next.items():
            low, high = watermarks.get(partition, (0, 0))
            if partition not in watermarks:
                if cursor.floor[partition] == following and partition[0] in here:
                    gone.add(partition)
                elif not self._is_channel(partition[0]):
                    missing[partition] = (cursor.floor[partition], following)
            elif high < following:
                missing[partition] = (high, following)
            elif low > following:
                missing[partition] = (following, low)
        if missing:
            raise _expired(missing)
        if gone:
            self.cursor = cursor = replace(
                cursor,
                next={partition: at for partition, at in cursor.next.items() if partition not in gone},
                floor={partition: at for partition, at in cursor.floor.items() if partition not in gone},
            )
            self.until = {partition: at for partition, at in self.until.items() if partition not in gone}
        kept = all(partition in watermarks and watermarks[partition][0] <= at for partition, at in cursor.floor.items())
        # With a channel open, delivered blocks may be re-read there, and be no part of the stream yet.
        self._is_kept = kept and not cursor.channels
        return {partition: max(low, cursor.floor.get(partition, low)) for partition, (low, _) in watermarks.items()}

    def collect(self, event: Completed, disputed: Container[bytes]) -> list[Completed]:
        """Collect a complete block; returns the blocks that are evicted for it.

        ``disputed``: blocks that may have been delivered with other content than was just read.
        """
        block = event.payload
        self.seen(block.hash)
        if block.number < self._floor or (block.hash in self._ring and block.hash in disputed):
            return []
        self._blocks[block.hash] = event
        self._bytes += event.size
        if len(self._blocks) <= self._max_blocks and self._bytes <= self._max_bytes:
            return []
        evicted: list[Completed] = []
        for one in sorted(self._blocks.values(), key=lambda one: -one.payload.number):
            if len(self._blocks) * 10 <= self._max_blocks * 9 and self._bytes * 10 <= self._max_bytes * 9:
                break
            if one.payload.hash not in self._ring:
                del self._blocks[one.payload.hash]
                self._bytes -= one.size
                evicted.append(one)
        return evicted

    def seen(self, block_hash: bytes) -> None:
        """Note that messages of a block were read. Those of a delivered block prove that the topics did not change."""
        if block_hash in self._ring:
            self._is_kept = False

    def lacks(self, block_hash: bytes) -> bool:
        """True when the content of this block was delivered, and was not re-read."""
        return block_hash in self._ring and block_hash not in self._blocks

    @property
    def lacks_content(self) -> bool:
        """True when the content of a delivered block was not re-read, and may be on the topics."""
        return not self._blocks.keys() >= self._ring - self.cursor.missing

    def blocks(self) -> Iterable[Completed]:
        """The blocks that were collected, in the order in which they were completed."""
        return self._blocks.values()

    def is_over(self, positions: Mapping[Partition, int], watermarks: Mapping[Partition, int] | None) -> bool:
        """True when everything up to ``until`` was read, or can no longer be read.

        CursorExpiredError where a partition ends below.
        """
        short = {
            p: (watermarks[p], at)
            for p, at in self.until.items()
            if watermarks is not None and watermarks.get(p, at) < at
        }
        if short:
            raise _expired(short)
        return all(positions.get(partition, at) >= at for partition, at in self.until.items())

    def refuse_other_topics(self, was_read: Callable[[bytes], bool]) -> None:
        """Raise CursorExpiredError where no delivered block ``was_read``, although everything is retained (rule 4)."""
        delivered = [ref for ref in self.cursor.ring if ref.hash not in self.cursor.missing]
        if self._is_kept and delivered and not any(was_read(ref.hash) for ref in delivered):
            raise CursorExpiredError(
                f"the topics were recreated: they hold none of the blocks {delivered[-1].number} to "
                f"{delivered[0].number} at this cursor's positions; start without a cursor, or restore the topics",
                missing={partition: (self.cursor.floor[partition], at) for partition, at in self.cursor.next.items()},
            )


def check(settings: FollowerSettings, cursor: Cursor) -> None:
    """Raise CursorMismatchError where the cursor is of another lineage than that of these settings."""
    expected = (settings.app, settings.chain)
    if (cursor.app, cursor.chain) != expected:
        raise CursorMismatchError(
            f"this cursor belongs to {cursor.app} on {cursor.chain}, not to {expected[0]} on {expected[1]}",
            expected=expected,
            found=(cursor.app, cursor.chain),
        )
    if cursor.lineage[:SHORT] != settings.fingerprint():
        raise CursorMismatchError(
            "this cursor was made with another whitelist, reorg threshold, policy, producers or `tracked`; "
            "pass the same options, or start without a cursor",
            expected=settings.fingerprint().hex(),
            found=cursor.lineage[:SHORT].hex(),
        )
    if settings.start is not None and cursor.start is not None:
        # A switch through a configured start delivers blocks down to the threshold below it first.
        above = cursor.start.number - settings.start.number
        if not 1 - settings.reorg_threshold <= above <= 1:
            raise CursorMismatchError(
                f"this cursor's stream began with block {cursor.start.number}, not after block "
                f"{settings.start.number}; pass the start that it was made with, or none",
                expected=settings.start,
                found=cursor.start,
            )


def _expired(missing: Mapping[Partition, tuple[int, int]]) -> CursorExpiredError:
    first = ", ".join(f"{topic}[{number}]" for topic, number in sorted(missing)[:3])
    return CursorExpiredError(
        f"records that this cursor needs are missing from {first}: topics were recreated, records expired "
        "before they were read, a member of a mux was left out too early, or a recording has not caught up yet; "
        "start without a cursor, restore the topics, or wait for the recording",
        missing=dict(missing),
    )
