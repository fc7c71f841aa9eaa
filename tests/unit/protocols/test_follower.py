"""Follower: resuming from a cursor, and queries for what it has not delivered, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

import pytest

from cardinal.errors import CursorExpiredError, CursorMismatchError
from cardinal.protocols.streams import (
    BlockRef,
    Cursor,
    Follower,
    Incomplete,
    MissingPayload,
    OnFinalityViolation,
    Overflow,
    Payload,
    Quarantined,
    Stale,
    Superseded,
    reorg_topic,
)
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.following.follower import AGE_MAX
from cardinal.protocols.streams.following.resume import Resume
from cardinal.protocols.streams.following.settings import OnIncomplete
from cardinal.protocols.streams.types import Partition, short
from channels import THRESHOLD, Stream, line, settings, shape
from streams import TOPIC, block, h, messages

ROOT = BlockRef(0, h("0r"))


def published(last: int = 12) -> Stream:
    stream = Stream()
    stream.publish([block("0r", "none", 0), *line("a", 1, last, "0r")])
    stream.read()
    return stream


def marks(stream: Stream) -> dict[Partition, tuple[int, int]]:
    return {place: (0, len(records)) for place, records in stream.partitions.items()}


def resumed(stream: Stream) -> Follower:
    return Follower(settings(), Cursor.parse(str(stream.follower.cursor())))


# --- where to read -----------------------------------------------------------------------------------------


def test_without_a_cursor_everything_is_read() -> None:
    assert Follower(settings()).begin_at({("t", 0): (3, 9)}) == {("t", 0): 3}


def test_known_partitions_begin_at_their_floors_and_new_ones_at_their_beginning() -> None:
    stream = published()
    cursor = stream.follower.cursor()
    begin = resumed(stream).begin_at(marks(stream) | {("tx", 9): (4, 8)})
    assert begin == dict(cursor.floor) | {("tx", 9): 4}
    assert any(cursor.floor[place] < cursor.next[place] for place in cursor.next)


def test_records_that_retention_took_after_they_were_read_are_done_without() -> None:
    stream = published()
    cursor = stream.follower.cursor()
    follower = resumed(stream)
    lows = {place: (cursor.next[place], len(records)) for place, records in stream.partitions.items()}
    begin = follower.begin_at(lows)
    assert begin == dict(cursor.next)
    assert follower.step([], begin, stream.ends()).items == []
    assert not follower.resuming
    better = line("b", 9, 13, "8a", 1)
    stream.publish(better)
    records = [record for place, at in begin.items() for record in stream.partitions[place][at:]]
    update, *_ = follower.step(records, stream.ends()).updates
    assert shape(update).startswith("-?12a-?11a-?10a-?9a+9b")
    assert update.removed[0] == MissingPayload(12, h("12a"))


@pytest.mark.parametrize("what", ["unread", "shorter", "gone"])
def test_records_that_were_not_read_yet_and_are_gone_are_an_error(what: str) -> None:
    stream = published()
    follower = resumed(stream)
    place = ("blocks", 0)
    following = stream.follower.cursor().next[place]
    there = marks(stream)
    if what == "unread":
        there[place] = (following + 5, following + 9)
    elif what == "shorter":
        there[place] = (0, following - 1)
    else:
        del there[place]
    gaps = {
        "unread": (following, following + 5),
        "shorter": (following - 1, following),
        "gone": (stream.follower.cursor().floor[place], following),
    }
    with pytest.raises(CursorExpiredError, match=r"missing from blocks\[0\]") as caught:
        follower.begin_at(there)
    assert caught.value.missing == {place: gaps[what]}


def test_a_topic_that_was_recreated_is_noticed_while_resuming() -> None:
    stream = published()
    follower = resumed(stream)
    shorter = dict.fromkeys(stream.ends(), 0)
    with pytest.raises(CursorExpiredError) as caught:
        follower.step([], shorter, shorter)
    assert set(caught.value.missing) == {place for place, end in stream.ends().items() if end}


@pytest.mark.parametrize("anew", ["other", "shifted"])
def test_topics_that_were_recreated_and_are_longer_by_now_are_noticed(anew: str) -> None:
    """They hold another chain; or the same, of which so much begins later that blocks lie below the floors."""
    stream = published()
    cursor = stream.follower.cursor()
    again = Stream()
    again.publish(line("z", 1, 40, "0r") if anew == "other" else line("a", 24, 60, "23a"))
    again.restart(cursor)
    with pytest.raises(CursorExpiredError, match="recreated: they hold none of the blocks 8 to 12 at") as caught:
        again.read()
    assert caught.value.missing == {place: (cursor.floor[place], at) for place, at in cursor.next.items()}
    with pytest.raises(CursorExpiredError):
        again.read()
    assert again.updates == []


@pytest.mark.parametrize("count", [4, 9])
def test_one_delivered_block_that_is_found_again_is_enough_to_continue(count: int) -> None:
    """Of the others nothing is on the topics: they were supplied, and are not looked for."""
    stream = published()
    for payload in line("a", 13, supplied := 12 + count, "12a"):
        stream._sort(stream.follower.supply(messages(payload)))
    cursor = stream.follower.cursor()
    assert cursor.missing == {ref.hash for ref in cursor.ring if ref.number > 12}
    stream.restart()
    stream.publish(line("a", supplied + 1, supplied + 2, f"{supplied}a"))
    assert stream.read() == f"+{supplied + 1}a+{supplied + 2}a"


def refuses_other_topics(cursor: Cursor, there: Mapping[Partition, tuple[int, int]]) -> bool:
    """Whether a resumed stream is refused on these topics, of which nothing that it read was delivered before."""
    resume = Resume(settings(), cursor, lambda _: False)
    resume.begin_at(there)
    try:
        resume.refuse_other_topics(lambda _: False)
    except CursorExpiredError:
        return True
    return False


def test_where_retention_has_cut_or_a_channel_is_open_what_was_delivered_may_be_missing() -> None:
    stream = published()
    cursor = stream.follower.cursor()
    there = marks(stream)
    assert refuses_other_topics(cursor, there)
    needed = [place for place, floor in cursor.floor.items() if floor < cursor.next[place]]
    assert needed
    for place in needed:
        assert not refuses_other_topics(cursor, there | {place: (cursor.floor[place] + 1, cursor.next[place] + 9)})
    assert not refuses_other_topics(replace(cursor, channels=(BlockRef(3, h("3a")),)), there)


@pytest.mark.parametrize("ring", [[], ["12a"]])
def test_of_blocks_without_content_nothing_is_looked_for(ring: list[str]) -> None:
    stream = published()
    cursor = stream.follower.cursor()
    refs = tuple(ref for ref in cursor.ring if ref.hash in map(h, ring))
    assert not refuses_other_topics(replace(cursor, ring=refs, missing=frozenset(map(h, ring))), marks(stream))


def test_a_partition_that_the_driver_does_not_have_holds_nothing_up() -> None:
    stream = published()
    follower = resumed(stream)
    assert follower.resuming
    follower.step([], {place: end for place, end in stream.ends().items() if place[0] != "tx"})
    assert not follower.resuming


def test_the_topic_of_a_channel_may_be_gone() -> None:
    stream = published()
    announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced, *content])
    assert stream.read().endswith("+13b")
    topic = reorg_topic(TOPIC, h("3a"))
    assert (topic, 0) in stream.follower.cursor().next, "blocks within the threshold are only there"
    del stream.partitions[topic, 0]
    stream.restart()
    assert stream.follower.channels == (topic,)
    stream.publish(line("b", 14, 14, "13b", 1))
    assert stream.read() == "+14b"
    stream.publish(line("c", 12, 16, "11b", 2))
    assert stream.read() == "-14b-?13b-?12b+12c+13c+14c+15c+16c"


def test_content_that_came_through_a_channel_is_read_again_from_it() -> None:
    stream = published()
    announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced, *content])
    stream.read()
    stream.restart()
    stream.publish(line("c", 12, 16, "11b", 2))
    assert stream.read() == "-13b-12b+12c+13c+14c+15c+16c"


def test_the_same_channel_can_carry_another_reorg_while_its_content_is_read_again() -> None:
    stream = published()
    announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced, *content])
    stream.read()
    stream.restart()
    announced, content = stream.channel("3a", 3, line("c", 4, 14, "3a", 2))
    stream.write([announced, *content])
    assert stream.read(step=2).endswith("+13c+14c")


def test_an_open_channel_stands_in_the_cursor_with_its_partition() -> None:
    stream = published()
    announced, content = stream.channel("6a", 6, line("b", 7, 13, "6a", 1))
    stream.write([announced, *content[:7]])
    stream.read()
    cursor = Cursor.parse(str(stream.follower.cursor()))
    place = (reorg_topic(TOPIC, h("6a")), 0)
    assert cursor.channels == (BlockRef(6, h("6a")),)
    assert (cursor.floor[place], cursor.next[place]) == (0, 7)
    stream.write(content[7:])
    stream.read()
    stream.publish(line("b", 14, 20, "13b", 1))
    stream.read()
    cursor = stream.follower.cursor()
    assert cursor.channels == ()
    assert place not in cursor.next, "nothing is needed of it any more"


# --- what it says meanwhile --------------------------------------------------------------------------------


def test_a_cursor_taken_while_resuming_equals_the_one_before() -> None:
    stream = published()
    before = stream.follower.cursor()
    follower = resumed(stream)
    begin = follower.begin_at(marks(stream))
    assert begin == before.floor
    records = [record for place in begin for record in stream.partitions[place][begin[place] :][:2]]
    at = {place: min(begin[place] + 2, len(stream.partitions[place])) for place in begin}
    follower.step(records, at)
    assert follower.resuming
    assert Cursor.parse(str(follower.cursor())) == before


@pytest.mark.parametrize("delivered", [False, True])
def test_a_cursor_taken_before_the_first_step_after_a_restart_is_the_one_before(*, delivered: bool) -> None:
    """Also of a stream of which nothing was delivered yet, but a part of a block was read."""
    stream = published() if delivered else Stream(start=ROOT)
    stream.publish(line("b", 11, 12, "10a"))
    stream.write(messages(block("13a", "12a"))[1:])
    stream.read()
    before = stream.follower.cursor()
    assert (before.head is not None) == delivered
    assert any(before.floor[place] < before.next[place] for place in before.next)
    stream.restart()
    again = Cursor.parse(str(stream.follower.cursor()))
    assert (again.next, again.floor) == (before.next, before.floor)
    stream.restart()
    assert (stream.follower.cursor().next, stream.follower.cursor().floor) == (before.next, before.floor)
    stream.give([])
    assert (stream.follower.cursor().next, stream.follower.cursor().floor) == (before.next, before.floor)


def hashed(payload: Payload) -> Payload:
    """The same block with hashes whose beginnings differ, as real ones' do."""
    return replace(payload, hash=sha256(payload.hash).digest(), parent=sha256(payload.parent).digest())


def test_parts_of_old_blocks_that_are_read_again_are_stale_and_nothing_else() -> None:
    """A late copy of a Batch of an old block lies above the floor."""
    blocks = [hashed(payload) for payload in [block("0r", "none", 0), *line("a", 1, 31, "0r")]]
    stream = Stream()
    stream.publish(blocks[:31])
    stream.read()
    stream.write(messages(blocks[24])[-1:])
    stream.publish(blocks[31:])
    stream.read()
    stream.restart()
    stream.read()
    below = blocks[-1]
    for number in range(32, 60):
        below = Payload(number, h(f"{number}a"), below.hash, number)
        stream.publish([below])
        stream.read()
    assert stream.follower.reassembler.open_blocks() == []
    assert {event.block.hash for event in stream.named(Stale)} == {blocks[24].hash}  # type: ignore[attr-defined] # of Stale
    assert stream.named(Quarantined) == stream.named(Incomplete) == []


def test_a_waiting_block_far_behind_holds_no_cursor_back() -> None:
    stream = published()
    stream.publish([block("99z", "98z", 1)])
    stream.read()
    low = dict(stream.follower.cursor().floor)
    far = {place: at + 2 * AGE_MAX for place, at in stream.at.items()}
    stream.follower.step([], far)
    cursor = stream.follower.cursor()
    assert any(cursor.floor[place] > low[place] for place in low)
    ring = {ref.hash for ref in cursor.ring}
    assert all(
        min(offsets) >= cursor.floor[place]
        for place in low
        if (
            offsets := [record.offset for record in stream.partitions[place] if record.key[1:33] in ring and record.key]
        )
    )


def test_floors_stay_safe_while_many_blocks_are_open() -> None:
    stream = published()
    lone = [block(f"{20 + index}x", "none", 20 + index) for index in range(50)]
    for payload in lone:
        stream.write(messages(payload)[1:])
    stream.read(step=1)
    stream.publish(line("a", 13, 14, "12a"))
    stream.read(step=1)
    cursor = stream.updates[-1].cursor
    floors = stream.follower.reassembler.open_positions()
    assert all(cursor.floor[place] <= offset for place, offset in floors.items())
    stream.restart()
    assert len(stream.follower.reassembler.open_blocks()) == 0
    stream.read()
    assert len(stream.follower.reassembler.open_blocks()) == 50


@pytest.mark.slow
def test_blocks_that_are_half_read_again_are_known_whichever_update_of_a_long_step_is_resumed_from() -> None:
    stream = Stream()
    stream.publish(line("a", 1, 3, "0a"))
    stream.read()
    stream.write(messages(line("x", 4, 4, "3a")[0])[:1])  # an open block that holds the floors down
    stream.publish(line("a", 4, 90, "3a"))
    records = [record for place, at in stream.at.items() for record in stream.partitions[place][at:]]
    records.sort(key=lambda record: (record.topic == TOPIC, record.key[1:33]))
    cursors = [update.cursor for update in stream.follower.step(records, stream.ends()).updates]
    assert len(cursors) > 20
    for cursor in cursors:
        stream.events.clear()
        stream.restart(cursor)
        stream.read()
        assert stream.follower.orderer.head == BlockRef(90, h("90a"))
        known = {ref.hash for ref in cursor.ring}
        given_up = [event.number for event in stream.named(Quarantined) if event.block not in known]
        assert given_up == []


def test_of_many_updates_of_one_step_every_one_can_be_resumed_from() -> None:
    """22a comes first of all; when 30a is the head it is forgotten, but whoever stopped at 10a still needs it."""
    stream = Stream(start=ROOT)
    blocks = line("a", 1, 30, "0r")
    stream.publish([blocks.pop(21), *blocks])
    stream.read()
    updates = list(stream.updates)
    assert len(updates) > 2 * THRESHOLD
    for count, update in enumerate(updates, 1):
        stream.restart(update.cursor)
        stream.updates = updates[:count]
        stream.read()
        assert "".join(map(shape, stream.updates)) == "".join(map(shape, updates))
        assert stream.updates[-1].seq == updates[-1].seq


def test_a_superseded_block_is_removed_without_content_after_a_resume() -> None:
    """Which of its two Batches can be completed by the deadline depends on the order of reading."""
    stream = Stream(start=ROOT)
    *content, batch = messages(block("1b", "0r", 1, txs=1))
    *_, lie = messages(block("1b", "0r", 1, txs=2))
    stream.write([lie, *content, batch])
    stream.publish(line("b", 2, 4, "1b"))
    stream.publish([Payload(number, h(f"{number}x"), h(f"{number}y"), 9) for number in range(100, 200)])
    stream.read()
    assert len(stream.named(Superseded)) == 1
    assert "".join(map(shape, stream.updates)) == "+1b+2b+3b+4b"
    assert stream.updates[-1].cursor.missing == {h("1b")}
    stream.restart()
    stream.publish(line("c", 1, 5, "0r"))
    assert stream.read().startswith("-4b-3b-2b-?1b+1c")


# --- lineage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"whitelist": {99: h("99a")}},
        {"tracked": ("b/",)},
        {"policy": "quorum:2", "producers": ("a", "b")},
    ],
)
def test_other_options_are_another_lineage(options: dict[str, object]) -> None:
    cursor = published().follower.cursor()
    with pytest.raises(CursorMismatchError, match="another whitelist"):
        Follower(settings(**options), cursor)


@pytest.mark.parametrize("number", [1, 99])
def test_a_start_where_the_stream_did_not_begin_is_named(number: int) -> None:
    stream = Stream(start=BlockRef(2, h("2a")))
    stream.publish(line("a", 3, 9, "2a"))
    stream.read()
    cursor = stream.follower.cursor()
    assert cursor.start == BlockRef(3, h("3a"))
    for start in (None, BlockRef(2, h("2a"))):
        assert Follower(settings(start=start), cursor).cursor().head == cursor.head
    with pytest.raises(CursorMismatchError, match=f"began with block 3, not after block {number}") as caught:
        Follower(settings(start=BlockRef(number, h("a"))), cursor)
    assert caught.value.found == cursor.start


def test_who_counts_for_a_quorum_is_part_of_the_lineage_only_there() -> None:
    prints = {
        settings(policy=policy, producers=producers, volatile=volatile).fingerprint()
        for policy in ("first", "quorum:2")
        for producers in ((), ("a", "b"))
        for volatile in ((), ("safe",))
    }
    assert len(prints) == 5


def test_what_to_do_about_a_stream_that_is_idle_may_change() -> None:
    cursor = published().follower.cursor()
    options = {"on_finality_violation": OnFinalityViolation.FOLLOW, "on_incomplete": OnIncomplete.HALT, "history": 9}
    assert Follower(settings(**options), cursor).cursor().head == cursor.head


def test_a_whitelist_that_conflicts_with_the_cursor_is_named() -> None:
    cursor = published().follower.cursor()
    with pytest.raises(CursorMismatchError, match="pins another block at 11") as caught:
        Follower(settings(whitelist={11: h("11b")}), cursor)
    assert (caught.value.expected, caught.value.found) == (h("11b"), h("11a"))


def test_a_cursor_before_the_first_block_resumes_too() -> None:
    stream = Stream()
    stream.publish([block("0r", "none", 0)])
    cursor = Cursor.parse(str(stream.follower.cursor()))
    assert (cursor.head, cursor.start, cursor.seq) == (None, None, 0)
    stream.restart(cursor)
    assert stream.read() == "+0r"
    assert stream.follower.cursor().lineage[8:] == short(h("0r"))


def test_a_resumed_stream_never_removes_what_lies_below_its_start() -> None:
    """The blocks below the start are read after it, and a better chain leaves below: reported, also after a restart."""
    stream = Stream()
    stream.publish(line("a", 5, 6, "4a"))
    stream.read()
    stream.restart()
    stream.publish(line("a", 3, 4, "2a"))
    stream.publish(line("b", 4, 9, "3a", 1))
    assert stream.read() == ""
    stream.publish(line("c", 5, 9, "4a", 1))
    assert stream.read().startswith("-6a-5a+5c+6c"), "the start's parent is a fork point"


def test_explain_knows_what_became_of_a_block() -> None:
    stream = published(30)
    stream.publish([block("28b", "27a", 28), block("40z", "39z", 40), block("3q", "2a", 3)])
    stream.write(messages(block("31a", "30a", 31))[1:])
    stream.read()
    states = {name: stream.follower.explain(h(name)).state for name in ("30a", "20a", "28b", "40z", "3q", "31a", "77z")}
    assert states == {
        "30a": "delivered",
        "20a": "delivered",
        "28b": "on a side branch",
        "40z": f"waiting for parent {h('39z').hex()}",
        "3q": "pruned: farther below the head than the reorg threshold",
        "31a": "open",
        "77z": "unknown",
    }


# --- bounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [2, 20])
def test_more_side_blocks_than_there_is_room_for_do_not_stop_a_resumed_reading(room: int) -> None:
    stream = published()
    stream.publish([block(f"13s{index}", "12a", 13) for index in range(60)])
    stream.read()
    expected = len(stream.updates)
    stream.restart(max_waiting=room, max_side=room)
    stream.read()
    assert len(stream.updates) == expected
    stream.publish([block("13a", "12a", 13), block("14a", "13a", 14), block("15a", "14a", 15)])
    assert stream.read().endswith("+15a")


def test_a_block_of_the_cursor_is_known_as_delivered_while_it_is_read_again() -> None:
    stream = published()
    follower = resumed(stream)
    follower.begin_at(marks(stream))
    assert follower.resuming
    assert follower.explain(h("12a")).state == "delivered"


def test_a_partially_published_block_is_reported_once_the_head_is_far_above() -> None:
    stream = published()
    stream.write([message for message in messages(block("12b", "11a", 12)) if message.topic == TOPIC])
    for payload in line("a", 13, 60, "12a"):
        stream.publish([payload])
        stream.read()
    assert [event.block.hash for event in stream.events if isinstance(event, Stale)] == [h("12b")]
    assert stream.follower.cursor().head.hash == h("60a")


def test_content_that_is_gone_is_not_looked_for_among_evicted_blocks() -> None:
    stream = Stream(bounds=Bounds(open_blocks=8))
    stream.publish([block("0r", "none", 0), *line("a", 1, 5, "0r")])
    stream.read()
    stream.restart()
    stream.at = {place: at if place[0] == TOPIC else stream.ends()[place] for place, at in stream.at.items()}
    for index in range(20):
        stream.write(messages(block("900" + "y" * (index + 1), "none", 1))[:1])
    stream.read()
    evicted = stream.named(Overflow)[0].block  # type: ignore[attr-defined] # of Overflow
    assert (stream.follower.explain(evicted).state, stream.follower.explain(evicted).number) == ("evicted", None)
    assert not stream.follower.resuming
    stream.publish(line("a", 6, 6, "5a"))
    assert stream.read() == "+6a"


# --- queries -----------------------------------------------------------------------------------------------


def test_a_patient_stream_of_which_nothing_is_complete_has_not_begun() -> None:
    stream = Stream(patient=True)
    stream.write(messages(block("1a", "0a"))[1:])
    stream.read()
    stream.rest()
    assert stream.follower.head is None
    assert not stream.follower.about_to_begin
    assert [*map(str, stream.follower.awaited())] == [f"block 1 (0x{h('1a').hex()}) lacks 1 message"]


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
    first, second, third = line("a", 1, 3, "0r")
    stream = Stream(start=ROOT)
    stream.publish([first, third])
    stream.read()
    assert stream.follower.leaves_blocks
    assert [*map(str, stream.follower.awaited())] == [f"block 2 (0x{second.hash.hex()}) is not on the topics"]
    stream.publish([second])
    stream.read()
    assert not stream.follower.leaves_blocks
    assert stream.follower.awaited() == []


def test_a_block_that_comes_later_and_waits_is_not_left() -> None:
    first, _, third = line("a", 1, 3, "0r")
    stream = Stream(start=ROOT)
    stream.publish([first])
    stream.read()
    stream.publish([third])
    stream.read()
    assert not stream.follower.leaves_blocks
