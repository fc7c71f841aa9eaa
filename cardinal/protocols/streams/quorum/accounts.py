"""What is told of a block on which producers do not agree, or which some of them did not supply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from cardinal.protocols.streams.assembly.block import Explanation
from cardinal.protocols.streams.events import Divergence, Header
from cardinal.protocols.streams.wire.keys import block_key
from cardinal.protocols.streams.wire.messages import BATCH

from .standings import Standing, lowest


class Copy(Enum):
    """A producer's copy of a block that was delivered. The value is what is said of it."""

    OPEN = "is not complete"
    AFTER = "began after delivery and is not complete"
    WHOLE = "is complete"
    LET_GO = "never became complete"


def largest(standings: Mapping[int, Standing]) -> tuple[int, ...]:
    """The producers of the largest group that agrees, of several the first one."""
    groups: dict[object, list[int]] = {}
    for index, own in standings.items():
        groups.setdefault(index if own.digest is None else own.digest, []).append(index)
    if not groups:
        return ()
    found: list[int] = max(groups.values(), key=len)
    return tuple(found)


def as_a_whole(block_hash: bytes, digest: bytes | None, other: Standing) -> Divergence:
    """A copy differs from the delivered one, whose digest this is; the messages to compare are no longer held."""
    (topic, partition), offset = min(other.positions.items())
    position = (topic, partition, offset)
    return Divergence(block_hash, block_key(BATCH, block_hash), digest or b"", other.digest or b"", (None, position))


def told_of_delivered(names: Sequence[str], agreed: Sequence[int], copies: Mapping[int, Copy]) -> str:
    """How every producer stands to a delivered block."""
    others = [f"the copy of {names[index]!r} {copy.value}" for index, copy in copies.items() if index not in agreed]
    return "; ".join([f"agreed on by {_listed(names, agreed)}", *others])


def told_of_open(
    names: Sequence[str],
    k: int,
    standings: Mapping[int, Standing],
    copies: Sequence[Explanation],
    header: Header | None,
) -> Explanation:
    """What an open block waits for.

    Arguments:
        names: the producers' ids.
        k: how many have to agree.
        standings: those that have completed it.
        copies: what each producer's own copy waits for.
        header: what k producers' Batches say of the block, None where they do not agree.

    """
    agreeing = largest(standings)
    waiting = [copy for copy in copies if copy.state == "open"]
    counts: dict[str, int] = {}
    for copy in waiting:
        for prefix, left in copy.missing_counts.items():
            counts[prefix] = max(left, counts.get(prefix, 0))
    parts: dict[bytes, set[int]] = {}
    for copy in waiting:
        for batch_id, indexes in copy.missing_parts.items():
            parts.setdefault(batch_id, set()).update(indexes)
    by_whom = f" ({_listed(names, agreeing)})" if agreeing else ""
    said = [f"{len(agreeing)} of {k} producers agree{by_whom}"]
    for index, copy in enumerate(copies):
        if index in standings:
            said += [] if index in agreeing else [f"{names[index]!r} supplied another block"]
        else:
            said.append(f"{names[index]!r} {_lack(copy)}")
    return Explanation(
        copies[0].block,
        None if header is None else header.number,
        "open",
        missing_batch=header is None,
        missing_counts=counts,
        missing_headers=tuple(sorted({batch_id for copy in waiting for batch_id in copy.missing_headers})),
        missing_parts={batch_id: tuple(sorted(indexes)) for batch_id, indexes in parts.items()},
        positions=lowest(*(copy.positions for copy in copies), *(own.positions for own in standings.values())),
        reason="; ".join(said),
    )


def _lack(copy: Explanation) -> str:
    """What keeps a producer's copy from being complete."""
    if copy.state != "open":
        return "supplied nothing" if copy.state == "unknown" else f"supplied what was {copy.state}"
    if copy.missing_batch:
        return "lacks its Batch"
    parts = len(copy.missing_headers) + sum(map(len, copy.missing_parts.values()))
    return f"lacks {sum(copy.missing_counts.values()) + parts} messages"


def _listed(names: Sequence[str], indexes: Sequence[int]) -> str:
    return ", ".join(repr(names[index]) for index in sorted(indexes))
