"""Beginning of a recording, and the error where one cannot be resumed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from cardinal.apps.base import REORG_THRESHOLD
from cardinal.consuming.start_position import at_number, at_time
from cardinal.errors import CursorExpiredError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.texts import Count

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source
    from cardinal.transports.registry import Topics


def beginning(
    source: Source, app: Topics, start: str | Cursor | int | datetime, watermarks: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, int]:
    """The first offset to be recorded of every partition, by a recorder's ``start``.

    The source is read to search for blocks. The tail of a reorg channel is its start: it is one reorg.
    ConfigurationError where the stream does not hold the block to start with, or the time has no zone.
    """
    found: Mapping[Partition, int] = {}
    if isinstance(start, datetime):
        found = at_time(source, app, start).positions
    elif isinstance(start, int):
        found = at_number(source, app, start, getattr(app, "reorg_threshold", REORG_THRESHOLD)).positions
    elif isinstance(start, Cursor):
        found = {tp: max(at, 0) for tp, at in start.floor.items()}
    elif start == "latest":
        found = {tp: high for tp, (_, high) in watermarks.items() if tp[0] in app.all_topics}
    return {tp: found.get(tp, low) for tp, (low, _) in watermarks.items()}


def cannot_resume(error: CursorExpiredError, folder: Path) -> CursorExpiredError:
    """The error in the words of a recording, which has no other cursor to start from."""
    (topic, number), (at, there) = next(iter(error.missing.items()))
    more = f" and {Count(len(error.missing) - 1, 'more partition')}" if len(error.missing) > 1 else ""
    if at == there:
        return error
    if at > there:
        return CursorExpiredError(
            f"the recording in {folder} cannot resume: it ends at {at} of {topic}:{number}{more}, and the stream ends "
            f"at {there}: topics were recreated, or records lost; record into another folder, this one stays as it is",
            missing=error.missing,
        )
    return CursorExpiredError(
        f"the recording in {folder} cannot resume: the next records, from {at} to {there} of "
        f"{topic}:{number}{more}, have expired; record into another folder, this one stays as it is",
        missing=error.missing,
    )
