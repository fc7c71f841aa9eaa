"""Where a cursor's floor lies while blocks that there was no room for are still to be read again."""

from __future__ import annotations

import pytest

from cardinal.protocols.streams import BlockRef, Overflow, Payload, Quarantined, Stale
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.following.floors import FadingPins
from channels import shape
from quorum_scenes import ONE, Feed
from quorums import quorum, said
from rereading import Rereading
from streams import TOPIC, block, h, messages

ROOT = BlockRef(0, h("0r"))
QUORUM = {"policy": "quorum:2", "producers": ("a", "b")}


def sparse(number: int, *, logs: bool = False) -> Payload:
    """A block of the chain; hardly any has logs, so that their partitions stand still."""
    updates = {f"b/{number}a/t/0": b"x"} | ({f"b/{number}a/l/0": b"y"} if logs else {})
    return Payload(number, h(f"{number}a"), h(f"{number - 1}a" if number > 1 else "0r"), number, updates)


class Written(Rereading):
    """Topics that one producer writes, or two that write the same."""

    def both(self, payload: Payload, *topics: str) -> None:
        """What of a block belongs to these topics, all of it without."""
        said = [message for message in messages(payload) if not topics or message.topic in topics]
        for producer in self.options.get("producers", ("",)):  # type: ignore[attr-defined] # of strings
            self.write(said, producer)

    def chain(self) -> str:
        return "".join(map(shape, self.updates))

    def dropped(self) -> set[bytes]:
        return {event.block for event in self.events if isinstance(event, Overflow)}

    def floors(self) -> dict[str, int]:
        cursor = self.follower.cursor()
        return {f"{topic}/{index}": offset for (topic, index), offset in cursor.floor.items()}


@pytest.mark.parametrize("policy", [{}, QUORUM], ids=["first", "quorum"])
@pytest.mark.parametrize("late", [False, True])
def test_the_content_of_a_dropped_block_is_found_after_a_restart(policy: dict[str, object], *, late: bool) -> None:
    """Its log lies in a partition in which nothing else needs anything; it may come after the block was dropped."""
    stream = Written(start=ROOT, bounds=Bounds(open_blocks=8 if not policy else 32), **policy)
    stream.both(sparse(1, logs=True))
    stream.read()
    stream.both(sparse(2, logs=True), *(("tx",) if late else ("tx", "logs")))
    for number in range(3, 20):
        stream.both(sparse(number), "tx")
    stream.read()
    assert h("2a") in stream.dropped()
    if late:
        logs = {place: end for place, end in stream.ends().items() if place[0] == "logs"}
        stream.both(sparse(2, logs=True), "logs")
        stream.read()
        needed = stream.follower.reassembler.open_positions()
        (place,) = logs.keys() & needed.keys()
        assert needed[place] == logs[place]
    stream.restart()
    for number in range(2, 20):
        stream.both(sparse(number, logs=number == 2), TOPIC)
    stream.read()
    for _ in range(4):
        stream.rest()
    assert stream.chain() == "".join(f"+{number}a" for number in range(1, 20))


def test_the_content_of_a_block_that_was_let_go_is_found_after_a_restart() -> None:
    stream = Written(start=ROOT, max_waiting=1)
    stream.both(sparse(4, logs=True))
    stream.both(sparse(3))
    stream.read()
    assert [event.block.hash for event in stream.events if isinstance(event, Stale)] == [h("4a")]
    stream.both(sparse(1))
    stream.read()
    stream.restart()
    stream.both(sparse(2))
    stream.read()
    assert stream.chain() == "+1a+2a+3a+4a"


def test_what_was_let_go_pins_nothing_once_the_chain_is_past_it() -> None:
    stream = Written(start=ROOT, max_waiting=1)
    stream.both(Payload(5, h("5z"), h("4z"), 1, {"b/5z/l/0": b"x"}))
    (place,) = [place for place, records in stream.partitions.items() if place[0] == "logs" and records]
    stream.both(sparse(3))
    stream.read()
    assert [event.block.hash for event in stream.events if isinstance(event, Stale)] == [h("5z")]
    for number in (1, 2, 4, 5, 6, 7, 8, 9):
        stream.both(sparse(number))
        stream.read()
        assert stream.follower.cursor().floor[place] == 0
    for number in (10, 11):
        stream.both(sparse(number))
        stream.read()
    assert stream.follower.cursor().floor[place] == 1


def test_a_block_read_again_in_vain_does_not_hold_back_the_floor_for_ever() -> None:
    """Somebody left it half written, and no Batch of it will come."""
    stream = Written(start=ROOT, bounds=Bounds(open_blocks=40, headless_distance=200))
    stream.both(sparse(1))
    orphan = block("2x", "1a", 2, txs=3)
    stream.write(messages(orphan)[:2])
    for index in range(60):
        stream.write(messages(block(f"900y{index}", "none", 1))[:1])
    stream.both(sparse(3))
    stream.read()
    stream.rest()
    assert h("2x") in stream.reread()
    (place, begin), *_ = stream.follower.explain(h("2x")).positions.items()
    assert stream.follower.cursor().floor[place] <= begin
    for number in (2, *range(4, 200)):
        stream.both(sparse(number))
        stream.read()
    assert stream.follower.explain(h("2x")).state in {"open", "dropped"}
    assert stream.follower.cursor().floor[place] > begin


def test_a_dropped_block_holds_nothing_back_when_the_chain_is_past_it() -> None:
    stream = Written(start=ROOT, bounds=Bounds(open_blocks=4))
    for tag in "xyzuvw":
        stream.write([one for one in messages(block(f"1{tag}", "0r", 1, txs=1)) if one.topic != "tx"])
    stream.read()
    assert len(stream.dropped()) == 4
    assert stream.floors()["logs/0"] == stream.floors()["logs/1"] == 0
    for number in range(1, 10):
        stream.both(sparse(number))
        stream.read()
    assert [event.number for event in stream.events if isinstance(event, Quarantined)] == [1, 1, 1]
    floors, ends = stream.floors(), stream.ends()
    assert [floors["logs/0"], floors["logs/1"]] == [ends["logs", 0], ends["logs", 1]]


def test_what_is_read_again_after_long_is_needed_again() -> None:
    """Only what was read again tells where the block begins: another one is open, so that it is not looked for."""
    stream = Written(start=ROOT, bounds=Bounds(open_blocks=4, headless_distance=20))
    stream.both(sparse(2, logs=True), "logs")
    place, *_ = [place for place, records in stream.partitions.items() if records]
    for number in range(3, 8):
        stream.both(sparse(number), "tx")
    stream.read()
    assert h("2a") in stream.dropped()
    assert stream.follower.cursor().floor[place] == 0
    for number in range(20, 40):
        stream.both(sparse(number))
        stream.read()
    assert stream.follower.cursor().floor[place] == 1
    late, *_ = [record for record in stream.partitions["tx", 0] if record.key[1:33] != h("2a")]
    stream.follower.receive([late._replace(partition=9, offset=5, key=late.key.replace(late.key[1:33], h("2a")))])
    assert ("tx", 9) not in stream.follower.reassembler.open_positions(), "it comes too late to hold anything back"
    assert stream.follower.reassembler.open_blocks()
    assert stream.follower.reread(h("2a")) == {place: 0, ("tx", 9): 5}
    assert stream.follower.cursor().floor[place] == 0


def test_a_dropped_copy_is_needed_until_its_block_is_decided() -> None:
    """Nothing but that block is in the partition."""
    place = ("state", 0)
    feed = Feed(quorum(2, ("a", "b", "c"), bounds=Bounds(open_blocks=60)))
    feed("a", *said(ONE))
    feed("a", *[message for number in range(2, 12) for message in messages(block(f"{number}a", f"{number - 1}a"))])
    feed("c", *[message for message in said(ONE) if message.topic == "state"])
    feed("c", *[messages(block(f"{number}c", "none"))[0] for number in range(2, 12)])
    assert feed.assembler.explain(ONE.hash).state == "dropped"
    assert feed.assembler.open_positions()[place] == 0
    feed("b", *said(ONE))
    feed.assembler.reread(ONE.hash)
    again = [each for log in feed.topics.partitions.values() for each in log if each.key[1:33] == ONE.hash]
    of_a = [each for each in again if each.headers[0][1] == b"a"]
    feed.assembler.receive(of_a[:1])
    assert feed.assembler.open_positions()[place] == 0
    feed.assembler.receive(of_a[1:])
    assert feed.assembler.explain(ONE.hash).state == "complete"
    assert place not in feed.assembler.open_positions()


def test_a_copy_that_is_dropped_when_its_block_is_decided_is_not_needed() -> None:
    feed = Feed(quorum(2, ("a", "b", "c"), bounds=Bounds(open_blocks=60)))
    feed("a", *said(ONE))
    feed("b", *said(ONE))
    feed("c", *[message for message in said(ONE) if message.topic == "state"])
    assert feed.assembler.open_positions()["state", 0] > 0
    feed("c", *[messages(block(f"{number}c", "none"))[0] for number in range(2, 12)])
    assert feed.assembler.explain(ONE.hash).reason.endswith("the copy of 'c' never became complete")
    assert ("state", 0) not in feed.assembler.open_positions()


def test_a_dropped_copy_is_not_needed_when_the_chain_is_past_its_block() -> None:
    place = ("state", 0)
    feed = Feed(quorum(2, ("a", "b"), bounds=Bounds(open_blocks=40)))
    feed("a", *said(ONE))
    feed("a", *[message for number in range(2, 12) for message in messages(block(f"{number}a", f"{number - 1}a"))])
    assert feed.assembler.open_positions()[place] == 0
    feed.assembler.head_moved(60)
    assert place not in feed.assembler.open_positions()


# --- the pins themselves -----------------------------------------------------------------------------------


def test_pins_fade_with_records_however_often_they_are_put_again() -> None:
    pins = FadingPins(100)
    pins.put(h("1a"), {("t", 0): 7})
    pins.put(h("2a"), {("t", 0): 9, ("t", 1): 3})
    assert pins.lowest(1_000) == {("t", 0): 7, ("t", 1): 3}
    pins.put(h("1a"), {("t", 0): 6})
    pins.put(h("3a"), {("t", 0): 8})
    assert pins.lowest(1_100) == {("t", 0): 6, ("t", 1): 3}
    assert h("1a") in pins
    assert pins.lowest(1_101) == {("t", 0): 8}
    assert h("1a") not in pins
    assert pins.lowest(1_201) == {}


def test_of_many_pins_the_lowest_is_never_too_high_and_found_again_when_some_are_freed() -> None:
    pins = FadingPins(10**9)
    for number in range(1_000):
        pins.put(number.to_bytes(32, "big"), {("t", 0): number}, number)
    pins.passed(100)
    assert pins.lowest(1)["t", 0] <= 100
    pins.passed(126)
    assert pins.lowest(1) == {("t", 0): 126}
    for number in range(126, 1_000):
        pins.discard(number.to_bytes(32, "big"))
    assert pins.lowest(1) == {}


def test_pins_are_bounded_and_so_are_their_numbers() -> None:
    pins = FadingPins(10**9)
    for number in range(66_000):
        pins.put(number.to_bytes(32, "big"), {("t", 0): number}, number)
    assert (463).to_bytes(32, "big") not in pins
    assert (464).to_bytes(32, "big") in pins
    pins.passed(65_999)
    for _ in range(1_000):
        pins.put(h("1a"), {}, 70_000)
    assert len(pins._numbers) < 100


def test_a_block_to_which_batches_give_many_numbers_goes_by_the_newest_and_costs_no_more() -> None:
    pins = FadingPins(10**9)
    for number in range(1_000, 0, -1):
        pins.put(h("1a"), {("t", 0): 7}, number)
    assert len(pins._numbers) < 100
    pins.put(h("1a"), {("t", 0): 7}, 500)
    pins.passed(500)
    assert h("1a") in pins
    pins.passed(501)
    assert h("1a") not in pins
