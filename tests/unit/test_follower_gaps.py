"""Blocks that a chain waits for: healed, read again, passed over with proof, and never without."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cardinal.protocols.streams import (
    BlockRef,
    ChainUpdate,
    Follower,
    Incomplete,
    Orderer,
    Payload,
    Quarantined,
    Reassembler,
    ReorgBegan,
    Stale,
)
from cardinal.protocols.streams.assembly.block import Explanation
from cardinal.protocols.streams.following.missing import Gaps
from cardinal.protocols.streams.following.rest import Rest, Rounds, oldest
from cardinal.protocols.streams.following.settings import OnIncomplete
from cardinal.protocols.streams.ordering.orderer import Past
from cardinal.protocols.streams.types import Record
from channels import THRESHOLD, Stream, line, settings, shape
from streams import TOPIC, block, h, messages

ROOT = BlockRef(0, h("0r"))


def without_content(stream: Stream, payload: Payload) -> None:
    """Only the Batch of a block is on the topics."""
    stream.write(messages(payload)[-1:])


def gap_at_2a(last: int) -> Stream:
    """2a is never complete, and its descendants wait."""
    stream = Stream(start=ROOT)
    first, second, *rest = line("a", 1, last, "0r")
    stream.publish([first])
    without_content(stream, second)
    stream.publish(rest)
    return stream


def unrelated(stream: Stream, count: int) -> None:
    """Blocks of nobody's chain become complete: that is how the stream's time passes."""
    at = stream.ends()[TOPIC, 0]
    stream.publish([Payload(900, h(f"900x{at}x{index}"), h("none"), 1) for index in range(count)])


# --- healing -----------------------------------------------------------------------------------------------


def test_what_a_node_supplies_completes_a_block_and_lets_its_descendants_go() -> None:
    stream = gap_at_2a(4)
    assert stream.read() == "+1a"
    out = stream.follower.supply(messages(line("a", 1, 2, "0r")[1]))
    stream._sort(out)
    assert shape(stream.updates[-1]) == "+2a+3a+4a"


def test_a_block_that_there_was_no_room_for_is_reported_when_its_parent_is_delivered_and_read_again() -> None:
    stream = Stream(start=ROOT, max_waiting=1)
    blocks = line("a", 1, 4, "0r")
    stream.publish([blocks[3], blocks[2]])
    stream.read()
    assert [event.block.hash for event in stream.events if isinstance(event, Stale)] == [h("4a")]
    stream.publish(blocks[:1])
    assert stream.read() == "+1a"
    stream.publish(blocks[1:2])
    assert stream.read() == "+2a+3a"
    (report,) = [event.explanation for event in stream.events if isinstance(event, Incomplete)]
    assert (report.block, report.state) == (h("4a"), "dropped")
    places = stream.follower.reread(h("4a"))
    assert places == report.positions
    assert places
    for place, begin in places.items():
        stream._sort(stream.follower.receive(stream.partitions[place][begin:]))
    assert shape(stream.updates[-1]) == "+4a"
    assert stream.follower.reread(h("4a")) is None


# --- giving up ---------------------------------------------------------------------------------------------


def test_a_needed_block_is_passed_over_when_everything_that_was_there_is_read() -> None:
    stream = gap_at_2a(4)
    stream.read()
    for _ in range(9):
        unrelated(stream, 9)
        stream.read()
    assert shape(stream.updates[-1]) == "+?2a+3a+4a"
    assert h("2a") in [event.block for event in stream.events if isinstance(event, Quarantined)]
    stream.restart()
    stream.publish(line("b", 2, 9, "1a", 1))
    assert stream.read().startswith("-4a-3a-?2a+2b")


@pytest.mark.parametrize("again", [False, True])
def test_the_first_block_above_a_given_start_is_passed_over_as_any_other(again: bool) -> None:  # noqa: FBT001 - a case
    """Before anything was delivered, and where a cursor says no more than that."""
    stream = Stream(start=ROOT)
    first, *rest = line("a", 1, 4, "0r")
    without_content(stream, first)
    stream.publish(rest)
    stream.read()
    if again:
        stream.restart()
    for _ in range(9):
        unrelated(stream, 9)
        stream.read()
    assert "".join(map(shape, stream.updates)) == "+?1a+2a+3a+4a"


def test_nothing_is_passed_over_while_a_partition_is_not_read_to_its_end() -> None:
    stream = gap_at_2a(5)
    unrelated(stream, 60)
    ends = {place: end + 1 for place, end in stream.ends().items()}  # one more record, somewhere, always
    stream.ends = lambda: ends  # type: ignore[method-assign] # what the broker says
    assert stream.read(steps=20) == "+1a"
    assert stream.follower.wants_ends is False
    assert stream.follower.explain(h("2a")).state == "open"


def test_a_block_without_a_batch_is_never_passed_over_however_long_its_descendants_wait() -> None:
    stream = Stream(start=ROOT)
    first, second, *rest = line("a", 1, 5, "0r")
    stream.publish([first])
    stream.write(messages(second)[:-1])
    stream.publish(rest)
    for _ in range(3):
        unrelated(stream, 40)
        stream.read()
    assert "".join(map(shape, stream.updates)) == "+1a"
    assert stream.follower.explain(h("2a")).missing_batch
    stream.write(messages(second)[-1:])
    assert stream.read() == "+2a+3a+4a+5a"


def test_a_block_that_nobody_ever_saw_is_reported_once_it_is_waited_for_in_vain() -> None:
    stream = Stream(start=ROOT)
    first, _, *rest = line("a", 1, 5, "0r")
    stream.publish([first, *rest])
    stream.read()
    unrelated(stream, THRESHOLD)
    stream.read()
    reports = [event.explanation for event in stream.events if isinstance(event, Incomplete)]
    assert [one for one in reports if one.block == h("2a")] == [Explanation(h("2a"), 2, "unknown", missing_batch=True)]


def test_of_several_lost_blocks_each_is_passed_over_in_its_turn() -> None:
    stream = Stream(start=ROOT)
    first, second, third, *rest = line("a", 1, 5, "0r")
    stream.publish([first])
    without_content(stream, second)
    without_content(stream, third)
    stream.publish(rest)
    for _ in range(20):
        unrelated(stream, 9)
        stream.read()
    assert "".join(map(shape, stream.updates)) == "+1a+?2a+?3a+4a+5a"


def test_a_follower_that_halts_on_incomplete_blocks_waits_until_somebody_supplies_them() -> None:
    stream = gap_at_2a(4)
    stream.follower = Follower(settings(start=ROOT, on_incomplete=OnIncomplete.HALT))
    for _ in range(10):
        stream.read()
        unrelated(stream, 9)
    assert "".join(map(shape, stream.updates)) == "+1a"
    stream._sort(stream.follower.supply(messages(line("a", 1, 2, "0r")[1])))
    assert "".join(map(shape, stream.updates)) == "+1a+2a+3a+4a"


# --- having caught up --------------------------------------------------------------------------------------


def test_nothing_is_started_with_before_the_newest_watermarks_are_reached() -> None:
    stream = Stream()
    stream.publish([block("1a", "0r"), block("2a", "1a")])
    records = [record for found in stream.partitions.values() for record in found]
    assert not stream.follower.caught_up
    assert stream.follower.receive(records) == []
    more = {place: end + 1 for place, end in stream.ends().items()}
    assert stream.follower.progress(stream.ends(), more) == []
    assert not stream.follower.caught_up
    (update,) = stream.follower.progress(stream.ends(), stream.ends())
    assert isinstance(update, ChainUpdate)
    assert shape(update) == "+1a+2a"
    assert stream.follower.caught_up
    stream.follower.not_caught_up()
    assert not stream.follower.caught_up


def test_a_reorg_that_is_told_on_another_topic_announces_nothing() -> None:
    stream = Stream()
    stream.publish([block("0r", "none", 0), *line("a", 1, 5, "0r")])
    stream.read()
    announced, _ = stream.channel("3a", 3, line("b", 4, 6, "3a", 1))
    (event,) = stream.follower.receive([Record("tx", 0, 900, announced.key, announced.value)])
    assert isinstance(event, ReorgBegan)
    assert stream.follower.channels() == ()


# --- bounds ------------------------------------------------------------------------------------------------


def test_what_is_waited_for_and_what_was_let_go_is_bounded() -> None:
    gaps = Gaps(patience=1)
    for index in range(3_000):
        gaps.awaited(index.to_bytes(32, "big"), 1)
    gaps.completed(b"")
    assert len(gaps.unseen()) == 1024
    for index in range(33_000):
        name = index.to_bytes(32, "big")
        gaps.let_go(name, Explanation(name, 1, "dropped"))
    assert gaps.delivered(bytes(32)) == []
    found = [gaps.delivered(index.to_bytes(32, "big")) for index in range(232, 33_000)]
    assert sum(map(len, found)) == 4_096, "no more than are fetched"
    assert gaps.reread((232).to_bytes(32, "big")) == {}
    assert gaps.reread((32_999).to_bytes(32, "big")) is None
    assert gaps.open_ended


def test_the_lowest_of_what_was_let_go_is_read_again_first_within_its_bounds() -> None:
    gaps = Gaps(patience=1, again=3, again_bytes=100)
    for number, size in ((9, 1), (4, 60), (5, 30), (3, 90), (6, 30), (7, 1), (8, 1)):
        gaps.let_go(h("parent"), Explanation(h(f"{number}a"), number, "dropped"), size)
    rounds = []
    while told := gaps.lowest_let_go():
        rounds.append([one.number for one in told])
        assert gaps.lowest_let_go() == [], "nobody has asked yet where these begin"
        assert [gaps.reread(one.block) for one in told] == [{}] * len(told)
    assert rounds == [[3], [4, 5], [6, 7, 8], [9]]
    assert not gaps.open_ended


def test_a_block_that_is_let_go_again_and_again_counts_once() -> None:
    gaps = Gaps(patience=1)
    for _ in range(33_000):
        gaps.let_go(h("parent"), Explanation(h("3a"), 3, "dropped"))
    assert [one.block for one in gaps.lowest_let_go()] == [h("3a")]
    assert not gaps.open_ended


def told(rounds: Rounds, completed: int, waiting: list[bytes]) -> list[bytes]:
    """What is read again now of these, the first of them first."""

    def choose(without: Container[bytes]) -> list[Explanation]:
        return [Explanation(block_hash, None, "dropped") for block_hash in oldest(waiting, without)]

    return [one.block for one in rounds.due(completed, waiting, choose)]


def test_what_brings_nothing_is_not_read_again_for_ever() -> None:
    rounds = Rounds()
    dropped = [h(f"{number}x") for number in range(5_000)]
    begun = [at for at in range(40) for _ in range(3) if told(rounds, at, dropped)[:1] == dropped[:1]]
    assert begun == [0, 1, 3, 7, 15, 31]
    assert told(Rounds(), 1, []) == []


def test_a_round_reads_each_block_once_and_the_next_begins_where_one_was_what_was_lacking() -> None:
    rounds = Rounds()
    dropped = [h(f"{number}x") for number in range(5_000)]
    assert [told(rounds, 1, dropped) for _ in range(3)] == [dropped[:4_096], dropped[4_096:], []]
    rounds.found(h("1a"))
    assert told(rounds, 1, dropped) == [], "that block was none of them"
    new = [h("1y"), h("2y")]
    assert told(rounds, 1, [*dropped, *new]) == new
    rounds.found(dropped[7])
    del dropped[7]
    assert [told(rounds, 2, dropped) for _ in range(3)] == [dropped[:4_096], dropped[4_096:], []]


def test_at_rest_dropped_blocks_are_looked_through_once_until_something_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be tens of thousands, and a stream may rest for hours."""
    stream = Stream(start=ROOT)
    first, _, *above = line("a", 1, 4, "0r")
    stream.publish([first, *above])
    stream.read()
    looks = []
    dropped_blocks = type(stream.follower.reassembler).dropped_blocks

    def noted(self: Reassembler) -> object:
        looks.append(1)
        return dropped_blocks(self)

    monkeypatch.setattr(Reassembler, "dropped_blocks", noted)

    def rest() -> int:
        looks.clear()
        for _ in range(5):
            stream.follower.progress(stream.ends(), None, at_rest=True)
        return len(looks)

    assert [rest(), rest()] == [1, 0]
    stream.publish(line("b", 1, 1, "0r"))
    stream.read()
    assert [rest(), rest()] == [1, 0]
    stream.follower.supply([])
    assert [rest(), rest()] == [1, 0]
    stream.follower.reread(h("2a"))
    assert [rest(), rest()] == [1, 0]


def test_where_there_was_something_to_be_read_again_the_next_look_is_not_left_out() -> None:
    dropped = [h(f"{number}x") for number in range(5_000)]
    assembler = SimpleNamespace(
        dropped_blocks=lambda: dropped, explain=lambda block_hash: Explanation(block_hash, None, "dropped")
    )
    rest = Rest(assembler, Gaps(patience=1))  # type: ignore[arg-type] # what is asked of it
    assert [len(rest.due(1)) for _ in range(4)] == [4_096, 904, 0, 0]


def test_what_was_read_again_at_rest_is_remembered_within_bounds() -> None:
    rounds = Rounds()
    for number in range(200):
        dropped = [b"%d/%d" % (number, each) for each in range(1_000)]
        assert told(rounds, 1, dropped) == dropped
    assert len(rounds._told) < 70_000


def test_a_block_that_was_settled_meanwhile_is_not_asked_for_again() -> None:
    gaps = Gaps(patience=1)
    gaps.overdue(h("1a"), awaited=True)
    gaps.settled(h("1a"))
    gaps.again(h("1a"))
    gaps.completed(b"")
    assert gaps.progress({}, None) == []
    assert not gaps.wants_ends


# --- the orderer's side ------------------------------------------------------------------------------------


def header(name_: str, parent: str, number: int) -> Payload:
    return Payload(number, h(name_), h(parent), number)


def test_only_a_block_that_complete_blocks_stand_on_is_bridged() -> None:
    orderer = Orderer(ROOT, 0)
    assert orderer.bridge(header("1a", "0r", 1)) == []
    assert not orderer.holds(h("1a"))


@pytest.mark.parametrize("lie", [header("1a", "0r", 7), Payload(1, h("1a"), b"short", 1)])
def test_a_header_that_cannot_be_is_no_bridge(lie: Payload) -> None:
    orderer = Orderer(ROOT, 0)
    orderer.receive(header("2a", "1a", 2))
    assert orderer.bridge(lie) == []
    assert not orderer.holds(h("1a"))


def test_a_bridge_whose_own_parent_is_not_there_waits_and_says_so() -> None:
    orderer = Orderer(ROOT, 0)
    orderer.receive(header("3a", "2a", 3))
    assert orderer.bridge(header("2a", "1a", 2)) == []
    assert orderer.standing(h("2a")) == "given up, to be passed over"
    (update,) = orderer.receive(header("1a", "0r", 1))
    assert shape(update) == "+1a+?2a+3a"


def test_a_ring_that_reaches_below_the_given_start_keeps_it_as_what_it_is() -> None:
    orderer = Orderer(BlockRef(2, h("2a")), 2)
    orderer.resume([BlockRef(3, h("3b")), BlockRef(2, h("2a")), BlockRef(1, h("1b"))], 3, 3, Past(BlockRef(1, h("1b"))))
    assert orderer.release() == []
    assert orderer.head == BlockRef(3, h("3b"))
    assert orderer.standing(h("2a")) == "delivered"


def test_what_stands_below_the_parent_of_a_given_start_becomes_known_when_that_comes_last() -> None:
    orderer = Orderer(BlockRef(2, h("2a")), 2, reorg_threshold=8)
    orderer.receive(header("2a", "1a", 2))
    orderer.receive(header("1b", "0g", 1))
    assert [shape(update) for update in orderer.receive(Payload(2, h("2b"), h("1b"), 9))] == []
    (update,) = orderer.receive(header("1a", "0g", 1))
    assert shape(update) == "-2a-1a+1b+2b"


def test_a_resume_at_the_given_start_itself_goes_on_from_it() -> None:
    orderer = Orderer(ROOT, 0)
    assert orderer.head_weight == 0
    assert Orderer().head_weight == 0
    assert orderer.receive(header("0q", "none", 0)) == []
    assert orderer.receive(Payload(0, ROOT.hash, h("none"), 0)) == []
    assert orderer.standing(ROOT.hash) == "delivered"


def test_the_ring_goes_on_with_older_blocks_after_a_reorg_to_a_shorter_chain() -> None:
    stream = Stream()
    stream.publish([block("0r", "none", 0), *line("a", 1, 20, "0r")])
    stream.read()
    announced, content = stream.channel("10a", 10, line("b", 11, 12, "10a", 100))
    stream.write([announced])
    stream.read()
    stream.write(content)
    assert stream.read().endswith("+11b+12b")
    names = [ref.hash for ref in stream.follower.cursor().ring]
    assert names == [h("12b"), h("11b"), h("10a"), h("9a"), h("8a")]


def test_a_cursor_with_channels_is_taken_by_a_follower_that_follows_none() -> None:
    stream = Stream()
    stream.publish([block("0r", "none", 0), *line("a", 1, 12, "0r")])
    announced, _ = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced])
    stream.read()
    assert stream.follower.cursor().channels
    alone = Follower(replace(settings(), default_topic=None), stream.follower.cursor())
    assert alone.channels() == ()


def test_records_of_other_topics_pass_a_follower_with_open_channels() -> None:
    stream = Stream()
    stream.publish([block("0r", "none", 0), *line("a", 1, 5, "0r")])
    stream.write([stream.channel("3a", 3, line("b", 4, 6, "3a", 1))[0]])
    stream.read()
    assert stream.follower.receive([Record("else", 0, 0, b"\xff", b"")])


def test_a_delivered_block_that_comes_again_after_the_floor_fell_is_a_fork_point_again() -> None:
    orderer = Orderer(ROOT, 0, reorg_threshold=2)
    for payload in line("a", 1, 6, "0r"):
        orderer.receive(payload)
    assert not orderer.holds(h("3a"))
    (update,) = orderer.receive(Payload(5, h("5b"), h("4a"), 50))
    assert shape(update) == "-6a-5a+5b"
    assert orderer.receive(header("3a", "2a", 3)) == []
    (update,) = orderer.receive(Payload(4, h("4c"), h("3a"), 60))
    assert shape(update) == "-5b-4a+4c"


def test_watermarks_of_the_opening_prove_nothing_of_what_was_written_since() -> None:
    """A partition that was empty then is behind: what it brings belongs to blocks that others have brought already."""
    follower = Follower(settings(start=ROOT))
    late = messages(block("2a", "1a", txs=1))[:-1]
    records = [
        Record("behind" if message in late else message.topic, 0, index, message.key, message.value, 0)
        for index, message in enumerate(
            one for payload in line("a", 1, 6 * THRESHOLD, "0r") for one in messages(payload)
        )
    ]
    read = [record for record in records if record.topic != "behind"]
    positions = dict.fromkeys({record[:2] for record in read}, len(records))
    opening = {**positions, ("behind", 0): 0}
    out = follower.receive(read[:-1])
    last = {**positions, read[-1][:2]: read[-1].offset, ("behind", 0): 0}
    for _ in range(3):
        out += follower.progress(last, opening)
    out += follower.receive(read[-1:])
    out += follower.progress(opening, opening)
    assert follower.caught_up
    out += follower.receive([record for record in records if record.topic == "behind"])
    assert [one for one in out if isinstance(one, Quarantined)] == []
    added = [one for update in out if isinstance(update, ChainUpdate) for one in update.added]
    assert [one.number for one in added] == [*range(1, 6 * THRESHOLD + 1)]
    assert all(isinstance(one, Payload) for one in added)
