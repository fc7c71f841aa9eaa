"""Whether a cursor can go on here, and from which offsets.

Rules:

1. A cursor of another application, chain or choice of options is refused: ``seq`` counts within a lineage.
2. A partition that the cursor does not know was added since: it is read from its beginning.
3. Records between a cursor's ``next`` and the earliest one that is kept were never read: refused. Records between its
   ``floor`` and its ``next`` were: where they are gone, the content of blocks that have to be removed is missing, and
   blocks that were not complete have to be supplied or are given up.
4. A partition that ends before the cursor's ``next``, or that is gone, was made anew: refused. A reorg channel may go.
   One that is longer by now shows it by what it does not hold: where everything from the floors on is kept, and
   nothing of any delivered block that should be there was read again, these are other topics.
5. A place may hold partitions of the same topics under other numbers (old and new cluster read as one). Numbers that
   follow one another are one place. A place that is gone as a whole may go when nothing of it is needed: the cursor's
   floors have reached ``next`` in all of its partitions, and its topics are here under other numbers. What was not read
   there cannot be known, and is not passed over in silence: a block whose parent was only there stays waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from cardinal.errors import CursorExpiredError, CursorMismatchError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.types import SHORT, Partition, short

from .settings import FollowerSettings


def check(settings: FollowerSettings, cursor: Cursor) -> None:
    """CursorMismatchError where the cursor is of another lineage than these settings make."""
    expected = (settings.app, settings.chain)
    if (cursor.app, cursor.chain) != expected:
        raise CursorMismatchError(
            f"this cursor belongs to {cursor.app} on {cursor.chain}, not to {expected[0]} on {expected[1]}",
            expected=expected,
            found=(cursor.app, cursor.chain),
        )
    if cursor.lineage[:SHORT] != settings.fingerprint():
        raise CursorMismatchError(
            "this cursor was made with another whitelist, threshold, policy or choice of prefixes; "
            "give the same options, or start anew without a cursor",
            expected=settings.fingerprint().hex(),
            found=cursor.lineage[:SHORT].hex(),
        )
    if settings.start is not None and cursor.start is not None:
        # A switch through a given start delivers blocks down to the threshold below it first.
        above = cursor.start.number - settings.start.number
        if not 1 - settings.reorg_threshold <= above <= 1:
            raise CursorMismatchError(
                f"this cursor's stream began with block {cursor.start.number}, not after block "
                f"{settings.start.number}; give the start that it was made with, or none",
                expected=settings.start,
                found=cursor.start,
            )


def begin_at(
    cursor: Cursor, marks: Mapping[Partition, tuple[int, int]], may_go: Callable[[str], bool]
) -> dict[Partition, int]:
    """Where to read every partition from.

    Arguments:
        cursor: where the stream stood.
        marks: for every partition the lowest offset that is kept and the one after the highest.
        may_go: whether a topic may be gone.

    Raises:
        CursorExpiredError: rules 3 and 4; ``missing`` has for every partition the offsets that are gone.

    """
    missing: dict[Partition, tuple[int, int]] = {}
    away = left(cursor, marks, may_go)
    needed = {place for place in away if cursor.floor[place] < cursor.next[place]}
    for partition, following in cursor.next.items():
        low, high = marks.get(partition, (0, 0))
        if partition not in marks:
            if partition not in away and not may_go(partition[0]):
                missing[partition] = (cursor.floor[partition], following)
        elif high < following:
            missing[partition] = (high, following)
        elif low > following:
            missing[partition] = (following, low)
    if missing:
        raise _expired(missing)
    if needed:
        raise CursorExpiredError(
            f"this cursor still needs records of {_named(needed)}, which is not here under this number: read the place "
            "that holds them too (as the same member of a mux), and leave it out when as many blocks as the reorg "
            "threshold have come after its last one; or start anew without a cursor",
            missing={place: (cursor.floor[place], cursor.next[place]) for place in needed},
        )
    return {partition: max(low, cursor.floor.get(partition, low)) for partition, (low, _) in marks.items()}


def left(
    cursor: Cursor, marks: Mapping[Partition, tuple[int, int]], may_go: Callable[[str], bool]
) -> frozenset[Partition]:
    """The cursor's partitions of places that are gone as a whole, while their topics are here (rule 5).

    Arguments: see :func:`begin_at`.
    """
    known = {partition for partition in cursor.next if not may_go(partition[0])}
    here = {partition for partition in marks if not may_go(partition[0])}
    topics = {topic for topic, _ in here}
    gone: set[int] = set()
    for place in _runs({number for _, number in known | here}):
        if not place & {number for _, number in here}:
            gone |= place
    away = {partition for partition in known if partition[1] in gone}
    return frozenset(away if {topic for topic, _ in away} <= topics else ())


def without(cursor: Cursor, partitions: Collection[Partition]) -> Cursor:
    """The cursor without partitions of which nothing is needed: their numbers may belong to another place later."""
    return replace(
        cursor,
        next={place: at for place, at in cursor.next.items() if place not in partitions},
        floor={place: at for place, at in cursor.floor.items() if place not in partitions},
    )


def _runs(numbers: set[int]) -> list[set[int]]:
    """These numbers, those that follow one another together."""
    runs: list[set[int]] = []
    for number in sorted(numbers):
        if not runs or number - 1 not in runs[-1]:
            runs.append(set())
        runs[-1].add(number)
    return runs


def whole(cursor: Cursor, marks: Mapping[Partition, tuple[int, int]]) -> bool:
    """Whether everything is kept that the cursor's delivered blocks were read from, and read in one place."""
    kept = all(place in marks and marks[place][0] <= floor for place, floor in cursor.floor.items())
    return kept and not cursor.channels  # what was delivered may be read again there, and be no part of the stream yet


def refuse_other(cursor: Cursor, was_read: Callable[[bytes], bool]) -> None:
    """CursorExpiredError where nothing of what was delivered is there, although everything is kept (:func:`whole`)."""
    # Of one that is done with, and not missing, nothing was ever there: it was supplied.
    delivered = [ref for ref in cursor.ring if ref.hash not in cursor.missing and short(ref.hash) not in cursor.done]
    if delivered and not any(was_read(ref.hash) for ref in delivered):
        raise CursorExpiredError(
            f"the topics were made anew: they hold none of the blocks {delivered[-1].number} to {delivered[0].number} "
            "where this cursor's stream had them; start anew without a cursor, or restore the topics",
            missing={place: (cursor.floor[place], following) for place, following in cursor.next.items()},
        )


def refuse_shorter(following: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
    """CursorExpiredError where a partition ends before the cursor's ``next``: it would never be passed."""
    missing = {p: (ends[p], offset) for p, offset in following.items() if p in ends and ends[p] < offset}
    if missing:
        raise _expired(missing)


def _expired(missing: dict[Partition, tuple[int, int]]) -> CursorExpiredError:
    return CursorExpiredError(
        f"records that this cursor needs are gone from {_named(missing)}: the topics were made anew, or retention has "
        "cut off what was not read yet, or a recording is not as far yet; start anew without a cursor, restore the "
        "topics, or wait for the recording",
        missing=missing,
    )


def _named(partitions: Collection[Partition]) -> str:
    """The first three of these partitions."""
    return ", ".join(f"{topic}[{number}]" for topic, number in sorted(partitions)[:3])
