"""Nothing is published, or completed, with other entries than the stream has."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

import pytest

from blocks import DEADLINE, Blocks, line, publish
from cardinal.errors import CoverageChangedError, ReorgTooDeepError
from cardinal.protocols.streams import BlockRef, Payload, SubBatch, split
from cardinal.server.produce import ProduceService
from cardinal.server.produce.repair import Repaired, RepairRange, repair
from cardinal.testing.memory import MemoryBroker

STATE = bytes([7]) * 32


class Node:
    """A chain; notes which blocks were asked for by their number alone."""

    def __init__(self, payloads: Sequence[Payload]) -> None:
        self.payloads = payloads
        self.asked: list[int | None] = []

    async def chain_id(self) -> int:
        return 7

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        if start == until:
            self.asked.append(start)
        first = published[-1].number + 1 if published else start or 0
        for payload in self.payloads:
            if first <= payload.number <= (until or 0):
                yield payload

    async def close(self) -> None:
        """Nothing is open."""


def with_state(payloads: Sequence[Payload]) -> list[Payload]:
    return [replace(one, sub_batches={STATE: SubBatch("b/state", {"b/state/1": b"x"})}) for one in payloads]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def repaired(broker: MemoryBroker, node: Node, first: int, last: int, *, dry_run: bool = False) -> Repaired:
    what = RepairRange(first, last, "two", dry_run)
    return asyncio.run(asyncio.wait_for(repair(node, broker.url, Blocks(), what, lambda _: None), DEADLINE))


def prepare(broker: MemoryBroker, node: Node) -> None:
    """What is done before anything is published."""

    async def begin() -> None:
        service = ProduceService(node, broker.url, Blocks(), producer_id="two")
        try:
            await service.prepare()
        finally:
            await service.close()

    asyncio.run(asyncio.wait_for(begin(), DEADLINE))


CHAIN = line(1, 20)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("there", "first", "last"),
    [(slice(0, 10), 11, 12), (slice(10, 20), 9, 11), (slice(4, 8), 1, 20)],
    ids=["above", "at its end", "around"],
)
def test_a_range_is_not_completed_with_other_entries_than_the_stream_has(
    broker: MemoryBroker,
    there: slice,
    first: int,
    last: int,
    dry_run: bool,  # noqa: FBT001 - pytest names it
) -> None:
    publish(broker, with_state(CHAIN[there]))
    before = len(broker.records())
    with pytest.raises(CoverageChangedError, match=STATE.hex()) as caught:
        repaired(broker, Node(CHAIN), first, last, dry_run=dry_run)
    assert "--allow" not in str(caught.value), "repair has no such option"
    assert len(broker.records()) == before
    assert repaired(broker, Node(with_state(CHAIN)), first, last, dry_run=dry_run).missing


def test_a_block_that_is_there_by_half_goes_with_the_entries_of_its_own_batch(broker: MemoryBroker) -> None:
    """The blocks around it have them all; what it lacks would not complete it."""
    publish(broker, CHAIN[:4])
    app = Blocks()
    batch = split(with_state(CHAIN[4:5])[0], app.topics, app.default_topic)[-1]
    broker.sink(app, producer_id="one").send([batch], None).result(DEADLINE)
    before = len(broker.records())
    with pytest.raises(CoverageChangedError) as caught:
        repaired(broker, Node(CHAIN), 1, 6)
    assert (caught.value.number, len(broker.records())) == (5, before)


def test_entries_that_changed_within_a_range_are_noticed_before_what_follows_them_is_sent(broker: MemoryBroker) -> None:
    publish(broker, [*CHAIN[:4], *with_state(CHAIN[5:8])])
    with pytest.raises(CoverageChangedError) as caught:
        repaired(broker, Node(CHAIN), 1, 10)
    assert caught.value.number == 8


def test_a_gap_above_entries_that_were_changed_on_purpose_is_completed(broker: MemoryBroker) -> None:
    publish(broker, [*with_state(CHAIN[:5]), *CHAIN[5:8], *CHAIN[9:12]])
    assert [ref.number for ref in repaired(broker, Node(CHAIN), 1, 12).missing] == [9]


def test_blocks_are_tried_farther_and_farther_down_until_the_node_has_one(broker: MemoryBroker) -> None:
    """The node left the newest twelve blocks; one that it has is found in a few questions."""
    publish(broker, CHAIN)
    node = Node([*with_state(CHAIN[:8]), *with_state(line(9, 30, "b", "8a"))])
    before = len(broker.records("a"))
    with pytest.raises(CoverageChangedError, match=STATE.hex()):
        prepare(broker, node)
    assert node.asked == [20, 19, 18, 16, 12, 4]
    assert len(broker.records("a")) == before


def test_of_a_short_stream_the_oldest_block_is_tried_too(broker: MemoryBroker) -> None:
    publish(broker, CHAIN[:7])
    node = Node([*CHAIN[:1], *line(2, 9, "b", "1a")])
    prepare(broker, node)
    assert node.asked == [7, 6, 5, 3, 1]


class Moving(Node):
    """A node whose chain goes back below a block right after that was given."""

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        async for payload in super().follow(published, start=start, until=until):
            yield payload
            if start == until:
                raise ReorgTooDeepError("it has none of these", number=payload.number, block_hash=payload.hash)


def test_a_reorg_while_entries_are_compared_is_no_reorg_below_the_stream(broker: MemoryBroker) -> None:
    publish(broker, CHAIN)
    node = Moving(CHAIN)
    prepare(broker, node)
    assert node.asked == [20]
    with pytest.raises(CoverageChangedError):
        prepare(broker, Moving(with_state(CHAIN)))
