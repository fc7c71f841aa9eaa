"""Ingest service on a real broker: what was acknowledged is on the topics, once and in order, also after kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ethereum_blocks import build, grow
from killing import PUBLISHERS, killed

from cardinal.apps import get
from cardinal.consumer import Consumer
from cardinal.protocols.streams import MissingPayload, Payload
from cardinal_ethereum import payload_from_rpc
from cardinal_ingest import items
from cardinal_ingest.body import items_of
from cardinal_ingest.protocols.publish import Acknowledgement, BlockEnd, BlockItemSet, EndOfStream, ResendBlock, Status
from ingesting import node, publisher, workers_of

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.broker
DEADLINE = 60.0


def test_a_publishers_blocks_reach_a_consumer_once_and_in_order(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    """Also where a node is stopped as soon as it has acknowledged: the next one puts on the topics what it left."""
    url, topic = f"kafka://{cardinal_broker.bootstrap}", f"items-{uuid.uuid4().hex}"

    async def publish(port: int, first: int) -> None:
        async with publisher(port) as one:
            for number in range(first, first + 10):
                await one.block(number, b"\x12\x01" + bytes([number]))
            while await one.next() != Acknowledgement(first + 9):
                pass

    for first in (0, 10):
        with node(url, topic, tmp_path) as (process, port):
            asyncio.run(publish(port, first))
            process.terminate()
            assert process.wait(DEADLINE) == 0
    with node(url, topic, tmp_path):
        assert published(url, get("items", topic=topic), 20) == list(range(20))


def test_a_node_that_is_stopped_first_puts_on_the_topics_what_it_acknowledged(
    cardinal_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    url, topic = f"kafka://{cardinal_broker.bootstrap}", f"items-{uuid.uuid4().hex}"
    app = get("items", topic=topic)

    async def publish(port: int, first: int, last: int) -> None:
        async with publisher(port) as one:
            for number in range(first, last + 1):
                await one.block(number, b"\x12\x01" + bytes([number]))
            while await one.next() != Acknowledgement(last):
                pass

    with node(url, topic, tmp_path) as (process, port):
        asyncio.run(publish(port, 0, 0))
        assert published(url, app, 1) == [0]  # it is connected
        asyncio.run(publish(port, 1, 30))
        process.terminate()
        assert process.wait(DEADLINE) == 0
    assert published(url, app, 31) == list(range(31))


def test_evm_blocks_reach_a_consumer_as_their_publisher_made_them_and_a_lie_does_not(
    cardinal_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """Also where the process that verifies them is killed meanwhile."""
    url, topic = f"kafka://{cardinal_broker.bootstrap}", f"evm-{uuid.uuid4().hex}"
    chain = grow(build(None, number=5_000_000), 5)
    blocks = [payload_from_rpc(built.block, built.receipts, chain_id=1) for built in chain]
    lie = replace(blocks[3], updates=blocks[3].updates | {f"c/1/b/{blocks[3].hash.hex()}/l/0/0": b"\xc0"})

    async def publish(port: int, process: subprocess.Popen[str]) -> None:
        async with publisher(port) as one, publisher(port) as two:
            for at, block in enumerate(blocks):
                if at == 2:
                    for worker in workers_of(process.pid):
                        os.kill(worker, signal.SIGKILL)
                copies = [(one, lie), (two, block)] if at == 3 else [(two, block)]
                for sender, copy in copies:
                    await sender.send(BlockItemSet(items_of(copy, chain_id=1)), BlockEnd(copy.number))
                    while (answer := await sender.next()) != Acknowledgement(block.number):
                        if isinstance(answer, ResendBlock):
                            await sender.send(BlockItemSet(items_of(copy, chain_id=1)), BlockEnd(copy.number))
                        if isinstance(answer, EndOfStream):
                            assert (answer.status, copy) == (Status.BAD_BLOCK_PROOF, lie)
                            break

    with node(url, topic, tmp_path, app="evm") as (process, port):
        asyncio.run(publish(port, process))
        found: list[Payload | MissingPayload] = []
        with Consumer(url, get("evm", topic=topic), idle_timeout=DEADLINE) as consumer:
            while len(found) < len(blocks):
                found += next(iter(consumer)).added
    assert found == blocks


def published(url: str, app: Application, count: int) -> list[int]:
    found: list[items.Block] = []
    with Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        for update in consumer:
            assert not update.removed
            found += [items.read(block) for block in update.added if isinstance(block, Payload)]
            if len(found) >= count:
                break
    return [block.number for block in found if len(block.items) == 3]


# --- kills ----------------------------------------------------------------------------------------------------------


PROCESSES = ("node", PUBLISHERS[0], "node", PUBLISHERS[1])


@pytest.mark.parametrize("app", ["blob", pytest.param("items", marks=pytest.mark.slow)])
def test_publishers_and_node_are_killed(app: str, cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    killed(app, cardinal_broker, tmp_path, [*PROCESSES[:3]], 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_publishers_node_and_broker_are_killed_at_30_points(
    cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    killed("blob", cardinal_killable_broker, tmp_path, [*PROCESSES, "broker"] * 6, 2)


@pytest.mark.soak
@pytest.mark.timeout(8 * 3600)
@pytest.mark.parametrize("seed", range(10, 20))
def test_publishers_node_and_broker_are_killed_at_1000_points(
    seed: int, cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    killed("blob", cardinal_killable_broker, tmp_path, [*PROCESSES, "broker"] * 20, seed)
