"""Reads what a stream holds now, from a source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waiting import until

if TYPE_CHECKING:
    from cardinal.protocols.streams import Record
    from cardinal.transports import Source


def everything(source: Source) -> list[Record]:
    """Every record between the watermarks as they are at the call, heartbeats too, in the order of reading."""
    marks = source.watermarks()
    source.assign({where: low for where, (low, _) in marks.items()})
    return to_ends(source, {where: high for where, (_, high) in marks.items()})


def to_ends(source: Source, ends: dict[tuple[str, int], int]) -> list[Record]:
    """Every record from the source's positions up to these."""
    found: list[Record] = []
    until(
        lambda: all(at >= ends[where] for where, at in source.positions().items()),
        step=lambda: found.extend(source.poll(10_000, 0.1)),
    )
    return found
