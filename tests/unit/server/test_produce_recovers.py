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
from cardinal_devkit.testing.memory import MemoryBroker
from looping import on_loop

BLOCKS = 200
PAYLOADS = [Payload(number, bytes([number]) * 32, bytes(32), 1) for number in (1, 2)]


async def never(error: CardinalError) -> None:
    raise AssertionError(error)


class Submitted:
    """A retry queue, what of it was submitted, and what it reported."""

    def __init__(self) -> None:
        self.futures: list[Future[None]] = []
        self.sealed: list[Payload] = []
        self.failed: list[Payload] = []
        self.queue = RetryQueue(
            self._submit,
            renew=never,
            sealed=lambda payload, _: self.sealed.append(payload),
            failed=lambda payload, _: self.failed.append(payload),
        )

    def _submit(self, _: object) -> Future[None]:
        self.futures.append(Future())
        return self.futures[-1]

    async def drain(self) -> None:
        retrying = asyncio.create_task(self.queue.retry())
        try:
            async with asyncio.timeout(60):
                await self.queue.drain(retrying)
        finally:
            retrying.cancel()


def test_blocks_that_failed_together_go_again_together() -> None:
    """Nothing is acknowledged while all the blocks are handed over; then everything is."""

    async def outage() -> None:
        with MemoryBroker(uuid.uuid4().hex) as broker:
            feed = open_feed(f"dev://?seed=9&blocks={BLOCKS}&reorg-rate=0")
            service = ProduceService(feed, broker.url, get("evm", chain_id=1337), producer_id="one", stop=BLOCKS)
            await service.prepare()
            broker.fail(lambda _: True)
            running = asyncio.create_task(service.run())
            async with asyncio.timeout(60):
                while service.progress.stats.in_flight <= BLOCKS:  # noqa: ASYNC110 - the service tells nobody
                    await asyncio.sleep(0.01)
            broker.fail(None)
            async with asyncio.timeout(60):  # it took half a second a block: 100 s
                await running
            assert service.progress.stats.blocks == BLOCKS + 1
            await service.close()

    asyncio.run(outage())


@on_loop
async def test_a_block_that_failed_and_is_given_again_before_it_went_again_is_sent_once() -> None:
    submitted = Submitted()
    await submitted.queue.add(PAYLOADS[0])
    submitted.futures[0].set_exception(DeliveryError("not acknowledged", block_hash=PAYLOADS[0].hash))
    await asyncio.sleep(0)  # the loop hears of it
    await submitted.queue.add(PAYLOADS[0])
    asyncio.get_running_loop().call_later(1.0, submitted.futures[1].set_result, None)  # after the retry's pause
    await submitted.drain()
    assert (len(submitted.futures), submitted.failed, submitted.sealed) == (2, [], [PAYLOADS[0]])


@on_loop
async def test_a_block_that_waits_for_room_when_the_service_ends_was_not_taken() -> None:
    room = threading.Event()

    def hand_over(_: object) -> Future[None]:
        assert room.wait(60)
        return Future()

    queue = RetryQueue(hand_over, renew=never, sealed=lambda *_: None)
    adding = asyncio.create_task(queue.add(PAYLOADS[0]))
    await asyncio.sleep(0.01)
    adding.cancel()
    await asyncio.wait([adding])
    room.set()
    assert queue.unsealed == ()


@on_loop
async def test_a_step_whose_blocks_left_the_chain_is_forgotten_and_not_counted() -> None:
    submitted = Submitted()
    await submitted.queue.add(PAYLOADS[0])
    submitted.futures[0].set_exception(OrphanedError("left", number=1, block_hash=PAYLOADS[0].hash))
    await submitted.drain()
    assert (submitted.sealed, submitted.queue.retries) == ([], 0)


@on_loop
async def test_steps_that_are_cleared_fail_without_consequence() -> None:
    submitted = Submitted()
    for payload in PAYLOADS:
        await submitted.queue.add(payload)
    behind = NodeBehindError("a node needs block 0", number=0)
    submitted.futures[0].set_exception(behind)
    with pytest.raises(NodeBehindError):
        await submitted.drain()
    submitted.queue.clear()
    submitted.futures[1].set_exception(behind)
    await submitted.queue.add(PAYLOADS[0])
    submitted.futures[2].set_result(None)
    await submitted.drain()
    assert submitted.queue.unsealed == ()


@on_loop
async def test_a_fault_of_our_own_ends_the_service_and_is_not_waited_for() -> None:
    submitted = Submitted()
    await submitted.queue.add(PAYLOADS[0])
    submitted.futures[0].set_exception(RuntimeError("a fault"))
    with pytest.raises(RuntimeError, match="a fault"):
        await submitted.drain()
    assert submitted.queue.unsealed == (PAYLOADS[0],)
