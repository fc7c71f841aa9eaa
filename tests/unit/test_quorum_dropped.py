"""A whole consumer under policy `quorum:k`: one producer's copy of a block was dropped, and another's is held."""

from __future__ import annotations

import pytest

from cardinal.protocols.streams import BlockRef, Overflow, Payload, Routed
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.following.missing import Gaps
from cardinal.protocols.streams.following.settings import OnIncomplete
from channels import line, shape
from rereading import Rereading
from streams import block, h, messages

CHAIN = line("a", 1, 60, "0r")
"""Block N is `CHAIN[N - 1]`; the threshold is 4."""


def scene(**options: object) -> Rereading:
    """Producers a, b and c, each of which may have four blocks open."""
    made = {"policy": "quorum:2", "producers": ("a", "b", "c"), "bounds": Bounds(open_blocks=24), **options}
    return Rereading(**made)


def part(payload: Payload) -> list[Routed]:
    """All of a block but one value."""
    return messages(payload)[1:]


def flood(stream: Rereading, producer: str, tag: str = "y") -> None:
    """More blocks than the producer may have open, and none of them whole."""
    for number in range(900, 920):
        stream.write(part(block(f"{number}{tag}", "none")), producer)


def drop(stream: Rereading, payload: Payload) -> None:
    """All of a block comes from a; from b as well, whose copy is dropped before the last of it."""
    stream.write(messages(payload), "a")
    stream.write(part(payload), "b")
    stream.read()
    flood(stream, "b")
    stream.read()
    assert payload.hash in [event.block for event in stream.events if isinstance(event, Overflow)]
    stream.write(messages(payload)[:1], "b")
    stream.read()
    assert stream.follower.explain(payload.hash).state == "open"


def go_on(stream: Rereading, first: int, last: int) -> None:
    for payload in CHAIN[first - 1 : last]:
        stream.write(messages(payload), "a")
        stream.write(messages(payload), "b")
        stream.read()


def delivered(stream: Rereading) -> list[str]:
    return "".join(map(shape, stream.updates)).split("+")[1:]


def names(last: int) -> list[str]:
    return [f"{number}a" for number in range(1, last + 1)]


def test_a_copy_that_was_dropped_is_read_again_when_the_stream_rests() -> None:
    stream = scene(start=BlockRef(0, h("0r")))
    go_on(stream, 1, 1)
    drop(stream, CHAIN[1])
    go_on(stream, 3, 3)
    assert delivered(stream) == names(1)
    stream.rest()
    assert delivered(stream) == names(3)


@pytest.mark.parametrize("on_incomplete", OnIncomplete)
def test_a_copy_that_was_dropped_is_read_again_on_a_stream_that_never_rests(on_incomplete: OnIncomplete) -> None:
    stream = scene(start=BlockRef(0, h("0r")), on_incomplete=on_incomplete)
    go_on(stream, 1, 1)
    drop(stream, CHAIN[1])
    go_on(stream, 3, 30)
    assert delivered(stream) == names(30)


def test_what_is_lost_is_waited_for_where_a_stream_halts() -> None:
    stream = scene(start=BlockRef(0, h("0r")), on_incomplete=OnIncomplete.HALT)
    go_on(stream, 1, 1)
    stream.write(part(CHAIN[1]), "a")
    stream.write(part(CHAIN[1]), "b")
    go_on(stream, 3, 30)
    assert delivered(stream) == names(1)
    assert h("2a") not in stream.reread()
    stream.write(messages(CHAIN[1])[:1], "a")
    stream.write(messages(CHAIN[1])[:1], "b")
    stream.read()
    assert delivered(stream) == names(30)


def test_no_block_is_passed_over_of_which_a_copy_was_dropped() -> None:
    """Two producers say what its Batch says, a and c, so that the chain could go on without it."""
    stream = scene(start=BlockRef(0, h("0r")))
    go_on(stream, 1, 1)
    stream.write(part(CHAIN[1]), "c")
    drop(stream, CHAIN[1])
    go_on(stream, 3, 30)
    assert delivered(stream) == names(30)


def test_a_copy_that_is_dropped_while_others_wait_for_it_is_read_again_where_only_other_chains_go_on() -> None:
    """Blocks that stand on nothing known prove nothing about deadlines; they are counted all the same."""
    stream = scene(start=BlockRef(0, h("0r")))
    go_on(stream, 1, 1)
    stream.write(messages(CHAIN[2]), "a")
    stream.write(messages(CHAIN[2]), "b")
    drop(stream, CHAIN[1])
    for number in range(700, 704):
        for producer in "ab":
            stream.write(messages(block(f"{number}z", "none", 1)), producer)
        stream.read()
    assert delivered(stream) == names(3)


def test_a_stream_does_not_begin_above_a_block_of_which_a_copy_was_dropped() -> None:
    stream = scene(patient=True)
    drop(stream, CHAIN[0])
    go_on(stream, 2, 3)
    stream.rest()
    stream.follower.settle()
    stream.rest()
    assert delivered(stream) == names(3)


def test_a_copy_that_its_producers_share_has_no_room_for_does_not_hold_up_the_stream() -> None:
    """Producer b never writes all of 2a; what c writes is larger than all that is held of one producer."""
    large = Payload(2, h("2a"), h("1a"), 2, {f"b/2a/t/{index}": bytes(1 << 12) for index in range(64)})
    stream = scene(start=BlockRef(0, h("0r")), bounds=Bounds(open_bytes=3 << 17, open_blocks=24))
    go_on(stream, 1, 1)
    stream.write(messages(CHAIN[1]), "a")
    stream.write(part(CHAIN[1]), "b")
    stream.write(messages(large), "c")
    go_on(stream, 3, 60)
    assert delivered(stream) == ["1a", "?2a", *names(60)[2:]]
    assert stream.reread().count(h("2a")) > 1


def test_what_is_read_again_instead_of_being_given_up_is_counted_within_bounds() -> None:
    gaps = Gaps(patience=1)
    assert [gaps.retries(h("1a")) for _ in range(6)] == [True, True, True, True, False, False]
    for index in range(1_024):
        assert gaps.retries(index.to_bytes(32, "big"))
    assert gaps.retries(h("1a"))
    gaps.completed(h("1a"))
    assert [gaps.retries(h("1a")) for _ in range(5)] == [True, True, True, True, False]
