from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import CardinalError, ConfigurationError, NodeAnswerError
from cardinal.protocols.streams.codec import decode
from cardinal.protocols.streams.messages import Batch
from cardinal.protocols.streams.payload import Payload
from cardinal.server.produce import ProduceService, open_feed
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from cardinal.protocols.streams.types import BlockRef

DEADLINE = 10.0


@dataclass(frozen=True)
class Blocks:
    default_topic: str = "block"
    topics: dict[str, str] = field(default_factory=lambda: {"a/": "a"})
    all_topics: tuple[str, ...] = ("block", "a")


def _hash(number: int) -> bytes:
    return (number + 1).to_bytes(32, "big")


class Line:
    """A feed of one line of blocks: goes on after the published ones, then waits at its end."""

    def __init__(self, count: int, *, fails_at: int | None = None) -> None:
        self.count = count
        self.fails_at = fails_at
        self.closed = False
        self.given: list[int] = []

    async def chain_id(self) -> int:
        return 7

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        first = published[-1].number + 1 if published else start or 0
        for number in range(first, (self.count if until is None else until) + 1):
            if number == self.fails_at:
                raise NodeAnswerError("the node lost its head", code=-32000)
            self.given.append(number)
            yield Payload(number, _hash(number), _hash(number - 1), number, {"a/1": b"x"})
        if until is None:
            await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def _numbers(broker: MemoryBroker) -> set[int]:
    return {m.number for r in broker.records("block") if isinstance(m := decode(r.key, r.value), Batch)}


def _service(feed: Line, broker: MemoryBroker, again: list[int] | None = None) -> ProduceService:
    def tell(payload: Payload, error: CardinalError) -> None:
        assert error.retriable
        if again is not None:
            again.append(payload.number)

    return ProduceService(feed, broker.url, Blocks(), producer_id="one", again=tell)


async def _run(service: ProduceService, **span: int | None) -> list[BlockRef]:
    published = await service.prepare()
    await asyncio.wait_for(service.run(published, start=span.get("start"), until=span.get("until")), DEADLINE)
    await service.close()
    return published


def test_a_feed_is_published_to_its_end(broker: MemoryBroker) -> None:
    feed = Line(0)
    service = _service(feed, broker)
    assert asyncio.run(_run(service, start=3, until=40)) == []
    assert _numbers(broker) == set(range(3, 41))
    assert (service.progress.blocks, service.progress.number, service.progress.under_way) == (38, 40, 0)
    assert feed.closed


def test_a_second_run_goes_on_where_the_topics_end(broker: MemoryBroker) -> None:
    asyncio.run(_run(_service(Line(0), broker), start=0, until=10))
    feed = Line(0)
    published = asyncio.run(_run(_service(feed, broker), start=0, until=20))
    assert published[-1].number == 10
    assert feed.given == [10, *range(11, 21)], "the newest published one is only compared"
    assert _numbers(broker) == set(range(21))


def test_blocks_that_were_lost_are_sent_again(broker: MemoryBroker) -> None:
    lost: list[bytes] = []

    def lose(message: object) -> bool:
        block_hash = message.key[1:33]  # type: ignore[attr-defined] # a Routed
        if message.key[:1] == b"\x03" and block_hash in (_hash(4), _hash(9)) and block_hash not in lost:  # type: ignore[attr-defined] # the same
            lost.append(block_hash)
            return True
        return False

    broker.fail(lose)
    again: list[int] = []
    asyncio.run(_run(_service(Line(0), broker, again), until=20))
    assert sorted(again) == [4, 9]
    assert _numbers(broker) == set(range(21))


def test_an_error_of_the_feed_ends_the_service_and_what_was_given_is_published(broker: MemoryBroker) -> None:
    async def fail() -> None:
        service = _service(Line(20, fails_at=6), broker)
        try:
            await _run(service)
        finally:
            await service.close()

    with pytest.raises(NodeAnswerError, match="lost its head"):
        asyncio.run(fail())
    assert _numbers(broker) == set(range(6))


def test_told_to_stop_it_seals_what_it_took(broker: MemoryBroker) -> None:
    async def stop() -> int:
        service = _service(Line(30), broker)
        running = asyncio.create_task(service.run(await service.prepare(), start=0, until=None))
        while service.progress.number != 30:
            await asyncio.sleep(0.01)
            assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await service.close()
        return service.progress.blocks

    assert asyncio.run(asyncio.wait_for(stop(), DEADLINE)) == 31
    assert _numbers(broker) == set(range(31))


@pytest.mark.parametrize("url", ["ftp://user:hidden@host", "no-url-with-hidden-text", ""])
def test_a_url_without_a_feed_is_refused_with_the_known_schemes(url: str) -> None:
    with pytest.raises(ConfigurationError, match="https://") as caught:
        open_feed(url)
    assert "hidden" not in str(caught.value)
