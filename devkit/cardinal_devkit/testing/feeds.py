"""Laws of block feeds: a suite for any feed, yours too.

    class MyRoom:                                     # your chain, and its controls
        def open(self): return MyFeed("my://node")
        async def canonical(self): return [BlockRef(0, …), …]
        async def grow(self, blocks): …
        async def reorg(self, depth, blocks): …

    for law in LAWS:
        asyncio.run(law(MyRoom()))

Each law opens feeds, moves the chain, and raises :class:`FeedLawBrokenError` with the violation. A room whose chain
cannot be moved (an archive, a script) raises :class:`CannotMoveError`, which skips the laws about that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Protocol

from cardinal.errors import FeedError
from cardinal.feeds import BlockFeed
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import BlockRef

__all__ = ["LAWS", "CannotMoveError", "FeedLawBrokenError", "FeedRoom"]

_SECONDS: Final = 30.0
_STRANGER: Final = b"\xee" * 32


class FeedLawBrokenError(AssertionError):
    """A feed violated a law."""


class CannotMoveError(Exception):
    """The room's chain cannot be moved in this way."""


class FeedRoom(Protocol):
    """A chain of at least six blocks, and feeds of it."""

    def open(self) -> BlockFeed:
        """A feed of the chain; the laws close it."""
        ...

    async def canonical(self) -> list[BlockRef]:
        """The current chain, from the first block that feeds yield to the head."""
        ...

    async def grow(self, blocks: int) -> None:
        """Add blocks to the chain."""
        ...

    async def reorg(self, depth: int, blocks: int) -> None:
        """Replace the ``depth`` highest blocks by ``blocks`` others, at least one more."""
        ...


async def gives_the_whole_chain_in_order(room: FeedRoom) -> None:
    """From an empty stream, every block up to ``until`` is yielded, parents first, none twice, chain id above 0."""
    chain = await room.canonical()
    feed = room.open()
    try:
        _check(await feed.chain_id() > 0, "the chain id is above 0")
        payloads = await _all(feed.follow(start=chain[0].number, until=chain[-1].number))
    finally:
        await feed.close()
        await feed.close()
    _lawful(payloads, ())
    _has(payloads, chain)
    _check(payloads[0].number == chain[0].number, "the first block given is `start`")
    _check(payloads[-1].hash == chain[-1].hash, "the last block given is `until`")


async def gives_the_same_again(room: FeedRoom) -> None:
    """Two feeds of a chain yield equal payloads."""
    chain = await room.canonical()
    both = []
    for _ in range(2):
        payloads = await _read(room, (), start=chain[0].number, until=chain[-1].number)
        _has(payloads, chain)
        both.append({payload.hash: _lasting(payload) for payload in payloads})
    _check(all(both[0][ref.hash] == both[1][ref.hash] for ref in chain), "two readings of a block are equal")


async def goes_on_after_what_is_published(room: FeedRoom) -> None:
    """After any published prefix, exactly the missing blocks of the chain are yielded."""
    chain = await room.canonical()
    for count in (1, len(chain) // 2, len(chain) - 1):
        payloads = await _read(room, chain[:count], until=chain[-1].number)
        _lawful(payloads, chain[:count])
        _has(payloads, chain[count:])


async def ends_at_once_where_all_is_published(room: FeedRoom) -> None:
    """A published ``until`` yields nothing."""
    chain = await room.canonical()
    payloads = await _read(room, chain, until=chain[-1].number)
    _check(not payloads, "nothing is given that is published")


async def refuses_what_another_chain_published(room: FeedRoom) -> None:
    """Published blocks that the chain does not have are refused, not ignored."""
    chain = await room.canonical()
    feed = room.open()
    try:
        await _all(feed.follow([BlockRef(chain[2].number, _STRANGER)], until=chain[-1].number))
    except FeedError:
        return
    finally:
        await feed.close()
    raise FeedLawBrokenError("published blocks of another chain are refused with a FeedError")


async def follows_the_head(room: FeedRoom) -> None:
    """A reader at the head resumes when the chain grows."""
    chain = await room.canonical()
    feed = room.open()
    payloads = feed.follow(start=chain[0].number, until=chain[-1].number + 3)
    reading = asyncio.ensure_future(_all(payloads))
    try:
        await room.grow(3)
        taken = await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await feed.close()
    _lawful(taken, ())
    _has(taken, await room.canonical())


async def follows_a_reorg(room: FeedRoom) -> None:
    """After a reorg the new branch is yielded from the common ancestor on, and no block twice."""
    before = await room.canonical()
    feed = room.open()
    payloads = feed.follow(start=before[0].number, until=before[-1].number + 1)
    try:
        taken = await _some(payloads, len(before))
        await room.reorg(3, 4)
        taken += await _all(payloads)
    finally:
        await feed.close()
    after = await room.canonical()
    _lawful(taken, ())
    _has(taken, after)
    _has(taken, before)
    _check(
        [one.hash for one in taken[len(before) :]] == [ref.hash for ref in after[-4:]], "the new branch, and no more"
    )


async def goes_on_after_a_published_branch_that_was_left(room: FeedRoom) -> None:
    """After a restart behind a reorg, the feed resumes from the common ancestor."""
    before = await room.canonical()
    await room.reorg(2, 4)
    after = await room.canonical()
    payloads = await _read(room, before, until=after[-1].number)
    _lawful(payloads, before)
    _check([one.hash for one in payloads] == [ref.hash for ref in after[-4:]], "the new branch, and no more")


LAWS: Final[tuple[Callable[[FeedRoom], Awaitable[None]], ...]] = (
    gives_the_whole_chain_in_order,
    gives_the_same_again,
    goes_on_after_what_is_published,
    ends_at_once_where_all_is_published,
    refuses_what_another_chain_published,
    follows_the_head,
    follows_a_reorg,
    goes_on_after_a_published_branch_that_was_left,
)
"""Every law; each needs a room of its own."""


async def _read(
    room: FeedRoom, published: Sequence[BlockRef], *, start: int | None = None, until: int
) -> list[Payload]:
    """One read to its end, by a feed of its own."""
    feed = room.open()
    try:
        return await _all(feed.follow(published, start=start, until=until))
    finally:
        await feed.close()


async def _some(payloads: AsyncIterator[Payload], count: int) -> list[Payload]:
    try:
        async with asyncio.timeout(_SECONDS):
            return [await anext(payloads) for _ in range(count)]
    except (TimeoutError, StopAsyncIteration):
        raise FeedLawBrokenError(f"{count} blocks that the chain has are given within {_SECONDS:g} seconds") from None


async def _all(payloads: AsyncIterator[Payload]) -> list[Payload]:
    try:
        async with asyncio.timeout(_SECONDS):
            return [payload async for payload in payloads]
    except TimeoutError:
        raise FeedLawBrokenError(f"a reading with `until` ends within {_SECONDS:g} seconds") from None


def _lawful(payloads: Sequence[Payload], published: Sequence[BlockRef]) -> None:
    """Check that every block is yielded once and after its parent, with the number after the parent's."""
    known = {ref.hash: ref.number for ref in published}
    for payload in payloads:
        if not known:
            known[payload.parent] = payload.number - 1
        _check(payload.hash not in known, f"block {payload.number} is given once")
        _check(payload.parent in known, f"the parent of block {payload.number} comes before it")
        _check(
            payload.number == known[payload.parent] + 1, f"block {payload.number} has its parent's number and one more"
        )
        known[payload.hash] = payload.number


def _has(payloads: Sequence[Payload], chain: Sequence[BlockRef]) -> None:
    given = {payload.hash: payload.number for payload in payloads}
    for ref in chain:
        _check(given.get(ref.hash) == ref.number, f"block {ref.number} of the chain is given")


def _lasting(payload: Payload) -> tuple[object, ...]:
    """The part of a payload that does not depend on the time of the request: without finality."""
    marks = ("/n/safe", "/n/finalized")
    updates = {path: value for path, value in payload.updates.items() if not path.endswith(marks)}
    return payload.number, payload.hash, payload.parent, payload.weight, updates, payload.deletes


def _check(holds: bool, law: str) -> None:  # noqa: FBT001 - a condition, not an option
    if not holds:
        raise FeedLawBrokenError(f"this does not hold: {law}")
