"""Facts of a block as the commands print them: its time, its numbers, short hashes and ages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cardinal.protocols.streams.payload import Payload
from cardinal.texts import Count, short_hash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.apps import Application
    from cardinal.protocols.streams.events import ChainUpdate
    from cardinal.protocols.streams.payload import AnyPayload

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """Printed facts of a block's content.

    Attributes:
        time: of the block, in unix seconds; None where it is unknown, or 0 as in the first block of many chains.
        counts: the application's numbers of the block and the keys that it writes or deletes (``messages``), by name;
            None where its content is missing.

    """

    time: float | None
    counts: Mapping[str, int | None]

    def first_count(self) -> int | None:
        """The number that matters most: see :func:`count_names`."""
        return next(iter(self.counts.values()))


def count_names(app: Application) -> tuple[str, ...]:
    """Names of the numbers that a block of the application has, the one that matters most first."""
    return (*app.counted, "messages")


def facts_of(app: Application, block: AnyPayload) -> BlockFacts:
    """The facts of a block."""
    if not isinstance(block, Payload):
        return BlockFacts(None, dict.fromkeys(count_names(app)))
    messages = len(block.updates) + len(block.deletes)
    return BlockFacts(app.time_of(block) or None, {**app.counts(block), "messages": messages})


def clock(seconds: float | None) -> str:
    """A time in UTC; ``-`` for none, or for one that no calendar has."""
    try:
        return "-" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "-"


def age(seconds: float | None) -> str:
    """A duration in its largest unit: ``1.2 s``, ``4 min``, ``3 h``, ``12 d``; ``-`` where there is none."""
    if seconds is None:
        return "-"
    if abs(seconds) < _MINUTE:
        return f"{seconds:.1f} s"
    for unit, length in (("d", _DAY), ("h", _HOUR)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / _MINUTE:.0f} min"


def reorg_line(update: ChainUpdate) -> str:
    """A reorg in one line."""
    old = update.removed[0]
    new = f"to {update.added[-1].number} {short_hash(update.added[-1].hash)}" if update.added else "to its ancestor"
    depth = len(update.removed)
    return f"! reorg of {Count(depth, 'block')}: from {old.number} {short_hash(old.hash)} {new}"
