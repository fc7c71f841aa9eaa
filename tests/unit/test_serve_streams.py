"""Which streams a server reads, as clients come and go."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import CursorExpiredError, TopicError
from cardinal.server.serving.streams import Streams
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.transports.websocket.asking import error_of
from cardinal.transports.websocket.frames import Failed, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

APP = ChainGenerator().application
CHANNEL = f"{APP.default_topic}-re-{'ab' * 32}"


def _with_a_channel(run: Callable[[Streams], Coroutine[None, None, None]]) -> None:
    async def started(url: str) -> None:
        streams = Streams(url, APP, ring_bytes=1, closed_error=OSError)
        await streams.start()
        await run(streams)
        await streams.stop()

    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        broker.sink(APP, producer_id="a").close()
        broker.create(CHANNEL, partitions=1)
        asyncio.run(started(broker.url))


def test_who_leaves_a_channel_that_was_made_anew_leaves_the_new_one_to_its_clients() -> None:
    async def run(streams: Streams) -> None:
        gone = await streams.enter(frozenset({CHANNEL}))
        gone.error = TopicError("deleted", topic=CHANNEL)
        anew = await streams.enter(frozenset({CHANNEL}))
        assert anew is not gone
        streams.leave(gone)
        assert await streams.enter(frozenset({CHANNEL})) is anew
        streams.leave(anew)
        assert await streams.enter(frozenset({CHANNEL})) is anew
        streams.leave(anew)
        streams.leave(anew)
        assert await streams.enter(frozenset({CHANNEL})) is not anew

    _with_a_channel(run)


def test_a_channel_whose_client_left_while_it_was_opened_is_not_read_for_nobody() -> None:
    """One that somebody else waits for as well is."""

    async def run(streams: Streams) -> None:
        wanted = frozenset({CHANNEL})
        leaving = asyncio.create_task(streams.enter(wanted))
        await asyncio.sleep(0)
        leaving.cancel()
        async with asyncio.timeout(20):
            while streams._channels:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
        leaving, staying = asyncio.create_task(streams.enter(wanted)), asyncio.create_task(streams.enter(wanted))
        await asyncio.sleep(0)
        leaving.cancel()
        stream = await staying
        assert stream.users == 1
        assert await streams.enter(wanted) is stream
        for _ in range(2):
            streams.leave(stream)
        assert not streams._channels

    _with_a_channel(run)


@pytest.mark.parametrize(
    ("position", "limit", "says"),
    [
        (5, 9, "retention has removed the records from 5 to 9"),
        (9, 5, "ends at 5 at server, before the position 9: the topic was made anew"),
        (5, 5, "has other records below 5 at server than were read: the topic was made anew"),
    ],
)
def test_a_client_is_told_why_its_position_is_no_longer_there(position: int, limit: int, says: str) -> None:
    error = error_of(Failed(1, Reason.EXPIRED, places={("block", 0): (position, limit)}), "server")
    assert isinstance(error, CursorExpiredError)
    assert says in str(error)
    assert error.missing == {("block", 0): (position, limit)}
