"""A block that others wait for, and that is dropped once more before all of it is read again."""

from __future__ import annotations

import pytest

from cardinal.protocols.streams import BlockRef, Incomplete, Overflow
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.types import Record
from cardinal.protocols.streams.wire.keys import HASH_END
from channels import THRESHOLD, Stream, line
from streams import TOPIC, block, h, messages

CHAIN = line("a", 1, 3, "0r")
FLOOD = [block(f"90{index}y", "none") for index in range(5)]


def records(stream: Stream, block_hash: bytes) -> list[Record]:
    """What was written of a block, its Batch last."""
    every = [one for log in stream.partitions.values() for one in log if one.key[1:HASH_END] == block_hash]
    return sorted(every, key=lambda one: one.topic == TOPIC)


@pytest.fixture
def stream() -> Stream:
    """3a waits for 2a, which is read again together with others and dropped before its Batch is."""
    stream = Stream(start=BlockRef(0, h("0r")), bounds=Bounds(open_blocks=4))
    stream.publish(CHAIN[:1])
    stream.write(messages(CHAIN[1])[:-1])
    for payload in FLOOD:
        stream.write(messages(payload)[:1])
    stream.read()
    stream.write(messages(CHAIN[1])[-1:])
    stream.publish(CHAIN[2:])
    stream.read()
    follower = stream.follower
    for payload in (CHAIN[1], *FLOOD):
        follower.reread(payload.hash)
        stream._sort(follower.receive([one for one in records(stream, payload.hash) if one.topic != TOPIC]))
    stream._sort(follower.receive(records(stream, h("2a"))[-1:]))
    gone = [event.number for event in stream.events if isinstance(event, Overflow) and event.block == h("2a")]
    assert gone == [None, None]
    assert follower.explain(h("2a")).state == "dropped"
    stream.events.clear()
    return stream


def asked_for(stream: Stream) -> list[tuple[bytes, int | None]]:
    """The blocks of the chain that are to be read again."""
    told = [event.explanation for event in stream.events if isinstance(event, Incomplete)]
    return [(one.block, one.number) for one in told if one.state == "dropped" and one.block == h("2a")]


def test_it_is_read_again_when_the_stream_rests(stream: Stream) -> None:
    stream._sort(stream.follower.progress(stream.at, stream.ends(), at_rest=True))
    assert asked_for(stream) == [(h("2a"), None)]
    stream.follower.reread(h("2a"))
    stream._sort(stream.follower.receive(records(stream, h("2a"))))
    assert stream.follower.orderer.head == BlockRef(3, h("3a"))


def test_it_is_read_again_when_enough_blocks_were_completed(stream: Stream) -> None:
    for index in range(THRESHOLD):
        stream.publish([block(f"80{index}z", "none", 1)])
        stream.read()
    assert asked_for(stream) == [(h("2a"), None)]
