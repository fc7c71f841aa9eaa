"""Rewinds: evicted blocks are re-read from the main source, and less and less often where that is in vain."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cardinal.protocols.streams import BlockRef, Overflow, Reassembler, Record
from cardinal.protocols.streams.assembly.evicted import EvictedBlocks
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.following.rewind import Rewind
from channels import Stream, line, shape
from streams import SCHEMA, block, h, messages

ROOT = BlockRef(0, h("0r"))


def left(stream: Stream, count: int) -> None:
    """Somebody left blocks on 1a on the topics that lack a message each."""
    for index in range(count):
        stream.write(messages(block("2" + "y" * (index + 1), "1a", 2))[1:])


def test_an_evicted_block_is_delivered_after_one_rewind() -> None:
    """Its Batch comes last of all, and by then its content is evicted."""
    stream = Stream(start=ROOT, bounds=Bounds(open_blocks=8))
    blocks = line("a", 1, 20, "0r")
    stream.publish(blocks[:1])
    for payload in blocks[1:]:
        stream.write(messages(payload)[:-1])
    stream.read(step=1)
    assert stream.named(Overflow)
    assert not stream.follower.rewinding
    for payload in blocks[1:]:
        stream.write(messages(payload)[-1:])
    stream.read(steps=1)
    assert stream.follower.rewinding
    for _ in range(4):
        stream.read()
        stream.rest()
    assert not stream.follower.rewinding
    assert "".join(map(shape, stream.updates)) == "".join(f"+{number}a" for number in range(1, 21))
    assert stream.polled <= 6 * sum(stream.ends().values())


def test_before_the_stream_begins_every_evicted_block_is_re_read() -> None:
    """All content is evicted before the first Batch comes, and nothing says where the chain begins."""
    stream = Stream(patient=True, start=None, bounds=Bounds(open_blocks=2))
    for what in (slice(-1), slice(-1, None)):
        for payload in line("a", 1, 20, "0r"):
            stream.write(messages(payload)[what])
    for _ in range(8):
        stream.read()
        stream.rest()
    assert "".join(map(shape, stream.updates)) == "".join(f"+{number}a" for number in range(1, 21))


def in_vain() -> Stream:
    """Everything was read, and two rewinds did not help: the first one might have kept Batches."""
    stream = Stream(start=ROOT, bounds=Bounds(open_blocks=8))
    stream.publish(line("a", 1, 1, "0r"))
    left(stream, 20)
    stream.read()
    assert len(stream.rewinds) <= 3
    return stream


def test_a_rewind_in_vain_is_repeated_only_after_2_4_and_8_new_records() -> None:
    stream = in_vain()
    before = len(stream.rewinds)
    late, *_ = messages(block("1a", "0r", txs=1))
    rewound = []
    for count in range(1, 64):
        stream.write([late])
        stream.read()
        rewound += [count] * (len(stream.rewinds) - len(rewound) - before)
    assert rewound == [2, 6, 14, 30, 62]


def test_a_rewind_in_vain_is_repeated_ever_less_often_while_the_chain_grows() -> None:
    stream = in_vain()
    before, rewound = len(stream.rewinds) - 1, [1]
    for payload in line("a", 2, 100, "1a"):
        stream.publish([payload])
        stream.read()
        rewound += [payload.number] * (len(stream.rewinds) - len(rewound) - before)
    pauses = [later - earlier for earlier, later in pairwise(rewound)]
    assert len(pauses) < 8
    assert pauses == sorted(pauses)
    assert shape(stream.updates[-1]) == "+100a"


def test_a_rewind_that_helps_is_repeated_at_once() -> None:
    """Each finds some blocks, and there is capacity for no more."""
    stream = in_vain()
    blocks = line("a", 2, 40, "1a")
    for what in (slice(-1), slice(-1, None)):
        for payload in blocks:
            stream.write(messages(payload)[what])
    stream.read()
    stream.rest()
    assert shape(stream.updates[-1]).endswith("+40a")


@pytest.mark.parametrize(
    ("bounds", "delivered"), [(Bounds(), 4), (Bounds(open_blocks=8), 4), (Bounds(open_blocks=8), 0)]
)
def test_without_an_evicted_block_that_stands_on_the_chain_nothing_is_rewound(bounds: Bounds, delivered: int) -> None:
    stream = Stream(start=ROOT, bounds=bounds)
    stream.publish(line("a", 1, delivered, "0r"))
    stream.read()
    for index in range(20):
        content, *_, batch = messages(block("900" + "y" * (index + 1), "none", 1))
        stream.write([content] if index % 2 else [content, batch])
    stream.read()
    stream.rest()
    assert stream.rewinds == []


def test_a_rewind_reaches_down_to_the_first_message_that_was_evicted_and_no_further() -> None:
    stream = Stream(start=ROOT, bounds=Bounds(open_blocks=8))
    stream.publish(line("a", 1, 5, "0r"))
    stream.read()
    assert stream.rewinds == []
    begin = stream.ends()
    left(stream, 20)
    stream.read()
    first, again = stream.rewinds
    assert first == {place: begin[place] for place in first}
    assert all(begin[place] <= at for place, at in again.items())
    floor = stream.follower.cursor().floor
    assert all(floor[place] <= at for place, at in again.items()), "they were evicted once more"


def test_a_late_copy_does_not_take_the_place_of_an_evicted_message() -> None:
    """The first copy counts, also where it was evicted before the other one came."""
    stream = Stream(start=ROOT, bounds=Bounds(open_blocks=8))
    blocks = line("a", 1, 20, "0r")
    for payload in blocks:
        stream.write(messages(payload)[:-1])
    stream.read(step=1)
    assert stream.named(Overflow)
    for payload in blocks:
        stream.write([routed._replace(value=routed.value + b"!") for routed in messages(payload)[:-1]])
        stream.write(messages(payload)[-1:])
    for _ in range(4):
        stream.read(step=1)
        stream.rest()
    assert [added.updates for update in stream.updates for added in update.added] == [one.updates for one in blocks]


def test_every_batch_of_an_evicted_block_records_its_position_as_four_at_most_do() -> None:
    """The first may be false; and what is passed over must not fill the memory."""
    evicted = EvictedBlocks(1_000)
    reassembler = Reassembler(prefixes=tuple(SCHEMA), bounds=Bounds(open_blocks=1), evicted=evicted)
    batches = [messages(block("5a", f"4{tag}"))[-1] for tag in "abcdef"]
    records = [*batches[:2], batches[2]._replace(value=b"?"), *batches[2:]]
    other = messages(block("6a", "5a"))[0]
    reassembler.receive(
        Record(routed.topic, 0, offset, routed.key, routed.value)
        for offset, routed in enumerate([records[0], other, *records[1:]])
    )
    known = evicted.get(h("5a"))
    assert known is not None
    assert known.links == {(h(f"4{tag}"), 5) for tag in "abcd"}
    assert known.positions == {(records[0].topic, 0): 0}


def test_a_batch_that_is_read_after_the_eviction_records_the_position_of_the_block() -> None:
    """Without it a false one of another copy decides alone when the block is forgotten."""
    evicted = EvictedBlocks(1_000)
    reassembler = Reassembler(prefixes=tuple(SCHEMA), bounds=Bounds(open_blocks=2), evicted=evicted)
    content, batch = messages(block("5a", "4a"))[0], messages(block("5a", "4a"))[-1]
    others = [messages(block(name, "5a"))[0] for name in ("6a", "6b")]
    records = [
        Record(routed.topic, 0, offset, routed.key, routed.value)
        for offset, routed in enumerate([content, *others, batch])
    ]
    reassembler.receive(records[:3])
    known = evicted.get(h("5a"))
    assert known is not None
    assert known.links == set()
    reassembler.receive(records[3:])
    assert known.links == {(h("4a"), 5)}


PLACE = ("blocks", 0)


def crowd(evicted: EvictedBlocks) -> None:
    """Two blocks, of which one is named."""
    for index, name_ in enumerate(("5a", "5b")):
        evicted.add(h(name_), (), {PLACE: 100 + 4 * index})


def test_of_more_blocks_than_are_named_only_the_lowest_offsets_are_kept() -> None:
    evicted = EvictedBlocks(1_000, most=1)
    crowd(evicted)
    assert evicted.get(h("5a")) is None
    assert evicted.unnamed
    assert evicted.lowest == -1
    assert evicted.floor({PLACE: 200}) == {PLACE: 100}
    evicted.discard(h("5b"))
    assert evicted.floor({PLACE: 1_150}) == {PLACE: 150}, "no farther back than the distance"
    assert evicted.reread({PLACE: 200}, lambda *_: False, others=False) == ({}, frozenset())
    assert evicted.reread({PLACE: 200}, lambda *_: False, others=True) == ({PLACE: 100}, frozenset())
    assert len(evicted) == 0


def test_an_evicted_block_is_forgotten_after_the_distance() -> None:
    evicted = EvictedBlocks(1_000, most=1)
    crowd(evicted)
    evicted.read(1_000)
    assert len(evicted) == 2
    evicted.read(1)
    assert len(evicted) == 0
    assert evicted.floor({PLACE: 200}) == {}


def test_a_rewind_for_blocks_without_a_name_is_repeated_after_as_many_records_as_it_read_unless_one_is_needed() -> None:
    evicted = EvictedBlocks(1_000, most=1)
    rewind = Rewind(evicted, 1_000)
    here = {PLACE: 200}

    def due(*, wanted: bool) -> bool:
        crowd(evicted)
        began = rewind.due(here, lambda *_: False, wanted=wanted, waited=False) is not None
        if began:
            assert rewind.in_progress
            crowd(evicted)  # once more
            rewind.judge()
        return began

    assert due(wanted=False)
    evicted.read(99)
    assert not due(wanted=False)
    assert due(wanted=True)
    evicted.read(99)
    assert not due(wanted=False)
    evicted.read(1)
    assert due(wanted=False)
