from __future__ import annotations

import asyncio
import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from block_nodes import CHAIN, Node, run, sealed
from blocks import DEADLINE, Blocks, hash_of, line, messages, name_of, publish
from cardinal._concurrency import Done
from cardinal.consumer import Consumer
from cardinal.errors import (
    ClientStoppedError,
    ConfigurationError,
    CoverageChangedError,
    NodeAnswerError,
    UnreachableError,
)
from cardinal.feeds import open_feed
from cardinal.producer import Producer
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.messages import Batch
from cardinal.server.produce import ProduceService, ProduceSettings
from cardinal.server.produce.repair import RepairRange, repair
from cardinal_devkit.testing.memory import MemoryBroker, MemorySink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cardinal.protocols.streams.types import Routed
    from cardinal.transports.written import Written


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def _numbers(broker: MemoryBroker) -> set[int]:
    return {m.number for r in broker.records("block") if isinstance(m := decode(r.key, r.value), Batch)}


def service(node: Node, broker: MemoryBroker, app: Blocks | None = None, **span: int) -> ProduceService:
    return ProduceService(node, broker.url, app or Blocks(), producer_id="one", **span)


def test_a_feed_is_published_to_its_end(broker: MemoryBroker) -> None:
    feed = Node()
    producing = service(feed, broker, start=3, stop=40)
    assert asyncio.run(run(producing)) == []
    assert _numbers(broker) == set(range(3, 41))
    assert (producing.progress.stats.blocks, producing.progress.number, producing.progress.stats.in_flight) == (
        38,
        40,
        0,
    )
    assert feed.closed


def test_a_second_run_continues_where_the_topics_end(broker: MemoryBroker) -> None:
    asyncio.run(run(service(Node(), broker, stop=10)))
    feed = Node()
    published = asyncio.run(run(service(feed, broker, stop=20)))
    assert published[-1].number == 10
    assert feed.given == [10, *range(11, 21)], "the newest published one is only compared"
    assert _numbers(broker) == set(range(1, 21))


def test_a_feed_that_weighs_is_notified_of_the_weights_of_what_is_published(broker: MemoryBroker) -> None:
    feed = Node()
    asyncio.run(run(service(feed, broker, stop=10)))
    assert feed.learned == {}
    feed = Node()
    asyncio.run(run(service(feed, broker, stop=12)))
    assert feed.learned == {f"{number}a": number for number in range(1, 11)}
    assert feed.learned_after == 0, "before anything is asked of the feed"


def test_a_repair_tells_the_weights_down_to_the_block_below_its_range(broker: MemoryBroker) -> None:
    asyncio.run(run(service(Node(), broker, stop=10)))
    feed = Node()
    done = asyncio.run(repair(feed, broker.url, Blocks(), RepairRange(5, 8, "one"), lambda _: None))
    assert feed.learned == {f"{number}a": number for number in range(4, 9)}
    assert (done.complete, done.missing, done.partial, done.left, done.sent) == (4, (), (), (), 0)


def test_blocks_that_were_lost_are_sent_again(broker: MemoryBroker) -> None:
    lost: list[bytes] = []

    def lose(message: object) -> bool:
        block_hash = message.key[1:33]  # type: ignore[attr-defined] # a Routed
        if message.key[:1] == b"\x03" and block_hash in (hash_of("4a"), hash_of("9a")) and block_hash not in lost:  # type: ignore[attr-defined] # the same
            lost.append(block_hash)
            return True
        return False

    broker.fail(lose)
    producing = service(Node(), broker, stop=20)
    asyncio.run(run(producing))
    assert producing.progress.retries == 2
    assert _numbers(broker) == set(range(1, 21))


def test_a_producer_that_has_stopped_is_replaced_and_nothing_is_left_out(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sink refuses every call from the tenth block on, and what is in flight then is lost."""
    post, stopped = MemorySink.post, list[MemorySink]()

    def stop(
        sink: MemorySink, content: Sequence[Routed], seal: Routed | None, done: Done, written: Written | None = None
    ) -> None:
        if content and not stopped and content[0].key[1:33] == hash_of("10a"):
            stopped.append(sink)
            broker.fail(lambda _: True)
        if sink in stopped:
            broker.fail(None)
            raise ClientStoppedError("the client stopped for good; start the producer again")
        post(sink, content, seal, done, written)

    monkeypatch.setattr(MemorySink, "post", stop)
    producing = service(Node(), broker, stop=40)
    asyncio.run(run(producing))
    assert stopped
    assert producing.progress.renewals >= 1
    assert _numbers(broker) == set(range(1, 41))
    assert chain_of(broker) == [f"{number}a" for number in range(1, 41)]


def test_an_error_of_the_feed_ends_the_service_and_what_was_given_is_published(broker: MemoryBroker) -> None:
    async def fail() -> None:
        producing = service(Node(fails_at=6), broker)
        try:
            await run(producing)
        finally:
            await producing.close()

    with pytest.raises(NodeAnswerError, match="lost its head"):
        asyncio.run(fail())
    assert _numbers(broker) == set(range(1, 6))


@pytest.mark.parametrize(
    ("url", "says"),
    [("ftp://user:s3cr3t@host", "https://"), ("no-url-with-s3cr3t-text", "begins with a scheme"), ("", "a scheme")],
)
def test_a_url_without_a_feed_is_refused_with_the_form_to_use(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        open_feed(url)
    assert "s3cr3t" not in str(caught.value)


def chain_of(broker: MemoryBroker) -> list[str]:
    """What a reader makes of it all, channels too."""
    chain: list[str] = []
    with Consumer(broker.url, SHALLOW, idle_timeout=0.5) as consumer:
        for update in consumer:
            for block in update.removed:
                assert chain.pop() == name_of(block.hash)
            chain += [name_of(block.hash) for block in update.added]
    return chain


SHALLOW = Blocks(reorg_threshold=3)
DEEP = [*line(1, 6), *line(2, 8, "b", below="1a")]
AFTER = ["1a", *(f"{number}b" for number in range(2, 9))]


def test_a_deep_reorg_of_the_node_reaches_consumers_through_a_channel(broker: MemoryBroker) -> None:
    producing = service(Node(DEEP), broker, SHALLOW, stop=8)
    asyncio.run(run(producing))
    assert any("-re-" in topic for topic in broker.topics())
    assert chain_of(broker) == AFTER
    assert producing.progress.stats.blocks == len(DEEP)


@pytest.mark.slow
def test_a_broker_that_is_unreachable_when_a_channel_is_to_be_made_is_waited_for(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_channel = MemorySink.open_channel
    away = [UnreachableError("nobody answers", address="b:1"), UnreachableError("nobody answers", address="b:1")]

    def channel(sink: MemorySink, topic: str) -> None:
        if away:
            raise away.pop()
        open_channel(sink, topic)

    monkeypatch.setattr(MemorySink, "open_channel", channel)
    asyncio.run(run(service(Node(DEEP), broker, SHALLOW, stop=8)))
    assert chain_of(broker) == AFTER
    assert not away


def test_a_node_that_goes_back_to_where_it_was_takes_consumers_along(broker: MemoryBroker) -> None:
    node = Node([*DEEP[:-1], *line(7, 8, below="6a")])
    asyncio.run(run(service(node, broker, SHALLOW, stop=8)))
    assert chain_of(broker) == [f"{number}a" for number in range(1, 9)]


def test_what_another_producer_completes_meanwhile_is_not_named(broker: MemoryBroker) -> None:
    (orphan,) = line(2, 2, "b", below="1a")
    publish(broker, CHAIN[:2])
    other = broker.sink(Blocks(), producer_id="other")
    *content, batch = messages(orphan)
    other.send(content[:1], None).result(60)
    producing = service(Node(CHAIN[:2]), broker, stop=2)

    async def meanwhile() -> None:
        await producing.prepare()
        assert [one.hash for one in producing.progress.partial] == [orphan.hash]
        other.send(content, batch).result(60)
        await producing.run()
        await producing.close()

    asyncio.run(asyncio.wait_for(meanwhile(), DEADLINE))
    assert producing.progress.partial == ()


def test_a_name_that_marks_repairs_is_refused(broker: MemoryBroker) -> None:
    with pytest.raises(ConfigurationError, match=r"'db-repair' ends as the ids of repairs.*choose another") as caught:
        ProduceService(Node(), broker.url, Blocks(), producer_id="db-repair")
    assert caught.value.setting == "producer_id"


def test_a_connection_opened_after_a_stop_is_closed(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow(Producer):
        def __init__(self, *args: object, **options: object) -> None:
            asked.set()
            assert answers.wait(DEADLINE)
            super().__init__(*args, **options)  # type: ignore[arg-type] # whatever the service gives

        def close(self) -> None:
            super().close()
            closed.set()

    monkeypatch.setattr("cardinal.server.produce.connection.Producer", Slow)

    async def told_to_stop() -> None:
        producing = service(Node(), broker)
        preparing = asyncio.create_task(producing.prepare())
        await asyncio.to_thread(asked.wait, DEADLINE)
        preparing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await preparing
        await producing.close()

    asyncio.run(asyncio.wait_for(told_to_stop(), DEADLINE))
    assert not closed.is_set()
    answers.set()
    assert closed.wait(DEADLINE)


def test_other_entries_than_the_published_ones_are_refused_unless_they_are_meant(broker: MemoryBroker) -> None:
    publish(broker, CHAIN[:2])
    more = [replace(payload, updates={**payload.updates, "other": b"x"}) for payload in CHAIN[:3]]
    before = len(broker.records("a"))
    with pytest.raises(CoverageChangedError, match="other") as caught:
        asyncio.run(run(service(Node(more), broker, stop=3)))
    assert (caught.value.number, caught.value.hash, caught.value.missing) == (2, CHAIN[1].hash, ())
    assert caught.value.added == ("other",)
    with pytest.raises(CoverageChangedError) as caught:
        asyncio.run(run(service(Node(), broker, Blocks(topics={"a/1": "a"}), stop=3)))
    assert (caught.value.missing, caught.value.added) == (("a/ ×2", "b/ ×1"), ("a/1 ×1", "a/2", "b/1"))
    assert len(broker.records("a")) == before
    settings = ProduceSettings("one", allow_coverage_change=True)
    asyncio.run(run(ProduceService(Node(more), broker.url, Blocks(), settings=settings, stop=3)))
    assert more[2].hash in sealed(broker)


def test_a_node_that_has_none_of_the_newest_blocks_cannot_be_compared(broker: MemoryBroker) -> None:
    publish(broker, CHAIN[:1])
    (other,) = line(1, 1, "b")
    asyncio.run(run(service(Node([replace(other, updates={"c/1": b"x"})]), broker, stop=1)))
    assert other.hash in sealed(broker), "it is published"
