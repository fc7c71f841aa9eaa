"""Which streams a server reads, as clients come and go."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from cardinal.errors import TopicError
from cardinal.server.serving.streams import Streams
from cardinal.testing import ChainGenerator, MemoryBroker

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
