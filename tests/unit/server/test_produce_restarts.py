"""A producer that starts again, or a range that is repaired: what of the topics is taken, completed and refused."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from block_nodes import Node, run, sealed
from blocks import DEADLINE, Blocks, line, messages, name_of, publish
from cardinal.errors import ConfigurationError, CoverageChangedError, NodeAnswerError, ReorgTooDeepError
from cardinal.producer import Producer
from cardinal.producing.survey import height_range
from cardinal.producing.survey.mux import range_in_members, survey_members
from cardinal.protocols.streams import SubBatch, split
from cardinal.protocols.streams.publishing.splitter import split_reorg
from cardinal.server.produce import ProduceService, ProduceSettings
from cardinal.server.produce.repair import Repaired, RepairRange, repair
from cardinal_devkit.testing.memory import MemoryBroker
from waiting import until_async as until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from cardinal.protocols.streams import BlockRef, Payload


CHAIN = line(1, 20)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        yield broker


def produced(broker: MemoryBroker, node: Node) -> tuple[list[BlockRef], ProduceService]:
    service = ProduceService(node, broker.url, Blocks(), producer_id="one")
    return asyncio.run(run(service)), service


def end_of(broker: MemoryBroker) -> str:
    return name_of(survey_members(broker.url, Blocks(), producer_id="one").chain[-1].hash)


@pytest.mark.parametrize("last", [61, 100])
def test_after_a_reorg_through_a_channel_a_restart_continues_where_it_was(broker: MemoryBroker, last: int) -> None:
    """The branch stands in the channel alone; some blocks on the main topics follow it, or none yet."""
    left, taken = line(1, 60), line(31, last, "b", below="30a")
    produced(broker, Node([*left, *taken]))
    published, service = produced(broker, Node([*left[:30], *taken]))
    assert published == [payload.ref for payload in (*left[:30], *taken)]
    assert service.progress.stats.blocks == 0


@pytest.mark.parametrize("seals", [True, False])
def test_a_channel_that_has_not_ended_or_is_not_there_is_not_continued_above(
    broker: MemoryBroker, *, seals: bool
) -> None:
    """Killed between two blocks of the channel: no consumer switches, and the branch has to go again as a whole."""
    left, taken = line(1, 60), line(31, 62, "b", below="30a")
    publish(broker, left)
    announcement, channel = split_reorg(left[29].ref, taken, Blocks().topics, Blocks().default_topic)
    sink = broker.sink(Blocks(), producer_id="one")
    sink.send([announcement], None).result(DEADLINE)
    assert end_of(broker) == "60a"
    sink.open_channel(channel[0].topic)
    for message in channel[:-1]:
        seal = seals and message.key[:1] == b"\0"
        sink.send([] if seal else [message], message if seal else None).result(DEADLINE)
    assert end_of(broker) == "60a"
    sink.send(channel[-1:], None).result(DEADLINE)
    assert end_of(broker) == "62b"


def test_a_block_of_a_channel_that_is_neither_sealed_nor_whole_is_not_continued_above(broker: MemoryBroker) -> None:
    left, taken = line(1, 60), line(31, 64, "b", below="30a")
    publish(broker, left)
    announcement, channel = split_reorg(left[29].ref, taken, Blocks().topics, Blocks().default_topic)
    lost = next(one for one in channel if one.key[1:33] == taken[-2].hash and one.key[:1] != b"\0")
    sink = broker.sink(Blocks(), producer_id="one")
    sink.open_channel(channel[0].topic)
    sink.send([announcement, *(one for one in channel if one is not lost)], None).result(DEADLINE)
    assert end_of(broker) == "62b"


LEFT = line(6, 6, "b", below="5a")[0]


def left_of(service: ProduceService) -> list[str]:
    return [name_of(one.hash) for one in service.progress.partial]


def test_bytes_that_come_after_the_first_look_are_found_when_all_is_sealed(broker: MemoryBroker) -> None:
    """A killed producer's: the block is completed where the node has it, and named where it has not."""
    publish(broker, CHAIN[:5])
    killed = broker.sink(Blocks(), producer_id="one")

    async def late(payload: Payload, beside: Sequence[Payload] = ()) -> tuple[list[str], list[str]]:
        node = Node(CHAIN[:12], beside)
        service = ProduceService(node, broker.url, Blocks(), producer_id="one", stop=12)
        await service.prepare()
        named = left_of(service)
        killed.send(messages(payload)[:-1], None).result(DEADLINE)
        await asyncio.wait_for(service.run(), DEADLINE)
        await service.close()
        return named, left_of(service)

    assert asyncio.run(late(LEFT, [LEFT])) == ([], [])
    assert LEFT.hash in sealed(broker)
    other = line(7, 7, "c", below="6a")[0]
    assert asyncio.run(late(other)) == ([], ["7c"])


def test_a_service_that_follows_polls_after_a_while_and_when_it_is_stopped(broker: MemoryBroker) -> None:
    publish(broker, CHAIN[:5])
    killed = broker.sink(Blocks(), producer_id="one")
    other = line(7, 7, "c", below="6a")[0]

    async def follow() -> list[str]:
        node = Node(CHAIN[:12], [LEFT], ends=False)
        settings = ProduceSettings("one", look_again_seconds=0.2)
        service = ProduceService(node, broker.url, Blocks(), settings=settings)
        await service.prepare()
        killed.send(messages(LEFT)[:-1], None).result(DEADLINE)
        running = asyncio.create_task(service.run())
        await until(lambda: LEFT.hash in sealed(broker))
        assert node.asked == ["6b"], "what is under way is not taken for half published"
        killed.send(messages(other)[:-1], None).result(DEADLINE)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await service.close()
        return left_of(service)

    assert asyncio.run(follow()) == ["7c"]


def test_what_comes_by_itself_is_not_requested_and_the_rest_goes_parents_first(broker: MemoryBroker) -> None:
    """A backfill was killed when no Batch of so many blocks had gone; beside them there is a branch."""
    branch = line(6, 12, "b", below="5a")
    publish(broker, CHAIN[:5])
    killed = broker.sink(Blocks(), producer_id="one")
    for payload in (*CHAIN[5:12], *branch):
        killed.send(messages(payload)[:-1], None).result(DEADLINE)
    node = Node(CHAIN[:12], branch)
    _, service = produced(broker, node)
    assert sorted(node.asked) == sorted(name_of(payload.hash) for payload in branch)
    assert service.progress.stats.blocks == 14, "each once"
    assert left_of(service) == []
    places = {block: place for place, block in enumerate(sealed(broker))}
    for line_ in (CHAIN[:12], branch):
        assert [places[payload.hash] for payload in line_] == sorted(places[payload.hash] for payload in line_)


def test_a_half_block_above_what_the_feed_gives_is_left_until_it_gets_there(broker: MemoryBroker) -> None:
    """As with --lag or --finality: its node has it, and it is not to be published yet."""
    publish(broker, CHAIN[:5])
    broker.sink(Blocks(), producer_id="one").send(messages(CHAIN[11])[:-1], None).result(DEADLINE)
    other = line(7, 7, "c", below="6a")[0]
    broker.sink(Blocks(), producer_id="one").send(messages(other)[:-1], None).result(DEADLINE)
    _, service = produced(broker, Node(CHAIN[:9], CHAIN[:12]))
    assert (sorted(left_of(service)), end_of(broker)) == (["12a", "7c"], "9a")
    assert CHAIN[11].hash not in sealed(broker)
    named = [(one.number, name_of(one.hash)) for one in service.progress.above]
    assert named == [(12, "12a")], "the other one the node does not have"
    assert service.progress.absent == {other.hash}


class Refusing(Node):
    """Does not serve one of the blocks now."""

    async def block(self, block_hash: bytes) -> Payload | None:
        if name_of(block_hash) == "7c":
            raise NodeAnswerError("the node answers with an error")
        return await super().block(block_hash)


def test_only_what_the_node_has_answered_to_lack_is_absent(broker: MemoryBroker) -> None:
    publish(broker, CHAIN[:5])
    for lost in (line(7, 7, "c", below="6a")[0], line(8, 8, "d", below="7a")[0]):
        broker.sink(Blocks(), producer_id="one").send(messages(lost)[:-1], None).result(DEADLINE)
    _, service = produced(broker, Refusing(CHAIN[:9]))
    assert sorted(left_of(service)) == ["7c", "8d"]
    assert [name_of(one) for one in service.progress.absent] == ["8d"]


STATE = bytes([7]) * 32


def with_state(payloads: Sequence[Payload]) -> list[Payload]:
    return [replace(one, sub_batches={STATE: SubBatch("b/state", {"b/state/1": b"x"})}) for one in payloads]


def prepare(broker: MemoryBroker, node: Node) -> None:
    """What is done before anything is published."""

    async def begin() -> None:
        service = ProduceService(node, broker.url, Blocks(), producer_id="two")
        try:
            await service.prepare()
        finally:
            await service.close()

    asyncio.run(asyncio.wait_for(begin(), DEADLINE))


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
    assert node.compared == [20, 19, 18, 16, 12, 4]
    assert len(broker.records("a")) == before


def test_of_a_short_stream_the_oldest_block_is_tried_too(broker: MemoryBroker) -> None:
    publish(broker, CHAIN[:7])
    node = Node([*CHAIN[:1], *line(2, 9, "b", "1a")])
    prepare(broker, node)
    assert node.compared == [7, 6, 5, 3, 1]


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
    assert node.compared == [20]
    with pytest.raises(CoverageChangedError):
        prepare(broker, Moving(with_state(CHAIN)))


SHORT = CHAIN[:12]


def repaired(broker: MemoryBroker, node: Node, first: int, last: int, *, dry_run: bool = False) -> Repaired:
    async def within() -> Repaired:
        what = RepairRange(first, last, "fix", dry_run)
        return await asyncio.wait_for(repair(node, broker.url, Blocks(), what, lambda _: None), DEADLINE)

    return asyncio.run(within())


def left(done: Repaired) -> list[tuple[int | None, str]]:
    return [(one.number, name_of(one.hash)) for one in done.left]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_range_that_ends_above_the_head_is_refused_instead_of_waited_for(
    broker: MemoryBroker, *, dry_run: bool
) -> None:
    publish(broker, SHORT[:5])
    before = len(broker.records())
    for first in (3, 14):
        with pytest.raises(ConfigurationError, match="up to 12 now, and block 15 is above") as caught:
            repaired(broker, Node(SHORT), first, 15, dry_run=dry_run)
        assert caught.value.setting == "stop"
    assert len(broker.records()) == before
    assert repaired(broker, Node(SHORT), 3, 12, dry_run=dry_run).sent == (0 if dry_run else 7)


def test_blocks_without_a_batch_are_sent_where_the_node_has_them_by_hash(
    broker: MemoryBroker,
) -> None:
    known, unknown, above = (line(number, number, "b", below=f"{number - 1}a")[0] for number in (4, 6, 11))
    publish(broker, SHORT)
    killed = broker.sink(Blocks(), producer_id="killed")
    for payload in (known, unknown, above):
        killed.send(messages(payload)[:-1], None).result(DEADLINE)
    node = Node(SHORT, beside=[known, above])
    done = repaired(broker, node, 2, 8, dry_run=True)
    assert ([ref.hash for ref in done.missing], left(done), done.sent) == ([known.hash], [(None, "6b")], 0)
    assert repaired(broker, node, 2, 8).sent == 1
    done = repaired(broker, node, 2, 8)
    assert (done.missing, left(done), done.complete) == ((), [(None, "6b")], 7)


def test_blocks_without_a_batch_are_not_searched_in_a_very_wide_range(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, SHORT)
    broker.sink(Blocks(), producer_id="killed").send(messages(line(6, 6, "b", below="5a")[0])[:-1], None)
    assert repaired(broker, Node(SHORT), 1, 12).looked
    monkeypatch.setattr(height_range, "_LOOKED_AROUND", 11)
    done = repaired(broker, Node(SHORT), 1, 12)
    assert (done.looked, left(done), done.complete) == (False, [], 12)


def test_what_is_held_of_a_stream_is_the_range_and_some_next_to_it(broker: MemoryBroker) -> None:
    publish(broker, line(1, 2_000))
    found = range_in_members(broker.url, Blocks(), 1_000, 1_009)
    numbers = {batch.number for batch in found.batches.values()}
    assert numbers >= set(range(980, 1_030))
    assert len(found.batches) < 200
    assert {found.batches[block].number for block in found.complete} == set(range(1_000, 1_010))


def test_what_came_through_the_channel_of_a_reorg_is_not_sent_again(broker: MemoryBroker) -> None:
    old, taken = line(1, 60), line(31, 70, "b", below="30a")

    async def produce() -> None:
        service = ProduceService(Node([*old, *taken]), broker.url, Blocks(), producer_id="one", stop=70)
        await service.prepare()
        await asyncio.wait_for(service.run(), DEADLINE)
        await service.close()

    asyncio.run(produce())
    assert any("-re-" in topic for topic in broker.topics())
    done = repaired(broker, Node([*old[:30], *taken]), 1, 70)
    assert (done.complete, done.missing, done.sent) == (70, (), 0)


def test_a_sealed_block_that_has_lost_a_message_is_reported_and_sent_again(broker: MemoryBroker) -> None:
    publish(broker, [*SHORT[:5], *SHORT[6:]])
    *content, batch = messages(SHORT[5])
    broker.sink(Blocks(), producer_id="one").send(content[1:], batch).result(DEADLINE)
    done = repaired(broker, Node(SHORT), 3, 9, dry_run=True)
    assert (done.complete, done.partial, done.missing, done.sent) == (6, (SHORT[5].ref,), (), 0)
    assert repaired(broker, Node(SHORT), 3, 9).sent == 1
    done = repaired(broker, Node(SHORT), 3, 9)
    assert (done.complete, done.partial, done.sent) == (7, (), 0)


def test_a_topic_that_was_emptied_is_reported_and_filled_again(broker: MemoryBroker) -> None:
    publish(broker, SHORT)
    for partition, end in {tp: high for tp, (_, high) in broker.source(["a"]).watermarks().items()}.items():
        broker.trim(*partition, end)
    done = repaired(broker, Node(SHORT), 1, 12, dry_run=True)
    assert (done.complete, [ref.number for ref in done.partial]) == (0, list(range(1, 13)))
    assert repaired(broker, Node(SHORT), 1, 12).sent == 12
    assert repaired(broker, Node(SHORT), 1, 12).complete == 12


def test_a_block_that_a_channel_has_lost_a_message_of_is_sent_again(broker: MemoryBroker) -> None:
    old, taken = line(1, 60), line(31, 70, "b", below="30a")
    publish(broker, old)
    with Producer(broker.url, Blocks(), producer_id="one") as producer:
        producer.reorg(old[29].ref, taken).result(DEADLINE)
    channel = next(topic for topic in broker.topics() if "-re-" in topic)
    broker.trim(channel, 0, 4)
    node = Node([*old[:30], *taken])
    assert repaired(broker, node, 31, 70, dry_run=True).missing == (taken[0].ref,)
