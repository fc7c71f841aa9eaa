"""A mux of which one member is away: the other one is read as if it were alone, and nothing is proven without both."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, hash_of, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.consuming import channels
from cardinal.consuming.reader import Reader
from cardinal.errors import TopicError, UnreachableError
from cardinal.producer import Producer
from cardinal.protocols.streams import BlockRef, Routed
from cardinal.protocols.streams.types import Partition
from cardinal.testing.memory import MemoryBroker
from cardinal.transports import open_sink, open_source
from cardinal.transports.mux import MuxSource
from serving import Served, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHANNEL = "block-re"


@pytest.fixture
def old() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"old-{uuid.uuid4().hex}", partitions=2) as broker:
        publish(broker, line(1, 3))
        yield broker


@pytest.fixture
def new() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"new-{uuid.uuid4().hex}", partitions=3) as broker:
        publish(broker, line(3, 5))
        yield broker


@pytest.fixture
def served(old: MemoryBroker) -> Iterator[Served]:
    with serving(old.url, Blocks()) as served:
        yield served


def mux(served: Served, new: MemoryBroker) -> str:
    return f"mux:{served.url},{new.url}"


def begun(served: Served, new: MemoryBroker) -> MuxSource:
    source = open_source(mux(served, new), Blocks())
    assert isinstance(source, MuxSource)
    source.assign({where: low for where, (low, _) in source.watermarks().items()})
    return source


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < deadline


def answers(source: MuxSource) -> bool:
    try:
        source.watermarks()
    except UnreachableError:
        return False
    return True


def test_a_member_that_is_away_holds_up_no_block_of_the_other(served: Served, new: MemoryBroker) -> None:
    with Consumer(mux(served, new), Blocks(), idle_timeout=60) as consumer:
        until(consumer, "5a")
        served.stop()
        publish(new, line(6, 600))
        until(consumer, "600a")
        for number in range(601, 604):
            publish(new, line(number, number))
            assert steps(until(consumer, f"{number}a")) == [f"+{number}a"]


def test_a_deep_reorg_is_followed_in_one_member_while_the_other_is_away(served: Served, new: MemoryBroker) -> None:
    app = Blocks(reorg_threshold=4)
    with (
        Producer(new.url, app, producer_id="one") as producer,
        Consumer(mux(served, new), app, idle_timeout=60) as consumer,
    ):
        for payload in line(6, 15):
            producer.add(payload)
        producer.flush(DEADLINE)
        until(consumer, "15a")
        served.stop()
        producer.reorg(BlockRef(5, hash_of("5a")), line(6, 16, "b", "5a")).result(DEADLINE)
        (switch,) = until(consumer, "16b")
        assert (len(switch.removed), len(switch.added)) == (10, 11)


def test_a_channel_is_read_in_the_other_member_when_that_is_back(
    served: Served, old: MemoryBroker, new: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "LOOK_SECONDS", 0.01)
    for broker in (old, new):
        sink = open_sink(broker.url, Blocks(), producer_id="one")
        sink.open_channel(CHANNEL)
        sink.send([Routed(CHANNEL, b"\x03" + bytes(32) + b"p", broker.url.encode())], None).result(DEADLINE)
        sink.close()
    reader = Reader(mux(served, new), Blocks(), wait=0.0)
    reader.main.assign({where: low for where, (low, _) in reader.main.watermarks().items()})
    port = served.port
    served.stop()
    found: dict[int, bytes] = {}

    def read() -> int:
        reader.channels.follow([CHANNEL])
        found.update({row[1]: row[4] for row in reader.poll() if row[0] == CHANNEL and row[3]})
        return len(found)

    wait_for(lambda: read() == 1)
    assert found == {64: new.url.encode()}
    reader.request_ends()
    assert reader.answered_ends() is None
    with serving(old.url, Blocks(), port=port):
        wait_for(lambda: read() == 2)
        assert found == {0: old.url.encode(), 64: new.url.encode()}
        reader.close()


def test_a_channel_that_is_gone_when_it_is_looked_for_elsewhere_is_let_go(
    served: Served, new: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "LOOK_SECONDS", 0.01)
    sink = open_sink(new.url, Blocks(), producer_id="one")
    sink.open_channel(CHANNEL)
    sink.close()
    reader = Reader(mux(served, new), Blocks(), wait=0.0)

    def gone(_: MuxSource) -> tuple[Partition, ...]:
        raise TopicError("it was deleted", topic=CHANNEL)

    def read() -> bool:
        reader.channels.follow([CHANNEL])
        return (CHANNEL, 64) in reader.positions()

    wait_for(read)
    monkeypatch.setattr(MuxSource, "partitions", gone)

    def let_go() -> bool:
        reader.channels.follow([CHANNEL])
        return CHANNEL not in {topic for topic, _ in reader.positions()}

    wait_for(let_go)
    reader.close()


def test_a_topic_that_only_the_member_that_is_away_may_have_is_not_reported_as_missing(
    served: Served, new: MemoryBroker
) -> None:
    with pytest.raises(TopicError):
        open_source(mux(served, new), Blocks(), topics=(CHANNEL,))
    served.stop()
    with pytest.raises(UnreachableError):
        open_source(mux(served, new), Blocks(), topics=(CHANNEL,))


def test_a_channel_of_which_nobody_says_whether_it_is_there_is_not_given_up(
    served: Served, old: MemoryBroker, new: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is away may have it: until that is known it counts as not read to its end."""
    monkeypatch.setattr(channels, "LOOK_SECONDS", 0.01)
    reader = Reader(mux(served, new), Blocks(), wait=0.0)
    reader.main.assign({where: low for where, (low, _) in reader.main.watermarks().items()})
    port = served.port

    def nowhere() -> bool:
        reader.channels.follow([CHANNEL])
        return (CHANNEL, 0) not in reader.positions()

    wait_for(nowhere)
    reader.channels.follow([])
    served.stop()
    reader.channels.follow([CHANNEL])
    assert reader.positions()[CHANNEL, 0] == 0
    reader.request_ends()
    assert reader.channels.watermarks_after(0.0) is None
    with serving(old.url, Blocks(), port=port):

        def known() -> bool:
            reader.channels.follow([CHANNEL])
            return (CHANNEL, 0) not in reader.positions()

        wait_for(known)
        wait_for(lambda: reader.answered_ends() is not None)
        reader.close()


def test_what_is_to_prove_something_is_never_of_before(served: Served, old: MemoryBroker, new: MemoryBroker) -> None:
    source = begun(served, new)
    before = source.watermarks()
    port = served.port
    served.stop()
    publish(new, line(6, 6))
    for _ in range(2):
        with pytest.raises(UnreachableError):
            source.watermarks()
    assert {number // 64 for _, number in source.at_end()} == {0}, "nothing is to be had of it"
    publish(old, line(4, 6))
    with serving(old.url, Blocks(), port=port):
        wait_for(lambda: answers(source))
        assert not source.at_end()
        assert any(source.watermarks()[where] != before[where] for where in before if where[1] < 64)
        source.close()


def test_a_look_that_is_to_prove_something_shows_topics_that_a_member_got_since(new: MemoryBroker) -> None:
    with MemoryBroker(f"late-{uuid.uuid4().hex}") as late:
        source = open_source(f"mux:{new.url},{late.url}", Blocks())
        assert isinstance(source, MuxSource)
        source.assign({where: low for where, (low, _) in source.watermarks().items()})
        publish(late, line(6, 6))
        assert {number // 64 for _, number in source.positions()} == {0}
        assert {number // 64 for _, number in source.partitions()} == {0, 1}
        assert {number // 64 for _, number in source.watermarks()} == {0, 1}
        source.close()


def test_a_source_that_names_what_it_knows_of_a_server_that_is_away_does_not_make_it_present(
    new: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Kafka source names the partitions that it knows, whether its broker answers or not."""
    source = open_source(f"mux:{new.url}", Blocks())
    assert isinstance(source, MuxSource)
    source.assign({where: low for where, (low, _) in source.watermarks().items()})
    assert not source.at_end()

    def away(_: object) -> None:
        raise UnreachableError("away", address="new")

    with monkeypatch.context() as outage:
        outage.setattr("cardinal.testing._memory_source.MemorySource.watermarks", away)
        with pytest.raises(UnreachableError):
            source.watermarks()
        source.partitions()
        assert source.at_end() == source.positions().keys(), "nothing is to be had of it"
    source.close()
