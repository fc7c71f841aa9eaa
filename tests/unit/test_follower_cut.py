"""Side branches whose root falls below the threshold: what a cursor says of their upper blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cardinal.protocols.streams import Payload, Quarantined, Stale
from cardinal.protocols.streams.following.moments import OPEN_MAX
from cardinal.protocols.streams.following.settings import OnIncomplete
from cardinal.protocols.streams.types import BlockRef, short
from channels import THRESHOLD, Stream, called, line
from streams import block, h, messages


def branched(last: int) -> Stream:
    """A chain `0r 1a …`, and a lighter branch `3b 4b 5b 6b` on 2a."""
    stream = Stream()
    below = [block("0r", "none", 0), *line("a", 1, 2, "0r", 1)]
    stream.publish([*below, *line("b", 3, 6, "2a"), *line("a", 3, 6, "2a", 1)])
    stream.read()
    stream.publish(line("a", 7, last, "6a", 1))
    stream.read()
    return stream


def test_a_branch_is_needed_while_its_root_is_above_the_floor() -> None:
    stream = branched(6)
    assert stream.follower.orderer.holds(h("6b"))
    assert not stream.follower.cursor().done & {short(h(name)) for name in ("3b", "4b", "5b", "6b")}


def test_a_branch_that_is_cut_is_done_with_though_its_blocks_lie_above_the_floor() -> None:
    stream = branched(7)
    cursor = stream.follower.cursor()
    assert cursor.ring[-1].number == 7 - THRESHOLD
    assert not stream.follower.orderer.holds(h("6b"))
    assert cursor.done >= {short(h(name)) for name in ("3b", "4b", "5b", "6b")}


def test_an_older_cursor_still_needs_the_branch_whenever_its_text_is_made() -> None:
    stream = branched(9)
    before = next(update for update in stream.updates if update.added[-1].number == 6)
    assert short(h("6b")) not in before.cursor.done


def test_what_is_read_again_of_a_branch_that_was_cut_is_not_quarantined() -> None:
    stream = branched(7)
    stream.restart()
    # The floors lie above the branch's transactions; its Batches are read again all the same.
    stream.at = {place: 0 if place[0] == "blocks" else at for place, at in stream.at.items()}
    stream.read()
    stream.publish(line("a", 8, 20, "7a", 1))
    assert stream.read().endswith("+20a")
    assert stream.named(Quarantined) == []


def test_a_branch_on_a_given_start_is_needed_by_cursors_that_are_older_than_its_cut() -> None:
    stream = Stream(start=BlockRef(0, h("0r")))
    stream.publish([*line("b", 1, 2, "0r"), *line("a", 1, THRESHOLD, "0r", 1)])
    stream.read()
    assert stream.follower.orderer.holds(h("1b"))
    stream.publish(line("a", THRESHOLD + 1, THRESHOLD + 1, f"{THRESHOLD}a", 1))
    stream.read()
    assert not stream.follower.orderer.holds(h("1b"))
    before = next(update for update in stream.updates if update.added[-1].number == THRESHOLD)
    stream.restart(before.cursor)
    stream.publish(line("b", 3, 9, "2b", 5))
    assert stream.read().endswith("+9b")


def test_where_a_lower_head_reaches_farther_down_the_floor_does_too() -> None:
    """17a's chain is long, and part of what is known of it is let go; 15b is heavier, and a threshold above 11a."""
    stream = Stream()
    below = [block("0r", "none", 0), *line("a", 1, 14, "0r", 1)]
    for payload in [*below, *line("a", 15, 17, "14a", 1)]:
        stream.publish([payload])
        stream.read()
    stream.publish(line("b", 15, 15, "14a", 9))
    assert stream.read() == "-17a-16a-15a+15b"
    cursor = stream.follower.cursor()
    assert [ref.number for ref in cursor.ring] == [15, 14, 13, 12, 11]
    assert not cursor.missing
    for place, records in stream.partitions.items():
        needed = [record.offset for record in records if called(record.key[1:33]) in ("11a", "12a", "13a")]
        assert min(needed, default=cursor.floor[place]) >= cursor.floor[place]
    stream.restart()
    stream.read()
    stream.publish(line("b", 16, 30, "15b", 9))
    assert stream.read().endswith("+30b")
    assert stream.named(Quarantined) == []


def test_what_a_deep_reorg_reaches_down_to_again_is_not_waited_for() -> None:
    """Where 8a and 9a begin was forgotten long ago when 12b, on 10a, makes them part of the ring again."""
    stream = Stream()
    for payload in [block("0r", "none", 0), *line("a", 1, 30, "0r")]:
        stream.publish([payload])
        stream.read()
    announced, content = stream.channel("10a", 10, line("b", 11, 12, "10a", 100))
    stream.write([announced])
    stream.read()
    stream.write(content)
    assert stream.read().endswith("+11b+12b")
    cursor = stream.follower.cursor()
    assert {h("8a"), h("9a")} <= cursor.missing
    stream.restart()
    assert stream.follower.cursor().missing == cursor.missing
    stream.at = {place: 0 if place[0] == "blocks" else at for place, at in stream.at.items()}
    stream.read()
    stream.publish(line("c", 13, 30, "12b", 100))
    assert stream.read().endswith("+30c")
    given_up = {event.block for event in stream.named(Quarantined) if isinstance(event, Quarantined)}
    assert not given_up & {h("8a"), h("9a")}


def test_blocks_that_were_whole_long_before_the_head_came_there_are_done_with() -> None:
    """One message of 5a and of 12a comes when a hundred blocks above them are whole."""
    stream = Stream(on_incomplete=OnIncomplete.HALT)
    stream.publish([block("0r", "none", 0), *line("a", 1, 4, "0r", 1), *line("s", 5, 5, "4a")])
    stream.read()
    late = [messages(payload) for payload in (*line("a", 5, 5, "4a", 1), *line("a", 12, 12, "11a", 1))]
    for routed in late:
        stream.write(routed[1:])
    for payload in [*line("a", 6, 11, "5a", 1), *line("a", 13, 110, "12a", 1)]:
        stream.publish([payload])
        stream.read()
    stream.write(late[0][:1])
    assert stream.read().endswith("+11a")
    cursor = stream.follower.cursor()
    assert cursor.ring[-1].number == 11 - THRESHOLD
    assert short(h("5s")) in cursor.done
    stream.write(late[1][:1])
    assert stream.read().endswith("+110a")
    assert stream.named(Quarantined) == []


def test_of_very_many_branches_that_were_cut_the_newest_are_named() -> None:
    stream = Stream()
    stream.publish([block("0r", "none", 0)])
    below = "0r"
    for number in range(1, 100):
        stream.publish([*line("a", number, number, below, 1), *line("s", number, number, below)])
        stream.read()
        below = f"{number}a"
    done = stream.follower.cursor().done
    assert short(h("94s")) in done
    assert short(h("3s")) not in done
    assert len(done) <= 2 * THRESHOLD


def left_far_behind(policy: str = "first", producers: tuple[str, ...] = ("",), *, opened: int = 0) -> Stream:
    """A chain to 30a, of which a channel leaves at 10a for 12b, and 15b: twenty blocks are cut, more than are named.

    A block that nothing leads to came beside 15a and waits: its Batch pins the partition of Batches from there on. So
    the Batches of the cut blocks are read again, and their transactions are not.
    """
    stream = Stream(policy=policy, producers=producers)

    def publish(blocks: list[Payload]) -> None:
        for payload in blocks:
            for producer in producers:
                stream.write(messages(payload), producer)
            stream.read()

    publish([block("0r", "none", 0), *line("a", 1, 15, "0r")])
    publish([Payload(99, h("99z"), h("98z"), 1)])
    publish(line("a", 16, 30, "15a"))
    announced, content = stream.channel("10a", 10, line("b", 11, 12, "10a", 100))
    stream.write([announced])
    stream.read()
    for producer in producers:
        stream.write(content, producer)
    assert stream.read().endswith("+11b+12b")
    publish(line("b", 13, 15, "12b", 100))
    publish_open(stream, opened)
    stream.restart()
    publish(line("b", 16, 16, "15b", 100))
    stream.restart()
    publish(line("b", 17, 60, "16b", 100))
    assert stream.updates[-1].added[-1].number == 60
    return stream


def publish_open(stream: Stream, count: int) -> None:
    """Blocks that stay open: content without a Batch."""
    for number in range(count):
        stream.write(messages(block(f"{number}o", "none"))[:1])
    stream.read()


@pytest.mark.parametrize(("policy", "producers"), [("first", ("",)), ("quorum:2", ("x", "y"))])
def test_what_is_read_again_in_parts_after_a_deep_reorg_is_stale_and_not_quarantined(
    policy: str, producers: tuple[str, ...]
) -> None:
    stream = left_far_behind(policy, producers)
    assert stream.named(Quarantined) == []
    stale = {called(event.block.hash) for event in stream.events if isinstance(event, Stale)}
    assert len({name for name in stale if name.endswith("a")}) > 1


def test_where_a_cursor_may_not_name_all_open_blocks_none_is_taken_for_old() -> None:
    stream = left_far_behind(opened=OPEN_MAX)
    assert stream.named(Quarantined)


@pytest.mark.parametrize(("policy", "producers"), [("first", ("",)), ("quorum:2", ("x", "y"))])
def test_batches_of_old_blocks_alone_are_stale_however_many_blocks_are_open(
    policy: str, producers: tuple[str, ...]
) -> None:
    """Open blocks hold the Batches of many more blocks down than a cursor names, as one lagging partition does."""
    stream = Stream(policy=policy, producers=producers) if policy != "first" else Stream()

    def publish(blocks: Sequence[Payload], what: slice = slice(None)) -> None:
        for payload in blocks:
            for producer in producers:
                stream.write(messages(payload)[what], producer)
        stream.read()

    publish([block("0r", "none", 0), *line("a", 1, 9, "0r")])
    publish([block(f"{number}o", "none") for number in range(200, 200 + OPEN_MAX)], slice(-1, None))
    publish(line("a", 10, 60, "9a"))
    cursor = stream.follower.cursor()
    assert len(cursor.open) == OPEN_MAX
    assert short(h("20a")) not in cursor.done
    stream.restart()
    stream.read()
    publish(line("a", 61, 70, "60a"))
    assert stream.updates[-1].added[-1].number == 70
    stale = {called(event.block.hash) for event in stream.events if isinstance(event, Stale)}
    assert {"10a", "20a", "40a"} <= stale
    assert stream.named(Quarantined) == []
