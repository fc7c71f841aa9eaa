"""Survey of a stream that is written to several places at once (``mux:``): each of them by itself.

A producer that dies between two members' acknowledgements leaves a block complete in one of them alone. A consumer of
both misses nothing; a consumer of the other one alone, as after a migration, would miss it for ever.

Rules:

1. A block is complete when it is complete in every member that it concerns, and the stream ends with the highest block
   up to which that holds. What is above it is sent to all of them again.
2. A member that holds no complete block yet, or begins above others, lacks nothing of what was before: it begins there.
3. Partially published is what is so in any member.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cardinal.config.settings import find_url
from cardinal.producing.survey.frontier import Survey, survey
from cardinal.producing.survey.height_range import HeightRange, height_range
from cardinal.producing.survey.partial import partial_around, place
from cardinal.transports.registry import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cardinal.producing.layout import Stream
    from cardinal.producing.survey.partial import PartialBlock
    from cardinal.protocols.streams.types import BlockRef
    from cardinal.transports import Source, TransportUrl

Result = TypeVar("Result")


def survey_members(url: str | TransportUrl, app: Stream, *, producer_id: str = "") -> Survey:
    """Find the frontier of all members, and what is partially published in one of them; raises as a member does."""
    found = _in_each(
        url, app, lambda source, channel: survey(source, app, producer_id=producer_id, open_channel=channel)
    )
    batches = {block: batch for member in found for block, batch in member.batches.items()}
    incomplete: dict[bytes, PartialBlock] = {}
    for one in (one for member in found for one in member.partial):
        incomplete[one.hash] = replace(one, number=batches[one.hash].number) if one.hash in batches else one
    moments = tuple(sorted({moment for member in found for moment in member.moments}))
    chain = common_chain([member.chain for member in found])
    return Survey(chain, batches, tuple(sorted(incomplete.values(), key=place)), moments)


def partial_in_members(
    url: str | TransportUrl, app: Stream, moments: Sequence[int], among: Iterable[bytes]
) -> dict[bytes, PartialBlock]:
    """Blocks that are partially published in a member around these moments, by hash.

    ``among``: blocks that were so before, and still are unless a member has them complete.
    """
    before = tuple(among)
    found = _in_each(url, app, lambda source, _: partial_around(source, app, moments, among=before))
    complete = {block for _, whole in found for block in whole}
    return {
        block: one
        for incomplete, _ in found
        for block, one in incomplete.items()
        if block not in complete or one.messages or one.number is not None
    }


def range_in_members(url: str | TransportUrl, app: Stream, first: int, last: int) -> HeightRange:
    """The blocks of these heights in any member; complete are those that are so in every one."""
    found = _in_each(url, app, lambda source, channel: height_range(source, app, first, last, open_channel=channel))
    headless = [member.headless for member in found if member.headless is not None]
    return HeightRange(
        {block: batch for member in found for block, batch in member.batches.items()},
        set.intersection(*(member.complete for member in found)),
        set.union(*headless) if len(headless) == len(found) else None,
    )


def common_chain(chains: Sequence[Sequence[BlockRef]]) -> list[BlockRef]:
    """Common part of these chains, each from its begin on, oldest first; empty ones do not count."""
    there = [{ref.number: ref for ref in chain} for chain in chains if chain]
    begins = [min(chain) for chain in there]
    common = {
        number: ref
        for chain in there
        for number, ref in chain.items()
        if all(number < begin or other.get(number) == ref for begin, other in zip(begins, there, strict=True))
    }
    return [common[number] for number in sorted(common)]


def _in_each(
    url: str | TransportUrl, app: Stream, look: Callable[[Source, Callable[[str], Source]], Result]
) -> list[Result]:
    """Results for every member that keeps records, or for the one stream; ``look`` gets a source and opens topics."""
    url = find_url(url)
    found = []
    for member in [one for _, one in url.members if one.scheme != "null"] or [url]:
        source = open_source(member, app)
        try:
            found.append(look(source, partial(_open_topic, member, app)))
        finally:
            source.close()
    return found


def _open_topic(url: TransportUrl, app: Stream, topic: str) -> Source:
    return open_source(url, app, topics=[topic])
