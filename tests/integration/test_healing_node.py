"""Healing filled from a node: a block that lacks messages on the topics is completed from what the node has."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from ethereum_blocks import Built, grow, replay
from feeding import QUICK, connected, everything, serving

from blocks import DEADLINE
from cardinal import Consumer, MissingPayload, Payload, apps
from cardinal.cli.main import cardinal
from cardinal.consuming.healing import HealingFailed
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import split
from cardinal.server.healing import FeedHealer
from cardinal_devkit.testing.memory import MemoryBroker
from cardinal_devkit.testing.node import JsonRpcNode
from cardinal_ethereum.feed import open_feed

if TYPE_CHECKING:
    from cardinal_devkit.testing.replay import ReplayChain

CHAIN_ID = 1337
LOST = 5
LENGTH = 60
APP = apps.get("evm", chain_id=CHAIN_ID, reorg_threshold=32)


@contextlib.contextmanager
def node_of(chain: ReplayChain) -> Iterator[JsonRpcNode]:
    """A node on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serve = serving(chain)
    try:
        yield asyncio.run_coroutine_threadsafe(serve.__aenter__(), loop).result(DEADLINE)
    finally:
        asyncio.run_coroutine_threadsafe(serve.__aexit__(None, None, None), loop).result(DEADLINE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE)
        loop.close()


def payloads_of(chain: ReplayChain) -> list[Payload]:
    async def read() -> list[Payload]:
        async with serving(chain) as node, connected(node.url, QUICK) as feed:
            return await everything(feed.follow(until=LENGTH - 1))

    return asyncio.run(read())


def publish(broker: MemoryBroker, payloads: list[Payload]) -> None:
    """Blocks, one of them without a third of its messages."""
    sink = broker.sink(APP, producer_id="one")
    for payload in payloads:
        messages = split(payload, APP.topics, APP.default_topic)
        if payload.number == LOST:
            messages = [one for at, one in enumerate(messages[:-1]) if at % 3] + messages[-1:]
        sink.send(messages, None).result(DEADLINE)


def consumed(broker: MemoryBroker, payloads: list[Payload], **options: Any) -> list[Payload | MissingPayload]:  # noqa: ANN401
    """What a consumer delivers that is there before the block that lacks something."""
    publish(broker, payloads[:LOST])
    chain: list[Payload | MissingPayload] = []
    with Consumer(broker.url, APP, idle_timeout=DEADLINE, **options) as reading:
        for update in reading:
            chain += update.added
            if chain[-1].number == LOST - 1:
                publish(broker, payloads[LOST:])
            if chain[-1].number == LENGTH - 1:
                return chain
    raise AssertionError("the consumer ended")


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        yield broker


@pytest.fixture
def blocks() -> list[Built]:
    return grow(None, LENGTH)


def test_block_that_lacks_messages_is_completed_from_the_node(broker: MemoryBroker, blocks: list[Built]) -> None:
    served = replay(blocks)
    payloads = payloads_of(served)
    with node_of(served) as node, FeedHealer(open_feed(node.url, settings=QUICK), APP) as healer:
        chain = consumed(broker, payloads, heal=healer)
        assert node.calls["eth_getBlockByHash"] == 1
    assert [one.hash for one in chain] == [one.hash for one in payloads]
    healed, whole = chain[LOST], payloads[LOST]
    assert isinstance(healed, Payload)
    assert dict(healed.updates) == dict(whole.updates)


def test_block_that_the_node_lacks_is_skipped(broker: MemoryBroker, blocks: list[Built]) -> None:
    served = replay(blocks)
    payloads = payloads_of(served)
    served.forget(blocks[LOST].name)
    with node_of(served) as node, FeedHealer(open_feed(node.url, settings=QUICK), APP) as healer:
        assert isinstance(consumed(broker, payloads, heal=healer)[LOST], MissingPayload)


def test_block_that_the_node_gets_wrong_is_not_taken(broker: MemoryBroker, blocks: list[Built]) -> None:
    served = replay(blocks)
    payloads = payloads_of(served)
    served.swap(blocks[LOST].name, "receipts", [], 1000)
    events: list[object] = []
    with node_of(served) as node, FeedHealer(open_feed(node.url, settings=QUICK), APP) as healer:
        assert isinstance(consumed(broker, payloads, heal=healer, on_event=events.append)[LOST], MissingPayload)
    (failed,) = [event for event in events if isinstance(event, HealingFailed)]
    assert failed.reason.startswith("IntegrityError")


def test_node_that_is_not_there_holds_up_nothing(broker: MemoryBroker, blocks: list[Built]) -> None:
    served = replay(blocks)
    payloads = payloads_of(served)
    with node_of(served) as node:
        gone = node.url
    events: list[object] = []
    with FeedHealer(open_feed(gone, settings=QUICK), APP) as healer:
        assert isinstance(consumed(broker, payloads, heal=healer, on_event=events.append)[LOST], MissingPayload)
    assert any(isinstance(event, HealingFailed) and "no node answers" in event.reason for event in events)


def test_tail_heals_from_a_node(broker: MemoryBroker, blocks: list[Built]) -> None:
    served = replay(blocks)
    payloads = payloads_of(served)
    publish(broker, payloads)
    with node_of(served) as node:
        shown = CliRunner().invoke(
            cardinal,
            ["tail", broker.url, "--format", "json", "--stop", str(LENGTH - 1), "--heal", node.url],
        )
    assert shown.exit_code == 0, shown.output
    added = [block for line in shown.stdout.splitlines() for block in json.loads(line)["added"]]
    assert [block["hash"] for block in added] == [f"0x{payload.hash.hex()}" for payload in payloads]
    assert [block["messages"] for block in added] == [len(payload.updates) for payload in payloads]


def test_feed_without_blocks_by_hash_is_refused() -> None:
    class Plain:
        async def close(self) -> None: ...

    with pytest.raises(ConfigurationError, match="yields no blocks by their hash"):
        FeedHealer(Plain(), APP)  # type: ignore[arg-type] # no feed at all, and none by hash
