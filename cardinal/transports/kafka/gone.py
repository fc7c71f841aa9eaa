"""What it means that a broker does not have what is to be read next: each cause in its own words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardinal.errors import CursorExpiredError, TopicError
from cardinal.transports.retained import expired

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.protocols.streams.types import Partition

    from .cluster import Cluster

_SETTING: Final = "retention.ms"


def check_positions(
    positions: Mapping[Partition, int], marks: Mapping[Partition, tuple[int, int]], cluster: Cluster
) -> None:
    """Refuse positions that cannot be read from.

    Arguments:
        positions: the next offset of each partition.
        marks: the lowest retained and the next readable offset of every partition.
        cluster: asked for what is not committed yet.

    Raises:
        CursorExpiredError: retention has removed records from a position on, or a position lies behind the end.
        TopicError: there is no such partition.

    """
    missing = {
        partition: (offset, marks[partition][0])
        for partition, offset in positions.items()
        if partition in marks and offset < marks[partition][0]
    }
    if missing:
        raise expired(missing, _SETTING)
    for partition, offset in positions.items():
        if partition not in marks:
            raise TopicError(
                f"there is no partition {partition[1]} of {partition[0]}: the topic was made anew; start again",
                topic=partition[0],
            )
        if offset > marks[partition][1] and offset > cluster.ends([partition], committed=False)[partition]:
            raise CursorExpiredError(
                f"{partition[0]}:{partition[1]} ends at {marks[partition][1]}, before the position {offset}: "
                "the topic was made anew; start again",
                missing={partition: (offset, marks[partition][1])},
            )


def refused(where: Partition, at: int, cluster: Cluster) -> CursorExpiredError:
    """Why the broker refused to read a partition from an offset on.

    Raises:
        UnreachableError: it does not say any more what it has.

    """
    low = cluster.starts([where])[where]
    if at < low:
        return expired({where: (at, low)}, _SETTING)
    end = cluster.ends([where], committed=False)[where]
    found = f"ends at {end}, before the position {at}" if at > end else f"has other records below {at} than were read"
    return CursorExpiredError(
        f"{where[0]}:{where[1]} {found}: its topic was made anew, or a broker that lacked records was elected to lead "
        "it (unclean.leader.election.enable); start from an older cursor, or from the start of what is kept",
        missing={where: (at, end)},
    )
