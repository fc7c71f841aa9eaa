"""Queries of a follower: what it has not delivered, and why."""

from __future__ import annotations

from cardinal.protocols.streams import BlockRef
from channels import Stream, line
from streams import block, chain, h, messages, name

ROOT = BlockRef(0, h("0g"))


def test_a_patient_stream_of_which_nothing_is_complete_has_not_begun() -> None:
    stream = Stream(patient=True)
    stream.write(messages(block("1a", "0a"))[1:])
    stream.read()
    stream.rest()
    assert stream.follower.head is None
    assert not stream.follower.about_to_begin
    assert [(name(one.block), one.state) for one in stream.follower.awaited()] == [("1a", "open")]


def test_complete_blocks_of_a_patient_stream_are_about_to_begin_it() -> None:
    stream = Stream(patient=True)
    stream.publish([*line("a", 1, 3, "0a"), *line("a", 20, 30, "19a")])
    stream.read()
    assert stream.follower.about_to_begin
    stream.rest()
    assert not stream.follower.about_to_begin


def test_a_patient_stream_does_not_begin_above_its_start() -> None:
    stream = Stream(patient=True, start=ROOT)
    stream.publish(line("a", 20, 30, "19a"))
    stream.read()
    stream.rest()
    assert stream.follower.about_to_begin
    assert stream.updates == []


def test_blocks_that_wait_when_all_is_read_are_left_until_their_parent_comes() -> None:
    first, second, third = chain("1a 2a 3a")
    stream = Stream(start=ROOT)
    stream.publish([first, third])
    stream.read()
    assert stream.follower.leaves_blocks
    assert [(name(one.block), one.number, one.state) for one in stream.follower.awaited()] == [("2a", 2, "unknown")]
    stream.publish([second])
    stream.read()
    assert not stream.follower.leaves_blocks
    assert stream.follower.awaited() == []


def test_a_block_that_comes_later_and_waits_is_not_left() -> None:
    first, _, third = chain("1a 2a 3a")
    stream = Stream(start=ROOT)
    stream.publish([first])
    stream.read()
    stream.publish([third])
    stream.read()
    assert not stream.follower.leaves_blocks
