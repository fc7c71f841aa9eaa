"""Errors for positions that cannot be read: expired, beyond the end, or of a log that was recreated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import CursorExpiredError, TopicError
from cardinal.texts import Count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.protocols.streams.types import Partition


def check_positions(
    positions: Mapping[Partition, int],
    watermarks: Mapping[Partition, tuple[int, int]],
    place: str,
    *,
    remedy: str,
    cause: str,
) -> None:
    """Refuse positions that do not exist, have expired, or are beyond the end; see :func:`expired`.

    Raises:
        TopicError, CursorExpiredError: the first kind of these that there is.

    """
    for topic, number in sorted(positions.keys() - watermarks.keys()):
        raise TopicError(f"there is no partition {number} of {topic} {place}: {cause}", topic=topic)
    below = {tp: (at, watermarks[tp][0]) for tp, at in positions.items() if at < watermarks[tp][0]}
    beyond = {tp: (at, watermarks[tp][1]) for tp, at in positions.items() if at > watermarks[tp][1]}
    if missing := below or beyond:
        raise expired(missing, place, remedy=remedy, cause=cause)


def expired(missing: Mapping[Partition, tuple[int, int]], place: str, *, remedy: str, cause: str) -> CursorExpiredError:
    """The error for positions that cannot be read.

    Arguments:
        missing: by partition, not empty, the position and its limit: the lowest retained offset above it, the end below
            it, or the position itself where other records lead to it than were read.
        place: of the log, as in "at host:port".
        remedy: besides a newer start, for what retention has removed.
        cause: of any other reason, with its remedy.

    """
    (topic, number), (position, limit) = next(iter(missing.items()))
    more = f" and {Count(len(missing) - 1, 'more partition')}" if len(missing) > 1 else ""
    tp = f"{topic}:{number}{more} {place}"
    if position < limit:
        text = (
            f"retention has removed the records from {position} to {limit} of {tp}: start from a newer cursor or from "
            f"the earliest retained record{remedy}"
        )
    elif position > limit:
        text = f"{tp} ends at {limit}, before the position {position}: {cause}"
    else:
        text = f"{tp} has other records below {position} than were read: {cause}"
    return CursorExpiredError(text, missing=dict(missing))
