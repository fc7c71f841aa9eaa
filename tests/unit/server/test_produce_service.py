from __future__ import annotations

import asyncio
import threading
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from cardinal.apps import Application
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
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.messages import Batch
from cardinal.server.produce import ProduceService, ProduceSettings
from cardinal.server.produce.repair import RepairRange, repair
from cardinal.testing.memory import MemoryBroker, MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import BlockRef, Routed
    from cardinal.transports.written import Written

DEADLINE = 10.0


@dataclass(frozen=True)
class Blocks:
    default_topic: str = "block"
    topics: dict[str, str] = field(default_factory=lambda: {"a/": "a"})
    all_topics: tuple[str, ...] = ("block", "a")
    finality_paths: tuple[str, str] | None = None


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


def _service(feed: Line, broker: MemoryBroker, **span: int) -> ProduceService:
    return ProduceService(feed, broker.url, Blocks(), producer_id="one", **span)


async def _run(service: ProduceService) -> list[BlockRef]:
    try:
        published = await service.prepare()
        await asyncio.wait_for(service.run(), DEADLINE)
    finally:
        await service.close()
    return published


def test_a_feed_is_published_to_its_end(broker: MemoryBroker) -> None:
    feed = Line(0)
    service = _service(feed, broker, start=3, stop=40)
    assert asyncio.run(_run(service)) == []
    assert _numbers(broker) == set(range(3, 41))
    assert (service.progress.stats.blocks, service.progress.number, service.progress.stats.in_flight) == (38, 40, 0)
    assert feed.closed


def test_a_second_run_goes_on_where_the_topics_end(broker: MemoryBroker) -> None:
    asyncio.run(_run(_service(Line(0), broker, start=0, stop=10)))
    feed = Line(0)
    published = asyncio.run(_run(_service(feed, broker, start=0, stop=20)))
    assert published[-1].number == 10
    assert feed.given == [10, *range(11, 21)], "the newest published one is only compared"
    assert _numbers(broker) == set(range(21))


class Weighed(Line):
    """A feed that takes the weights of what is published."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.learned: dict[int, int] = {}

    def learn(self, weights: Mapping[bytes, int]) -> None:
        assert not self.given, "before anything is asked of the feed"
        self.learned = {int.from_bytes(block) - 1: weight for block, weight in weights.items()}


def test_a_feed_that_weighs_is_told_the_weights_of_what_is_published(broker: MemoryBroker) -> None:
    feed = Weighed(0)
    asyncio.run(_run(_service(feed, broker, start=0, stop=10)))
    assert feed.learned == {}
    feed = Weighed(0)
    asyncio.run(_run(_service(feed, broker, start=0, stop=12)))
    assert feed.learned == {number: number for number in range(11)}


def test_a_repair_tells_the_weights_down_to_the_block_below_its_range(broker: MemoryBroker) -> None:
    asyncio.run(_run(_service(Line(0), broker, start=0, stop=10)))
    feed = Weighed(0)
    done = asyncio.run(repair(feed, broker.url, Blocks(), RepairRange(5, 8, "one"), lambda _: None))
    assert feed.learned == {4: 4, 5: 5, 6: 6, 7: 7, 8: 8}
    assert (done.complete, done.missing, done.partial, done.left, done.sent) == (4, (), (), (), 0)


def test_blocks_that_were_lost_are_sent_again(broker: MemoryBroker) -> None:
    lost: list[bytes] = []

    def lose(message: object) -> bool:
        block_hash = message.key[1:33]  # type: ignore[attr-defined] # a Routed
        if message.key[:1] == b"\x03" and block_hash in (_hash(4), _hash(9)) and block_hash not in lost:  # type: ignore[attr-defined] # the same
            lost.append(block_hash)
            return True
        return False

    broker.fail(lose)
    service = _service(Line(0), broker, stop=20)
    asyncio.run(_run(service))
    assert service.progress.retries == 2
    assert _numbers(broker) == set(range(21))


def test_a_producer_that_has_stopped_is_replaced_and_nothing_is_left_out(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sink refuses every call from the tenth block on, and what is in flight then is lost."""
    send, stopped = MemorySink.send, list[MemorySink]()

    def stop(
        sink: MemorySink, content: Sequence[Routed], seal: Routed | None, written: Written | None = None
    ) -> Future[None]:
        if content and not stopped and content[0].key[1:33] == _hash(10):
            stopped.append(sink)
            broker.fail(lambda _: True)
        if sink in stopped:
            broker.fail(None)
            raise ClientStoppedError("the client stopped for good; start the producer again")
        return send(sink, content, seal, written)

    monkeypatch.setattr(MemorySink, "send", stop)
    service = _service(Line(0), broker, stop=40)
    asyncio.run(_run(service))
    assert stopped
    assert service.progress.renewals >= 1
    assert _numbers(broker) == set(range(41))
    assert _chain_of(broker) == [bytes([number + 1]) for number in range(41)]


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


@pytest.mark.parametrize(
    ("url", "says"),
    [("ftp://user:s3cr3t@host", "https://"), ("no-url-with-s3cr3t-text", "begins with a scheme"), ("", "a scheme")],
)
def test_a_url_without_a_feed_is_refused_with_the_form_to_use(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        open_feed(url)
    assert "s3cr3t" not in str(caught.value)


class Script(Line):
    """A feed that gives a script of payloads; its node has these blocks by hash."""

    def __init__(self, payloads: list[Payload], has: list[Payload] | None = None) -> None:
        super().__init__(0)
        self.payloads = payloads
        self.has = {payload.hash: payload for payload in has or []}

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        known = {ref.hash for ref in published}
        for payload in self.payloads:
            inside = (start is None or payload.number >= start) and (until is None or payload.number <= until)
            if payload.hash not in known and (known or inside):
                yield payload

    async def block(self, block_hash: bytes) -> Payload | None:
        return self.has.get(block_hash)


class Shallow(Blocks):
    reorg_threshold = 3


def _script(*names: str, **parents: str) -> list[Payload]:
    """`"1a", "2a", "2b", n2b="1a"`: the parent of a block is the one before it unless it is named."""
    hashes = {name: name.encode().rjust(32, b"\0") for name in ("0a", *names, *parents.values())}
    out = []
    for before, name in zip(("0a", *names), names, strict=False):
        number = int(name[:-1])
        parent = hashes[parents.get(f"n{name}", before)]
        out.append(Payload(number, hashes[name], parent, number, {"a/1": name.encode(), "a/2": b"x"}))
    return out


def _chain_of(broker: MemoryBroker) -> list[bytes]:
    """What a reader makes of it all, channels too."""
    app = Application(
        name="x", chain="x:1", default_topic="block", topics={"a/": "a"}, reorg_threshold=Shallow.reorg_threshold
    )
    chain: list[bytes] = []
    with Consumer(broker.url, app, idle_timeout=0.5) as consumer:
        for update in consumer:
            for block in update.removed:
                assert chain.pop() == block.hash
            chain += [block.hash for block in update.added]
    return [block.lstrip(b"\0") for block in chain]


def test_a_deep_reorg_of_the_node_reaches_consumers_through_a_channel(broker: MemoryBroker) -> None:
    payloads = _script("1a", "2a", "3a", "4a", "5a", "6a", "2b", "3b", "4b", "5b", "6b", "7b", "8b", n2b="1a")
    service = ProduceService(Script(payloads), broker.url, Shallow(), producer_id="one", stop=8)
    asyncio.run(_run(service))
    assert any("-re-" in topic for topic in broker.topics())
    assert _chain_of(broker) == [b"1a", b"2b", b"3b", b"4b", b"5b", b"6b", b"7b", b"8b"]
    assert service.progress.stats.blocks == len(payloads)


def test_a_broker_that_is_away_when_a_channel_is_to_be_made_is_waited_for(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = _script("1a", "2a", "3a", "4a", "5a", "6a", "2b", "3b", "4b", "5b", "6b", "7b", "8b", n2b="1a")
    open_channel = MemorySink.open_channel
    away = [UnreachableError("nobody answers", address="b:1"), UnreachableError("nobody answers", address="b:1")]

    def channel(sink: MemorySink, topic: str) -> None:
        if away:
            raise away.pop()
        open_channel(sink, topic)

    monkeypatch.setattr(MemorySink, "open_channel", channel)
    service = ProduceService(Script(payloads), broker.url, Shallow(), producer_id="one", stop=8)
    asyncio.run(_run(service))
    assert _chain_of(broker) == [b"1a", b"2b", b"3b", b"4b", b"5b", b"6b", b"7b", b"8b"]
    assert not away


def test_a_node_that_goes_back_to_where_it_was_takes_consumers_along(broker: MemoryBroker) -> None:
    there = _script("1a", "2a", "3a", "4a", "5a", "6a", "2b", "3b", "4b", "5b", "6b", "7b", n2b="1a")
    back = _script("7a", "8a", n7a="6a")
    asyncio.run(_run(ProduceService(Script(there + back), broker.url, Shallow(), producer_id="one", stop=8)))
    assert _chain_of(broker) == [b"1a", b"2a", b"3a", b"4a", b"5a", b"6a", b"7a", b"8a"]


def test_what_another_producer_completes_meanwhile_is_not_named(broker: MemoryBroker) -> None:
    payloads = _script("1a", "2a", "2b", n2b="1a")
    asyncio.run(_run(ProduceService(Script(payloads[:2]), broker.url, Blocks(), producer_id="one", stop=2)))
    other = broker.sink(Blocks(), producer_id="other")
    *content, batch = split(payloads[2], Blocks().topics, "block")
    other.send(content[:1], None).result(1)
    service = ProduceService(Script(payloads[:2]), broker.url, Blocks(), producer_id="one", stop=2)

    async def meanwhile() -> None:
        await service.prepare()
        assert [one.hash for one in service.progress.partial] == [payloads[2].hash]
        other.send(content, batch).result(1)
        await service.run()
        await service.close()

    asyncio.run(asyncio.wait_for(meanwhile(), DEADLINE))
    assert service.progress.partial == ()


def test_a_name_that_marks_repairs_is_refused(broker: MemoryBroker) -> None:
    with pytest.raises(ConfigurationError, match=r"'db-repair' ends as the ids of repairs.*choose another") as caught:
        ProduceService(Line(0), broker.url, Blocks(), producer_id="db-repair")
    assert caught.value.setting == "producer_id"


def test_a_connection_that_nobody_waited_for_is_released_when_it_is_there(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        service = _service(Line(0), broker)
        preparing = asyncio.create_task(service.prepare())
        await asyncio.to_thread(asked.wait, DEADLINE)
        preparing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await preparing
        await service.close()

    asyncio.run(asyncio.wait_for(told_to_stop(), DEADLINE))
    assert not closed.is_set()
    answers.set()
    assert closed.wait(DEADLINE)


def test_other_entries_than_the_published_ones_are_refused_unless_they_are_meant(broker: MemoryBroker) -> None:
    payloads = _script("1a", "2a")
    asyncio.run(_run(ProduceService(Script(payloads), broker.url, Blocks(), producer_id="one", stop=2)))
    more = [replace(payload, updates={**payload.updates, "b/1": b"x"}) for payload in payloads]
    before = len(broker.records("a"))
    with pytest.raises(CoverageChangedError, match="b/1") as caught:
        asyncio.run(_run(ProduceService(Script(more), broker.url, Blocks(), producer_id="one", stop=3)))
    assert (caught.value.number, caught.value.hash, caught.value.missing) == (2, payloads[1].hash, ())
    assert caught.value.added == ("b/1",)
    fewer = replace(Blocks(), topics={"a/1": "a"})
    with pytest.raises(CoverageChangedError) as caught:
        asyncio.run(_run(ProduceService(Script(payloads), broker.url, fewer, producer_id="one", stop=3)))
    assert (caught.value.missing, caught.value.added) == (("a/ ×2",), ("a/1 ×1", "a/2"))
    assert len(broker.records("a")) == before
    settings = ProduceSettings("one", allow_coverage_change=True)
    asyncio.run(_run(ProduceService(Script(more), broker.url, Blocks(), settings=settings, stop=3)))


def test_a_node_that_has_none_of_the_newest_blocks_cannot_be_compared(broker: MemoryBroker) -> None:
    asyncio.run(_run(ProduceService(Script(_script("1a")), broker.url, Blocks(), producer_id="one", stop=1)))
    other = Script([replace(payload, updates={"c/1": b"x"}) for payload in _script("1b")])
    asyncio.run(_run(ProduceService(other, broker.url, Blocks(), producer_id="one", stop=1)))
    (payload,) = other.payloads
    assert b"\0" + payload.hash in {record.key for record in broker.records("block")}, "it is published"
