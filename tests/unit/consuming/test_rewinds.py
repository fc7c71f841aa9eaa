"""Evicted blocks are re-read: every block is delivered in order, and the records polled stay in proportion."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from blocks import DEADLINE, Blocks, added, block, hash_of, line, messages, steps
from cardinal.consumer import Consumer
from cardinal.consuming import loop, partition_sync
from cardinal.consuming import options as consumer_options
from cardinal.consuming.loop import Loop
from cardinal.consuming.options import ConsumerOptions
from cardinal.consuming.reader import Reader
from cardinal.protocols.streams import BlockRef, Follower, Incomplete, Overflow, Payload, Routed
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.types import Partition, Row
from cardinal.transports import open_sink
from cardinal_devkit.testing.memory import MemoryBroker
from serving import serving

BLOCKS = 240


WAITING = 80


OPEN = 60


POLLED = 10


SIZE = 2_000


Kind = TypeVar("Kind")
EVERY = added(2, BLOCKS)


class Topics:
    """A stream's topics: where they are written, and where they are read; ``closing`` closes what the test opens."""

    def __init__(self, writes: str, reads: str, closing: contextlib.ExitStack) -> None:
        self.url = reads
        self.written = 0
        self.closing = closing
        self._sink = open_sink(writes, Blocks(), producer_id="one")  # makes the topics
        closing.callback(self._sink.close)

    def send(self, routed: list[Routed]) -> None:
        self._sink.send(routed, None).result(DEADLINE)
        self.written += len(routed)


@pytest.fixture(autouse=True)
def _small_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_sync, "POLL_RECORDS", POLLED)
    monkeypatch.setattr(loop, "_POLL_SECONDS", 0.01)


@pytest.fixture(params=["memory"])
def topics(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Topics]:
    with contextlib.ExitStack() as stack:
        if request.param == "file":
            writes = reads = f"file://{tmp_path}?cardinal.partitions=2"
        else:
            writes = reads = stack.enter_context(MemoryBroker(uuid.uuid4().hex, partitions=2)).url
        opened = Topics(writes, reads, stack)
        if request.param == "websocket":
            opened.url = stack.enter_context(serving(writes, Blocks())).url
        yield opened


EVERYWHERE = pytest.mark.parametrize("topics", ["memory", "file", "websocket"], indirect=True)


class Reading:
    """A consumer's inside, with bounds of its own, that begins above 1a."""

    def __init__(self, topics: Topics, **options: object) -> None:
        self.events: list[object] = []
        self.updates: list[str] = []
        self.held = self.polled = 0
        settings = replace(
            ConsumerOptions().follower_settings(Blocks()), **{"start": BlockRef(1, hash_of("1a"))} | options
        )  # type: ignore[arg-type] # tests name them
        self.follower = Follower(settings)
        self.reader = Reader(topics.url, Blocks(), wait=DEADLINE)
        topics.closing.callback(self.reader.close)
        marks = self.reader.watermarks.query()
        self.follower.begin_at(marks)
        self.reader.main.assign({where: low for where, (low, _) in marks.items()})
        self.loop = Loop(self.follower, self.reader, self.events.append, None)
        poll = self.reader.poll

        def counted(seconds: float = 0.0) -> list[Row]:
            records = poll(seconds)
            self.polled += len(records)
            return records

        self.reader.poll = counted  # type: ignore[method-assign]

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 2 * DEADLINE
        while not done():
            assert time.monotonic() < deadline, (len(self.updates), self.updates[-1:])
            self.loop.step()
            self.held = max(self.held, self.follower.reassembler.held_bytes)
            self.updates += steps([*self.loop.ready])
            self.loop.ready.clear()

    def read_all(self) -> None:
        """Everything that is there, and what is re-read of it."""
        ends = ends_of(self.reader)
        self.until(lambda: self.reader.positions() == ends and not self.follower.rewinding)

    def until_head(self, number: int) -> None:
        self.until(lambda: self.follower.orderer.head == BlockRef(number, hash_of(f"{number}a")))

    def named(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    def evicted(self) -> list[bytes]:
        """The blocks of the chain that were evicted."""
        return [event.block for event in self.named(Overflow) if not event.block.startswith(b"0")]


def ends_of(reader: Reader) -> dict[Partition, int]:
    return {tp: end for tp, (_, end) in reader.watermarks.query().items()}


def large(payload: Payload) -> Payload:
    return replace(payload, updates={"a/1": bytes(SIZE), "b/1": bytes(SIZE), "inside": b"4"})


def complete(blocks: list[Payload]) -> list[Routed]:
    return [message for payload in blocks for message in messages(payload)]


def batches_last(blocks: list[Payload]) -> tuple[list[Routed], list[Routed]]:
    """The content of all of them, and their Batches."""
    apart = [messages(payload) for payload in blocks]
    return [one for routed in apart for one in routed[:-1]], [routed[-1] for routed in apart]


def of_nobody(count: int) -> list[Routed]:
    """Messages of blocks that never get a Batch."""
    return [Routed("a", b"\x03" + b"%032d" % index + b"a/x", b"") for index in range(count)]


@EVERYWHERE
def test_blocks_that_there_was_no_capacity_to_wait_for_are_re_read(topics: Topics) -> None:
    """Each rewind delivers as many as may wait: three rewinds here, and one in vain before 2a comes."""
    topics.send(complete(line(3, BLOCKS)))
    made = Reading(topics, max_waiting=WAITING)
    made.read_all()
    assert len(made.evicted()) >= BLOCKS - 2 - WAITING
    topics.send(messages(block("2a", "1a")))
    made.until_head(BLOCKS)
    assert made.updates == EVERY
    assert made.polled <= 6 * topics.written
    assert {event.explanation.block for event in made.named(Incomplete)} <= {hash_of("2a")}


def test_re_read_blocks_stay_within_the_bytes_for_waiting_ones(topics: Topics) -> None:
    """The first of them comes last, so that whatever is re-read of the others waits for it."""
    first, *others = [large(payload) for payload in line(3, BLOCKS)]
    *content, batch = messages(first)
    topics.send([*content, *complete(others), batch])
    made = Reading(topics, max_bytes=40 * SIZE)
    made.read_all()
    assert len(made.evicted()) > BLOCKS / 2
    assert made.follower.orderer.fullness <= 1
    topics.send(messages(block("2a", "1a")))
    made.until_head(BLOCKS)
    assert made.updates == EVERY
    assert made.polled <= 25 * topics.written, "each rewind delivers 20 blocks or more"


def test_a_branch_that_is_lighter_without_what_was_evicted_of_it_is_followed_at_the_end(topics: Topics) -> None:
    """3b and 4b wait at the side; of 5b to 60b, which make them heavier, most were evicted while 2a was missing."""
    heavy = [replace(payload, weight=payload.number + 1) for payload in line(5, 60, "b")]
    heavy[0] = replace(heavy[0], parent=hash_of("4b"))
    side = [block("3b", "2a"), block("4b", "3b")]
    topics.send(complete([*line(3, 9), *side, *heavy]))
    made = Reading(topics, max_waiting=4)
    made.read_all()
    assert made.named(Overflow)
    topics.send(messages(block("2a", "1a")))
    made.until(lambda: made.follower.orderer.head == BlockRef(60, hash_of("60b")))


@pytest.mark.slow
@EVERYWHERE
def test_blocks_whose_batches_come_after_they_were_evicted_are_re_read(topics: Topics) -> None:
    """Each rewind delivers as many as may be open."""
    content, batches = batches_last(line(2, BLOCKS))
    topics.send([*content, *of_nobody(OPEN)])
    made = Reading(topics, bounds=Bounds(open_blocks=OPEN))
    made.read_all()
    assert len(set(made.evicted())) == BLOCKS - 1
    topics.send(batches)
    made.until_head(BLOCKS)
    assert made.updates == EVERY
    assert made.polled <= 2 * BLOCKS / OPEN * topics.written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("payload", "bounds", "held", "rewinds"),
    [
        pytest.param(large, Bounds(open_bytes=40 * SIZE, finished_bytes=5 * SIZE), 65 * SIZE, 40, id="large"),
        pytest.param(lambda one: one, Bounds(open_bytes=100_000, finished_bytes=20_000), 170_000, 30, id="small"),
    ],
)
def test_re_read_blocks_stay_within_the_bytes_for_open_ones(
    topics: Topics, payload: Callable[[Payload], Payload], bounds: Bounds, held: int, rewinds: int
) -> None:
    """Holding a small message costs several times its bytes. A poll is taken before anything is evicted."""
    content, batches = batches_last([payload(one) for one in line(2, BLOCKS)])
    topics.send([*content, *of_nobody(OPEN)])
    made = Reading(topics, bounds=bounds)
    made.read_all()
    assert len(set(made.evicted())) > BLOCKS / 2
    topics.send(batches)
    made.until_head(BLOCKS)
    assert made.updates == EVERY
    assert made.held <= held
    assert made.polled <= rewinds * topics.written


@pytest.mark.parametrize("waiting", [0, 9])
def test_a_crowd_of_higher_blocks_does_not_evict_the_one_that_the_chain_waits_for(topics: Topics, waiting: int) -> None:
    first, hole, *others = [large(payload) for payload in line(2, 80)]
    *content, lagging, batch = messages(hole)
    topics.send([*messages(first), *content, batch])
    made = Reading(topics, bounds=Bounds(open_blocks=20))
    made.read_all()
    topics.send(complete(others[:waiting]))
    made.read_all()
    crowd = [messages(large(payload)) for payload in line(500, 540, "x")]
    topics.send([message for routed in crowd for message in routed[1:]])
    made.read_all()
    assert made.named(Overflow)
    assert hash_of("3a") not in made.evicted()
    topics.send([lagging, *complete(others), *(routed[0] for routed in crowd)])
    made.until_head(80)
    assert made.updates == EVERY[:79]
    assert made.polled <= 10 * topics.written


@pytest.mark.parametrize("last", [4, 12])
def test_at_the_end_of_a_stream_an_evicted_block_is_re_read_without_waiting_for_more(topics: Topics, last: int) -> None:
    """Too few blocks follow for it to be due by their count, and none come any more.

    Its Batch lies behind many messages of blocks that have none either: its content was evicted.
    """
    first, hole, *others = [large(payload) for payload in line(2, last)]
    *content, batch = messages(hole)
    topics.send([*messages(first), *content, *of_nobody(40)])
    made = Reading(topics, bounds=Bounds(open_blocks=20))
    made.until(lambda: hash_of("3a") in made.evicted())
    topics.send([batch, *complete(others)])
    made.until_head(last)
    assert made.updates == EVERY[: last - 1]
    assert made.polled <= 6 * topics.written


@pytest.mark.parametrize("last", [60, 180])
def test_a_stream_begins_with_its_first_block_though_there_was_no_capacity_for_it(topics: Topics, last: int) -> None:
    """The Batches come first: of most blocks nothing is left when their content comes.

    A chain of several thresholds, which would end the wait for lower blocks, comes before they are re-read.
    """
    content, batches = batches_last([large(payload) for payload in line(2, last)])
    topics.send(batches)
    made = Reading(topics, start=None, patient=True, bounds=Bounds(open_blocks=20))
    made.read_all()
    assert len(set(made.evicted())) > last / 2
    topics.send(content)
    topics.send(complete([large(payload) for payload in line(last + 1, BLOCKS)]))
    made.until_head(BLOCKS)
    assert made.updates == EVERY
    assert made.polled <= 30 * topics.written


@EVERYWHERE
def test_a_consumer_is_neither_ready_nor_at_the_end_while_it_re_reads(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_options, "_BOUNDS", Bounds(open_blocks=OPEN))
    content, batches = batches_last(line(1, BLOCKS))
    topics.send([*content, *batches])
    with Consumer(topics.url, Blocks(), start=1, until="end") as consumer:
        delivered = []
        for update in consumer:
            delivered += steps([update])
            assert not consumer.ready
            assert consumer.head is not None
            assert consumer.head.number == BLOCKS or not consumer.caught_up
        assert delivered == added(1, BLOCKS)
        assert consumer.caught_up
        assert consumer.ready
