"""Reports of a consumer as sentences: the log of one whose program does not take them itself."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cardinal.consuming.healing import HealingFailed
from cardinal.protocols.streams.events import (
    BeganAbove,
    Divergence,
    ForkBelowStart,
    Incomplete,
    Overflow,
    PingSeen,
    Quarantined,
    Rejected,
    ReorgAbandoned,
    ReorgBegan,
    ReorgEnded,
    Stale,
    Superseded,
    Surplus,
    Untrusted,
)
from cardinal.protocols.streams.types import FinalityViolated
from cardinal.texts import short_hash as short

if TYPE_CHECKING:
    from cardinal.protocols.streams.events import Event

_log = logging.getLogger("cardinal.consumer")


def log_report(event: Event | HealingFailed) -> None:
    """Log a report at the level of its severity."""
    level, text = sentence(event)
    _log.log(level, text)


def sentence(event: Event | HealingFailed) -> tuple[int, str]:  # noqa: C901, PLR0911, PLR0912 - one case a report
    """Severity and text of a report."""
    match event:
        case BeganAbove():
            return logging.WARNING, (
                f"the stream begins with block {event.start.number}: blocks from {event.lowest} on are on the topics, "
                "but no Batch links them to it; the records between have expired, or never existed"
            )
        case Incomplete() if event.explanation.number is None:
            # No complete block is its child. Readers that begin above a stream's start meet the rest of many blocks.
            return logging.DEBUG, f"messages of block {short(event.explanation.block)} have no Batch"
        case Incomplete():
            return logging.WARNING, (
                f"block {_number(event.explanation.number)} {short(event.explanation.block)} is incomplete: it "
                f"{event.explanation.lacks}"
            )
        case Divergence():
            topic, partition, offset = event.positions[1]
            return logging.WARNING, (
                f"producers disagree on block {short(event.block)}: the copy at {topic}:{partition}@{offset} differs "
                "from the one that counts"
            )
        case Quarantined():
            return logging.WARNING, (
                f"block {_number(event.number)}{short(event.block)} is skipped as missing: {event.reason}"
            )
        case FinalityViolated():
            return logging.ERROR, str(event)
        case ForkBelowStart():
            return logging.INFO, str(event)
        case ReorgAbandoned():
            return logging.WARNING, f"the reorg above block {event.ancestor.number} is abandoned: {event.reason}"
        case Superseded():
            return logging.WARNING, (
                f"block {event.number} {short(event.block)}: its first Batch could not be completed, another one was"
            )
        case Overflow():
            return logging.WARNING, (
                f"block {_number(event.number)}{short(event.block)} is evicted and will be re-read: {event.reason}"
            )
        case Rejected():
            topic, partition, offset = event.position
            return logging.WARNING, f"the record at {topic}:{partition}@{offset} is refused: {event.reason}"
        case Untrusted():
            return logging.WARNING, f"records of the producer {event.producer!r} do not count: it is not in the list"
        case HealingFailed():
            return logging.WARNING, (f"block {short(event.block)} could not be healed: {event.reason}")
        case ReorgBegan() | ReorgEnded():
            verb = "begins" if isinstance(event, ReorgBegan) else "ends"
            return logging.INFO, f"a reorg channel above block {event.ancestor.number} {verb}"
        case Surplus():
            topic, partition, offset = event.position
            return logging.INFO, f"the record at {topic}:{partition}@{offset} is beyond what its block declares"
        case Stale():
            return logging.DEBUG, (f"block {event.block.number} {short(event.block.hash)} is pruned: {event.reason}")
        case PingSeen():
            return logging.DEBUG, f"ping of the producer {event.ping.producer_id.hex()[:12]}"
        case _:
            return logging.DEBUG, repr(event)


def _number(number: int | None) -> str:
    return "" if number is None else f"{number} "
