"""Error for records that retention has removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import CursorExpiredError

if TYPE_CHECKING:
    from cardinal.protocols.streams.types import Partition


def expired(missing: dict[Partition, tuple[int, int]], setting: str) -> CursorExpiredError:
    """The error for expired records.

    Arguments:
        missing: the offset to be read next and the lowest retained one, by partition; not empty.
        setting: the name of the retention setting.

    """
    (topic, number), (at, low) = next(iter(missing.items()))
    more = f" and {len(missing) - 1} more partitions" if len(missing) > 1 else ""
    return CursorExpiredError(
        f"retention has removed the records from {at} to {low} of {topic}:{number}{more}: "
        f"start from a newer cursor or from the earliest retained record, or raise {setting}",
        missing=missing,
    )
