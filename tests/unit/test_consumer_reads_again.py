"""Many blocks that were dropped are read again together: what that reads, and what it holds meanwhile."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import pytest

from blocks import DEADLINE, Blocks, block, hash_of, line, steps
from cardinal.consuming import pacing as in_step
from cardinal.consuming import reader as reading
from cardinal.consuming.again import Room
from cardinal.consuming.loop import Driver
from cardinal.consuming.options import room_again, settings_of
from cardinal.consuming.reader import Reader
from cardinal.protocols.streams import BlockRef, Follower, Incomplete, Overflow, Payload, Routed, Stale, split
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.types import Partition, Record
from cardinal.testing.memory import MemoryBroker

BLOCKS = 400
WAITING = 128
OPEN = 100
POLLED = 10
SIZE = 2_000

Kind = TypeVar("Kind")


class Counting(MemoryBroker):
    """Counts the records that were read of it."""

    polled = 0

    def read(self, positions: Mapping[Partition, int], limit: int, timeout: float) -> list[Record]:
        found = super().read(positions, limit, timeout)
        self.polled += len(found)
        return found


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    monkeypatch.setattr(in_step, "POLL_RECORDS", POLLED)
    with Counting(uuid.uuid4().hex, partitions=2) as broker:
        broker.sink(Blocks(), producer_id="one")  # makes the topics
        yield broker


class Reading:
    """A consumer's inside, with bounds of its own, that begins above 1a."""

    def __init__(self, broker: Counting, *, told: Callable[[object], None] | None = None, **options: object) -> None:
        self.events: list[object] = []
        self.updates: list[str] = []
        self.held = 0
        settings = replace(settings_of(Blocks(), None), **{"start": BlockRef(1, hash_of("1a"))} | options)  # type: ignore[arg-type] # tests name them
        self.follower = Follower(settings)
        self.reader = Reader(broker.url, Blocks(), wait=0.0, again=room_again(settings))
        marks = self.reader.marks()
        self.reader.main.assign({where: low for where, (low, _) in marks.items()})
        ends = {where: high for where, (_, high) in marks.items()}
        self.driver = Driver(self.follower, self.reader, ends, told or self.events.append, None)

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < deadline, (len(self.updates), self.updates[-1:])
            self.driver.step()
            self.held = max(self.held, self.follower.reassembler.held_bytes)
            self.updates += steps([*self.driver.ready])
            self.driver.ready.clear()

    def read_all(self) -> None:
        """Everything that is there, once."""
        ends = self.reader.ends()
        self.until(lambda: self.reader.main.positions() == ends)

    def until_head(self, number: int) -> None:
        self.until(lambda: self.follower.orderer.head == BlockRef(number, hash_of(f"{number}a")))

    def named(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    def dropped(self) -> list[bytes]:
        """The blocks of the chain for which there was no room to assemble them."""
        return [event.block for event in self.named(Overflow) if not event.block.startswith(b"0")]

    def to_be_read_again(self) -> list[bytes]:
        """The blocks that were reported to be dropped."""
        told = [event.explanation for event in self.events if isinstance(event, Incomplete)]
        return [one.block for one in told if one.state == "dropped"]


def messages(payload: Payload) -> list[Routed]:
    return split(payload, Blocks().topics, "block")


def send(broker: MemoryBroker, routed: list[Routed]) -> int:
    broker.sink(Blocks(), producer_id="one").send(routed, None).result(DEADLINE)
    return len(routed)


def large(payload: Payload) -> Payload:
    return replace(payload, updates={"a/1": bytes(SIZE), "b/1": bytes(SIZE), "inside": b"4"})


def whole(blocks: list[Payload]) -> list[Routed]:
    return [message for payload in blocks for message in messages(payload)]


def batches_last(blocks: list[Payload]) -> tuple[list[Routed], list[Routed]]:
    """The content of all of them, and their Batches."""
    apart = [messages(payload) for payload in blocks]
    return [one for routed in apart for one in routed[:-1]], [routed[-1] for routed in apart]


def of_nobody(count: int) -> list[Routed]:
    """Messages of blocks that never get a Batch."""
    return [Routed("a", b"\x03" + b"%032d" % index + b"a/x", b"") for index in range(count)]


EVERY = [f"+{number}a" for number in range(2, BLOCKS + 1)]


def test_blocks_that_there_was_no_room_to_wait_for_are_read_again_together(broker: Counting) -> None:
    written = send(broker, whole(line(3, BLOCKS)))
    made = Reading(broker, max_waiting=WAITING)
    made.read_all()
    dropped = [event.block.hash for event in made.named(Stale)]
    assert len(dropped) == BLOCKS - 2 - WAITING
    before = broker.polled
    written += send(broker, messages(block("2a", "1a")))
    made.until_head(BLOCKS)
    assert made.updates == EVERY
    assert broker.polled - before < 2 * written
    assert sorted(made.to_be_read_again()) == sorted(dropped), "each is read again once"


def test_blocks_that_were_dropped_are_read_again_though_whoever_is_told_raises(broker: Counting) -> None:
    """Many are reported together, and the handler raises at each of these reports."""
    raised = 0

    def told(event: object) -> None:
        nonlocal raised
        if isinstance(event, Incomplete):
            raised += 1
            raise ConnectionError("alerting is away")

    send(broker, whole(line(3, BLOCKS)))
    made = Reading(broker, told=told, max_waiting=WAITING)
    ends = made.reader.ends()
    while made.reader.main.positions() != ends:
        with contextlib.suppress(ConnectionError):
            made.read_all()
    send(broker, messages(block("2a", "1a")))
    while made.updates != EVERY:
        with contextlib.suppress(ConnectionError):
            made.until(lambda: made.updates == EVERY)
    assert raised >= BLOCKS - 2 - WAITING


def test_blocks_whose_batches_come_after_they_were_dropped_are_read_again_together(broker: Counting) -> None:
    content, batches = batches_last(line(2, BLOCKS))
    written = send(broker, [*content, *of_nobody(OPEN)])
    made = Reading(broker, bounds=Bounds(open_blocks=OPEN))
    made.read_all()
    assert len(made.dropped()) == BLOCKS - 1
    before = broker.polled
    written += send(broker, batches)
    made.until_head(BLOCKS)
    assert made.updates == EVERY
    assert broker.polled - before < BLOCKS / OPEN * written
    assert len(made.dropped()) == len(set(made.dropped()))


def test_blocks_that_are_read_again_stay_within_the_bytes_for_open_ones(broker: Counting) -> None:
    """They could not all be held at once: each pass begins as many as there is room for, and none is dropped again."""
    content, batches = batches_last([large(payload) for payload in line(2, BLOCKS)])
    send(broker, [*content, *of_nobody(OPEN)])
    made = Reading(broker, bounds=Bounds(open_bytes=40 * SIZE, finished_bytes=5 * SIZE))
    made.read_all()
    assert len(made.dropped()) > BLOCKS / 2
    send(broker, batches)
    made.until_head(BLOCKS)
    assert made.updates == EVERY
    assert len(made.dropped()) == len(set(made.dropped())) < BLOCKS
    assert sorted(made.to_be_read_again()) == sorted(made.dropped()), "each is read again once"
    assert made.held <= 45 * SIZE


def test_small_messages_that_are_read_again_stay_within_the_bytes_for_open_ones(broker: Counting) -> None:
    """Holding one costs several times its bytes."""
    content, batches = batches_last(line(2, BLOCKS))
    send(broker, [*content, *of_nobody(OPEN)])
    made = Reading(broker, bounds=Bounds(open_bytes=100_000))
    made.read_all()
    assert len(made.dropped()) > BLOCKS / 2
    send(broker, batches)
    made.until_head(BLOCKS)
    assert made.updates == EVERY
    assert len(made.dropped()) < 1.1 * BLOCKS, "hardly any is dropped twice"


def test_blocks_that_are_read_again_stay_within_the_bytes_for_waiting_ones(broker: Counting) -> None:
    """The first of them comes last, so that whatever is read again of the others waits for it."""
    first, *others = [large(payload) for payload in line(3, BLOCKS)]
    *content, batch = messages(first)
    send(broker, [*content, *whole(others), batch])
    made = Reading(broker, max_bytes=40 * SIZE)
    made.read_all()
    dropped = [event.block.hash for event in made.named(Stale)]
    assert len(dropped) > BLOCKS / 2
    send(broker, messages(block("2a", "1a")))
    made.until_head(BLOCKS)
    assert made.updates == EVERY
    assert [event.block.hash for event in made.named(Stale)] == dropped


@pytest.mark.parametrize("waiting", [0, 9])
def test_a_block_that_was_dropped_after_its_batch_is_read_again_when_others_wait_for_it(
    broker: Counting, waiting: int
) -> None:
    first, hole, *others = [large(payload) for payload in line(2, 80)]
    *content, lagging, batch = messages(hole)
    send(broker, [*messages(first), *content, batch])
    made = Reading(broker, bounds=Bounds(open_blocks=20))
    made.read_all()
    send(broker, whole(others[:waiting]))
    made.read_all()
    crowd = [messages(large(payload)) for payload in line(500, 540, "x")]
    send(broker, [message for routed in crowd for message in routed[1:]])
    made.read_all()
    assert hash_of("3a") in made.dropped()
    send(broker, [routed[0] for routed in crowd])  # these are whole, and out of the way
    made.read_all()
    send(broker, [lagging, *whole(others)])
    made.until_head(80)
    assert made.updates == EVERY[:79]
    told = [one.explanation for one in made.named(Incomplete) if one.explanation.state == "dropped"]
    assert [(one.block, one.number) for one in told if one.block == hash_of("3a")] == [(hash_of("3a"), 3)]


@pytest.mark.parametrize("last", [4, 5, 12])
def test_at_the_end_of_a_stream_a_dropped_block_is_read_again_without_waiting_for_more(
    broker: Counting, last: int
) -> None:
    """Too few blocks follow for it to be due by their count, and none come any more."""
    first, hole, *others = [large(payload) for payload in line(2, last)]
    *content, lagging, batch = messages(hole)
    send(broker, [*messages(first), *content, batch])
    made = Reading(broker, bounds=Bounds(open_blocks=20))
    made.read_all()
    crowd = [messages(large(payload)) for payload in line(500, 540, "x")]
    send(broker, [message for routed in crowd for message in routed[1:]])
    made.read_all()
    assert hash_of("3a") in made.dropped()
    send(broker, [routed[0] for routed in crowd])
    made.read_all()
    send(broker, [lagging, *whole(others)])
    made.until_head(last)
    assert made.updates == EVERY[: last - 1]


@pytest.mark.parametrize("last", [60, 300])
def test_a_stream_begins_with_its_first_block_though_there_was_no_room_for_it(broker: Counting, last: int) -> None:
    """The Batches come first: of the lowest blocks nothing is left when their content comes.

    A chain of several thresholds, which would end the wait for lower blocks, comes before they are read again.
    """
    content, batches = batches_last([large(payload) for payload in line(2, last)])
    send(broker, batches)
    made = Reading(broker, start=None, patient=True, bounds=Bounds(open_blocks=20))
    made.read_all()
    assert hash_of("2a") in made.dropped()
    send(broker, content)
    made.read_all()
    send(broker, whole([large(payload) for payload in line(last + 1, 400)]))
    made.until_head(400)
    assert made.updates == EVERY[:399]


def half_written() -> list[Routed]:
    return [routed for payload in line(500, 560, "x") for routed in messages(payload)[1:]]


def above_nothing() -> list[Routed]:
    return whole([block(f"{number}x", f"{number}y") for number in range(500, 560)])


@pytest.mark.parametrize("left", [half_written, above_nothing])
@pytest.mark.parametrize("policy", ["first", "quorum:1"])
def test_what_somebody_left_on_the_topics_is_read_again_less_and_less(
    broker: Counting, monkeypatch: pytest.MonkeyPatch, left: Callable[[], list[Routed]], policy: str
) -> None:
    """The chain waits for 3a, so that what there was no room for is read again at rest: 3a might be among it."""
    monkeypatch.setattr(reading, "POLL_SECONDS", 0.01)
    send(broker, whole([*line(2, 2), *line(4, 12)]))
    send(broker, left())
    made = Reading(broker, max_waiting=16, bounds=Bounds(open_blocks=20), policy=policy, producers=("one",))
    made.read_all()
    read = []
    for number in range(32):
        before = broker.polled
        sent = send(broker, messages(replace(block("3b", "2a", 1), hash=hash_of(f"3b{number}"))))
        made.read_all()
        for _ in range(3):
            made.driver.step()
            made.until(lambda: not made.reader.reads_again)
        read.append(broker.polled - before - sent)
    rounds = [number for number, records in enumerate(read) if records]
    assert 3 <= len(rounds) <= 10, (rounds, read)
    assert not any(read[18:30]), read
    send(broker, messages(line(3, 3)[0]))
    made.until_head(12)


def test_a_branch_that_is_lighter_without_what_was_let_go_of_it_is_followed_at_the_end(broker: Counting) -> None:
    """3b and 4b wait at the side; of 5b to 60b, which make them heavier, most were let go while 2a was lacking."""
    heavy = [replace(payload, weight=payload.number + 1) for payload in line(5, 60, "b")]
    heavy[0] = replace(heavy[0], parent=hash_of("4b"))
    side = [block("3b", "2a"), block("4b", "3b")]
    send(broker, whole([*line(3, 9), *side, *heavy]))
    made = Reading(broker, max_waiting=4)
    made.read_all()
    assert made.named(Stale)
    send(broker, messages(block("2a", "1a")))
    made.until(lambda: made.follower.orderer.head == BlockRef(60, hash_of("60b")))


# --- the reader by itself ----------------------------------------------------------------------------------


def places(broker: MemoryBroker, name: str) -> dict[Partition, int]:
    """Where a block's messages begin."""
    found: dict[Partition, int] = {}
    for record in broker.records():
        if record.key[1:33] == hash_of(name):
            found.setdefault(record[:2], record.offset)
    return found


def read_again(reader: Reader, whole: set[bytes]) -> list[bytes]:
    """The keys of everything that is read again; blocks are whole when all of these keys have come."""
    found: list[bytes] = []

    def is_whole(block_hash: bytes) -> bool:
        return {key for key in whole if key[1:33] == block_hash} <= {*found}

    deadline = time.monotonic() + DEADLINE
    while reader.reads_again:
        assert time.monotonic() < deadline
        found += [record.key for record in reader.poll_again()]
        reader.end_again(is_whole)
    return found


def read_of(broker: Counting, again: Room = Room()) -> Reader:  # noqa: B008 - frozen
    """A reader that has read everything."""
    reader = Reader(broker.url, Blocks(), wait=0.0, again=again)
    reader.main.assign(reader.ends())
    return reader


def test_what_lies_between_blocks_that_are_read_again_is_not_read(broker: Counting) -> None:
    near, far = messages(block("2a", "1a")), messages(block("3a", "2a"))
    send(broker, near)
    between = send(broker, whole(line(100, 500)))
    send(broker, far)
    reader = read_of(broker)
    for name in ("2a", "3a"):
        reader.read_again(hash_of(name), places(broker, name))
    keys = {one.key for one in (*near, *far)}
    assert sorted(read_again(reader, keys)) == sorted(keys)
    assert broker.polled < between / 8
    reader.close()


def test_a_block_that_is_asked_for_twice_is_read_as_far_as_both_say(broker: Counting) -> None:
    first = messages(block("2a", "1a"))
    send(broker, first)
    reader = read_of(broker)
    begin = places(broker, "2a")
    reader.read_again(hash_of("2a"), dict.fromkeys(begin, 0))
    send(broker, first)
    reader.main.assign(reader.ends())
    reader.read_again(hash_of("2a"), begin)
    assert len(read_again(reader, {b"\x03" + hash_of("2a")})) == 2 * len(first)
    reader.close()


def test_what_there_was_no_room_for_is_read_in_the_next_pass_before_what_came_meanwhile(broker: Counting) -> None:
    blocks = line(2, 5)
    send(broker, whole(blocks))
    reader = read_of(broker, Room(blocks=1))
    for name in ("2a", "3a", "4a"):
        reader.read_again(hash_of(name), places(broker, name))
    keys = {one.key for one in whole(blocks)}
    found = [record.key for record in reader.poll_again()]
    for name in ("5a", "3a"):
        reader.read_again(hash_of(name), places(broker, name))
    found += read_again(reader, keys)
    order = list(dict.fromkeys(key[1:33] for key in found))
    assert set(found) == keys
    assert order.index(hash_of("5a")) == len(order) - 1
    reader.close()


def test_a_reader_that_is_closed_in_the_middle_of_a_pass_lets_its_source_go(broker: Counting) -> None:
    send(broker, whole(line(2, 9)))
    reader = read_of(broker)
    reader.read_again(hash_of("9a"), dict.fromkeys(places(broker, "9a"), 0))
    reader.poll_again()
    reader.close()
    reader.close()
