"""Beginning of a recording, and the error where one cannot be resumed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from cardinal.apps.base import REORG_THRESHOLD
from cardinal.consuming.start_position import at_number, at_time
from cardinal.errors import CursorExpiredError
from cardinal.protocols.streams.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source
    from cardinal.transports.registry import Topics


def beginning(
    source: Source, app: Topics, start: str | Cursor | int | datetime, marks: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, int]:
    """The first offset to be recorded of every partition of these marks.

    Arguments:
        source: of all topics; it is read from where blocks are looked for.
        app: the application.
        start: see :class:`.recording.Recorder`. The tail of a reorg channel is its start: it is one reorg.
        marks: start and end of every partition.

    Raises:
        ConfigurationError: the stream does not hold the block to start with, or the time has no zone.

    """
    found: Mapping[Partition, int] = {}
    if isinstance(start, datetime):
        found = at_time(source, app, start).positions
    elif isinstance(start, int):
        found = at_number(source, app, start, getattr(app, "reorg_threshold", REORG_THRESHOLD)).positions
    elif isinstance(start, Cursor):
        found = {where: max(at, 0) for where, at in start.floor.items()}
    elif start == "latest":
        found = {where: high for where, (_, high) in marks.items() if where[0] in app.all_topics}
    return {where: found.get(where, low) for where, (low, _) in marks.items()}


def cannot_go_on(error: CursorExpiredError, folder: Path) -> CursorExpiredError:
    """The error in the words for who records: there is no other cursor to start from."""
    (topic, number), (at, there) = next(iter(error.missing.items()))
    more = f" and {len(error.missing) - 1} more partitions" if len(error.missing) > 1 else ""
    if at == there:
        return error
    if at > there:
        return CursorExpiredError(
            f"the recording in {folder} cannot go on: it goes to {at} of {topic}:{number}{more}, and the stream ends "
            f"at {there}: made anew, or records were lost; record into another folder, this one keeps what it holds",
            missing=error.missing,
        )
    return CursorExpiredError(
        f"the recording in {folder} cannot go on: retention has removed the records from {at} to {there} of "
        f"{topic}:{number}{more}, which come next; record into another folder, this one keeps what it holds",
        missing=error.missing,
    )
