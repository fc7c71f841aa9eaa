"""A small application on a memory broker: its blocks by short names, and what came of them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from cardinal.apps import Application
from cardinal.consumer import Consumer
from cardinal.producer import Producer
from cardinal.protocols.streams import BlockRef, ChainUpdate, Routed, split, split_reorg
from cardinal.protocols.streams.payload import MissingPayload, Payload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardinal_devkit.testing.memory import MemoryBroker

DEADLINE = 60.0


class Blocks(Application):
    name: str = "blocks"
    chain: str = "blocks:1"
    reorg_threshold: int = 16
    default_topic: str = "block"
    topics: dict[str, str] = Field(default_factory=lambda: {"a/": "a", "b/": "b"})
    prefixes: tuple[str, ...] = ("a/", "b/", "inside")
    sub_batches: tuple[str, ...] | None = ()
    finality_paths: tuple[str, str] | None = ("a/safe", "a/finalized")


def hash_of(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def name_of(block_hash: bytes) -> str:
    return block_hash.rstrip(b".").decode()


def block(name: str, parent: str, weight: int | None = None) -> Payload:
    number = int(name[:-1])
    updates = {"a/1": name.encode(), "a/2": b"2", "b/1": b"3", "inside": b"4"}
    return Payload(number, hash_of(name), hash_of(parent), number if weight is None else weight, updates)


def line(first: int, last: int, branch: str = "a", below: str = "", weight: int = 0) -> list[Payload]:
    """Blocks of a branch on the block below, each so much heavier than its number."""
    names = [below or f"{first - 1}{branch}", *(f"{number}{branch}" for number in range(first, last + 1))]
    return [block(name, parent, int(name[:-1]) + weight) for parent, name in pairwise(names)]


def publish(
    broker: MemoryBroker | str, payloads: list[Payload], producer_id: str = "one", *, app: Application | None = None
) -> None:
    url = broker if isinstance(broker, str) else broker.url
    with Producer(url, app or Blocks(), producer_id=producer_id) as producer:
        for payload in payloads:
            producer.add(payload)
        producer.flush(DEADLINE)


def steps(updates: list[ChainUpdate]) -> list[str]:
    """What the updates remove and add, in order; ``?`` where content is missing."""
    return [
        sign + ("?" if isinstance(one, MissingPayload) else "") + name_of(one.hash)
        for update in updates
        for sign, blocks in (("-", update.removed), ("+", update.added))
        for one in blocks
    ]


def updates_until(consumer: Consumer, last: str) -> list[ChainUpdate]:
    """Updates until this block is the head."""
    updates: list[ChainUpdate] = []
    for update in consumer:
        updates.append(update)
        if update.added and update.added[-1].hash == hash_of(last):
            return updates
    raise AssertionError(f"{last} did not come: {steps(updates)}")


def messages(payload: Payload) -> list[Routed]:
    """All messages of a block, its Batch last."""
    return split(payload, Blocks().topics, Blocks().default_topic)


def consumer(broker: MemoryBroker | str, **options: object) -> Consumer:
    """A consumer of the blocks; a test that waits in vain ends after the deadline."""
    url = broker if isinstance(broker, str) else broker.url
    return Consumer(url, **{"app": Blocks(), "idle_timeout": DEADLINE} | options)  # type: ignore[arg-type] # tests name them


def added(first: int, last: int, branch: str = "a") -> list[str]:
    """What :func:`steps` shows of blocks that are added."""
    return [f"+{number}{branch}" for number in range(first, last + 1)]


def send(broker: MemoryBroker, routed: Iterable[Routed], app: Application | None = None) -> None:
    broker.sink(app or Blocks(), producer_id="one").send(list(routed), None).result(DEADLINE)


def deep(broker: MemoryBroker, ancestor: str, branch: list[Payload], *, cut: int | None = None) -> list[Routed]:
    """Announce a reorg through a channel, and write the channel's first messages; returns the others."""
    below = BlockRef(int(ancestor[:-1]), hash_of(ancestor))
    announcement, channel = split_reorg(below, branch, Blocks().topics, "block")
    broker.create(channel[0].topic, partitions=1)
    send(broker, [announcement])
    send_channel(broker, channel[:cut])
    return [] if cut is None else channel[cut:]


def send_channel(broker: MemoryBroker, channel: list[Routed]) -> None:
    """Messages of a reorg's channel, whose topic exists."""
    send(broker, channel, Blocks(default_topic=channel[0].topic, topics={}, prefixes=()))
