"""What readers of every log say where its retention has gone past them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import CursorExpiredError

if TYPE_CHECKING:
    from cardinal.protocols.streams.types import Partition


def expired(missing: dict[Partition, tuple[int, int]], setting: str) -> CursorExpiredError:
    """The error for records that are gone.

    Arguments:
        missing: the offset to be read next and the lowest that is kept, by partition; not empty.
        setting: what keeps more.

    """
    (topic, number), (at, low) = next(iter(missing.items()))
    more = f" and {len(missing) - 1} more partitions" if len(missing) > 1 else ""
    return CursorExpiredError(
        f"retention has removed the records from {at} to {low} of {topic}:{number}{more}: "
        f"start from a newer cursor or from the start of what is kept, or raise {setting}",
        missing=missing,
    )
