"""After an outage the service catches up as fast as the transport takes blocks, and an end says what is not sealed."""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import Future

import pytest

from cardinal.apps import get
from cardinal.errors import CardinalError, DeliveryError, NodeBehindError, OrphanedError
from cardinal.feeds import open_feed
from cardinal.protocols.streams import Payload
from cardinal.server.produce import ProduceService
from cardinal.server.produce.retry_queue import RetryQueue
from cardinal.testing.memory import MemoryBroker

BLOCKS = 200


async def never(error: CardinalError) -> None:
    raise AssertionError(error)


def test_blocks_that_failed_together_go_again_together() -> None:
    """Nothing is acknowledged while all the blocks are handed over; then everything is."""

    async def outage() -> None:
        with MemoryBroker(uuid.uuid4().hex) as broker:
            feed = open_feed(f"dev://?seed=9&blocks={BLOCKS}&reorg-rate=0")
            service = ProduceService(feed, broker.url, get("evm", chain_id=1337), producer_id="one", stop=BLOCKS)
            await service.prepare()
            broker.fail(lambda _: True)
            running = asyncio.create_task(service.run())
            async with asyncio.timeout(20):
                while service.progress.stats.in_flight <= BLOCKS:  # noqa: ASYNC110 - the service tells nobody
                    await asyncio.sleep(0.01)
            broker.fail(None)
            async with asyncio.timeout(20):  # it took half a second a block: 100 s
                await running
            assert service.progress.stats.blocks == BLOCKS + 1
            await service.close()

    asyncio.run(outage())


def test_a_block_that_failed_and_is_given_again_before_it_went_again_is_handed_over_once() -> None:
    payload = Payload(1, bytes([1]) * 32, bytes(32), 1)

    async def twice() -> None:
        handed: list[Future[None]] = []
        told: list[bytes] = []

        def hand_over(_: object) -> Future[None]:
            handed.append(Future())
            return handed[-1]

        queue = RetryQueue(
            hand_over, renew=never, sealed=lambda *_: None, failed=lambda block, _: told.append(block.hash)
        )
        await queue.add(payload)
        handed[0].set_exception(DeliveryError("not acknowledged", block_hash=payload.hash))
        await asyncio.sleep(0)  # the loop hears of it
        await queue.add(payload)
        retrying = asyncio.create_task(queue.retry())
        draining = asyncio.create_task(queue.drain(retrying))
        async with asyncio.timeout(20):
            while queue._failed.qsize():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            await asyncio.wait([retrying], timeout=1.0)  # it waits a moment before it sends
            handed[1].set_result(None)
            await draining
        retrying.cancel()
        assert len(handed) == 2
        assert not told
        assert queue.unsealed == ()

    asyncio.run(twice())


def test_a_block_that_waits_for_room_when_the_service_ends_was_not_taken() -> None:
    payload = Payload(1, bytes([1]) * 32, bytes(32), 1)

    async def ended() -> None:
        room = threading.Event()

        def hand_over(_: object) -> Future[None]:
            assert room.wait(20)
            return Future()

        queue = RetryQueue(hand_over, renew=never, sealed=lambda *_: None)
        adding = asyncio.create_task(queue.add(payload))
        await asyncio.sleep(0.01)
        adding.cancel()
        await asyncio.wait([adding])
        room.set()
        assert queue.unsealed == ()

    asyncio.run(ended())


def test_a_step_whose_blocks_left_the_chain_is_forgotten_and_not_counted() -> None:
    payload = Payload(1, bytes([1]) * 32, bytes(32), 1)

    async def orphaned() -> None:
        future: Future[None] = Future()
        sealed: list[Payload] = []
        queue = RetryQueue(lambda _: future, renew=never, sealed=lambda block, _: sealed.append(block))
        await queue.add(payload)
        future.set_exception(OrphanedError("left", number=1, block_hash=payload.hash))
        async with asyncio.timeout(20):
            await queue.drain(retrying := asyncio.create_task(queue.retry()))
        retrying.cancel()
        assert not sealed
        assert queue.retries == 0

    asyncio.run(orphaned())


def test_steps_that_are_cleared_fail_without_consequence() -> None:
    payloads = [Payload(number, bytes([number]) * 32, bytes(32), 1) for number in (1, 2)]

    async def cleared() -> None:
        futures: list[Future[None]] = []

        def submit(_: object) -> Future[None]:
            futures.append(Future())
            return futures[-1]

        queue = RetryQueue(submit, renew=never, sealed=lambda *_: None)
        for payload in payloads:
            await queue.add(payload)
        behind = NodeBehindError("a node needs block 0", number=0)
        futures[0].set_exception(behind)
        with pytest.raises(NodeBehindError):
            async with asyncio.timeout(20):
                await queue.retry()
        queue.clear()
        futures[1].set_exception(behind)
        await queue.add(payloads[0])
        futures[2].set_result(None)
        async with asyncio.timeout(20):
            await queue.drain(retrying := asyncio.create_task(queue.retry()))
        retrying.cancel()
        assert queue.unsealed == ()

    asyncio.run(cleared())


def test_a_fault_of_our_own_ends_the_service_and_is_not_waited_for() -> None:
    payload = Payload(1, bytes([1]) * 32, bytes(32), 1)

    async def fault() -> None:
        future: Future[None] = Future()
        queue = RetryQueue(lambda _: future, renew=never, sealed=lambda *_: None)
        await queue.add(payload)
        retrying = asyncio.create_task(queue.retry())
        future.set_exception(RuntimeError("a fault"))
        with pytest.raises(RuntimeError, match="a fault"):
            async with asyncio.timeout(20):
                await queue.drain(retrying)
        assert queue.unsealed == (payload,)

    asyncio.run(fault())
