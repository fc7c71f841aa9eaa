"""Blocks that a chain waits for: supplied, reported, passed over with proof, and never without."""

from __future__ import annotations

from functools import partial

import pytest

from cardinal.protocols.streams import (
    BlockRef,
    ChainUpdate,
    Follower,
    Incomplete,
    Orderer,
    Overflow,
    Payload,
    Quarantined,
)
from cardinal.protocols.streams.events import Explanation
from cardinal.protocols.streams.following.missing import MissingBlocks
from cardinal.protocols.streams.following.settings import OnIncomplete
from cardinal.protocols.streams.ordering.settings import OrderingSettings
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
    at = stream.ends()[TOPIC, 0] + stream.ends()[TOPIC, 1]
    stream.publish([Payload(900, h(f"900x{at}x{index}"), h("none"), 1) for index in range(count)])


def until(stream: Stream, kind: type) -> None:
    """Unrelated blocks come one by one until this is reported."""
    for _ in range(9 * THRESHOLD):
        if stream.named(kind):
            return
        unrelated(stream, 1)
        stream.read()
    pytest.fail(f"no {kind.__name__} came")


# --- healing -----------------------------------------------------------------------------------------------


def test_what_a_node_supplies_completes_a_block_and_lets_its_descendants_go() -> None:
    stream = gap_at_2a(4)
    assert stream.read() == "+1a"
    out = stream.follower.supply(messages(line("a", 1, 2, "0r")[1]))
    stream._sort(out)
    assert shape(stream.updates[-1]) == "+2a+3a+4a"


def test_a_waiting_block_that_was_evicted_is_read_again_when_its_parent_is_delivered() -> None:
    stream = Stream(start=ROOT, max_waiting=1)
    blocks = line("a", 1, 4, "0r")
    stream.publish([blocks[3], blocks[2]])
    stream.read()
    assert {event.block for event in stream.named(Overflow)} == {h("4a")}  # type: ignore[attr-defined] # of Overflow
    stream.publish(blocks[:2])
    stream.read()
    assert "".join(map(shape, stream.updates)) == "+1a+2a+3a+4a"
    assert stream.named(Incomplete) == stream.named(Quarantined) == []


# --- giving up ---------------------------------------------------------------------------------------------


def test_a_needed_block_is_skipped_when_everything_that_was_there_is_read() -> None:
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
def test_the_first_block_above_a_given_start_is_skipped_as_any_other(again: bool) -> None:  # noqa: FBT001 - a case
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


def test_nothing_is_skipped_while_a_partition_is_not_read_to_its_end() -> None:
    stream = gap_at_2a(5)
    unrelated(stream, 60)
    ends = {place: end + 1 for place, end in stream.ends().items()}  # one more record, somewhere, always
    stream.ends = lambda: ends  # type: ignore[method-assign] # what the broker says
    assert stream.read(steps=20) == "+1a"
    assert stream.named(Incomplete) == []
    assert stream.follower.explain(h("2a")).state == "open"


def test_a_block_without_a_batch_is_never_skipped_however_long_its_descendants_wait() -> None:
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


def test_of_several_lost_blocks_each_is_skipped_in_its_turn() -> None:
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
    more = {place: end + 1 for place, end in stream.ends().items()}
    assert not stream.follower.caught_up
    assert stream.follower.step(records, stream.ends()).items == []
    assert stream.follower.step([], stream.ends(), more).items == []
    assert not stream.follower.caught_up
    (update,) = stream.follower.step([], more).updates
    assert shape(update) == "+1a+2a"
    assert stream.follower.caught_up


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
    last = {**positions, read[-1][:2]: read[-1].offset, ("behind", 0): 0}
    out = [*follower.step(read[:-1], last, opening).items]
    for _ in range(3):
        out += follower.step([], last).items
    out += follower.step(read[-1:], opening).items
    assert follower.caught_up
    ends = {**opening, ("behind", 0): len(records)}
    out += follower.step([record for record in records if record.topic == "behind"], ends, ends).items
    assert [one for one in out if isinstance(one, Incomplete | Quarantined)] == []
    added = [one for update in out if isinstance(update, ChainUpdate) for one in update.added]
    assert [one.number for one in added] == [*range(1, 6 * THRESHOLD + 1)]
    assert all(isinstance(one, Payload) for one in added)


def test_an_absent_block_is_reported_once_and_skipped_a_threshold_of_blocks_after_it_was_suspected() -> None:
    stream = gap_at_2a(4)
    stream.read()
    until(stream, Incomplete)
    suspect = stream.follower._missing.get(h("2a"))
    assert suspect is not None
    unrelated(stream, suspect.since + THRESHOLD - 1 - stream.follower._missing.completed)
    stream.read()
    stream.rest()
    assert shape(stream.updates[-1]) == "+1a"
    unrelated(stream, 1)
    stream.read()
    assert shape(stream.updates[-1]) == "+?2a+3a+4a"
    assert len(stream.named(Incomplete)) == 1


def test_a_block_whose_messages_come_before_the_last_proof_is_delivered_with_its_content() -> None:
    stream = gap_at_2a(4)
    stream.read()
    until(stream, Incomplete)
    unrelated(stream, THRESHOLD)
    stream.write(messages(line("a", 1, 2, "0r")[1])[:-1])
    stream.read()
    assert shape(stream.updates[-1]) == "+2a+3a+4a"


def test_nothing_is_skipped_while_somebody_is_queried_for_the_messages() -> None:
    stream = gap_at_2a(4)
    stream.read()
    unrelated(stream, 4 * THRESHOLD)
    step = stream.follower.step
    stream.follower.step = partial(step, may_abandon=False)  # type: ignore[method-assign] # a query is in flight
    stream.read()
    stream.rest()
    assert shape(stream.updates[-1]) == "+1a"
    assert stream.named(Incomplete)
    stream.follower.step = step  # type: ignore[method-assign] # it came back empty
    unrelated(stream, 1)
    stream.read()
    stream.rest()
    assert shape(stream.updates[-1]) == "+?2a+3a+4a"


# --- suspects ----------------------------------------------------------------------------------------------


def test_a_suspect_is_absent_when_watermarks_that_were_taken_after_it_was_due_are_passed() -> None:
    missing = MissingBlocks()
    place = ("t", 0)
    missing.suspect(h("1a"), wait=2)
    assert missing.proven({place: 5}, {place: 5}) == []
    assert not missing.needs_watermarks, "it is not due"
    missing.completed = 2
    assert missing.proven({place: 5}, {place: 5}) == [], "these were taken before"
    assert missing.needs_watermarks
    assert missing.proven({place: 5}, {place: 9}) == []
    assert not missing.needs_watermarks
    missing.suspect(h("2a"))
    assert missing.proven({place: 8}, {place: 8}) == [], "the first ones are to be passed"
    assert missing.proven({place: 9}, None) == [h("1a")]
    assert missing.needs_watermarks
    assert missing.proven({place: 9}, {place: 9}) == [h("2a")]


def test_a_suspect_is_due_at_the_earliest_of_the_times_that_are_given_for_it() -> None:
    missing = MissingBlocks()
    missing.suspect(h("1a"), wait=9, number=1)
    missing.suspect(h("1a"))
    missing.suspect(h("1a"), wait=5)
    missing.proven({}, None)
    assert missing.needs_watermarks
    assert missing.proven({}, {}) == [h("1a")]
    suspect = missing.get(h("1a"))
    assert suspect is not None
    assert suspect.number == 1


def test_a_block_that_is_complete_meanwhile_is_no_suspect() -> None:
    missing = MissingBlocks()
    missing.suspect(h("1a"))
    missing.clear(h("1a"))
    assert missing.proven({}, None) == []
    assert not missing.needs_watermarks
    missing.suspect(h("1a"))
    missing.proven({}, None)
    missing.clear(h("1a"))
    assert missing.proven({}, {}) == []


def test_a_partition_that_is_no_longer_read_holds_no_proof_up() -> None:
    missing, place = MissingBlocks(), ("t", 0)
    missing.suspect(h("1a"))
    missing.proven({place: 0}, None)
    assert missing.proven({place: 10}, {place: 10, ("t", 1): 4}) == [h("1a")]


def test_suspects_that_become_due_before_watermarks_are_passed_are_proven_by_the_next_ones() -> None:
    missing, place = MissingBlocks(), ("t", 0)
    missing.suspect(b"0")
    assert missing.proven({place: 0}, None) == []
    assert missing.proven({place: 0}, {place: 500}) == []
    others = [b"%d" % number for number in range(1, 1_000)]
    for number, other in enumerate(others, 1):
        missing.suspect(other)
        assert not missing.needs_watermarks
        assert missing.proven({place: 499}, {place: number}) == []
    assert missing.proven({place: 500}, None) == [b"0"]
    assert missing.needs_watermarks
    assert missing.proven({place: 999}, {place: 1_000}) == []
    assert missing.proven({place: 1_000}, None) == others


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


def test_a_bridge_whose_own_parent_is_missing_waits_and_is_reported() -> None:
    orderer = Orderer(ROOT, 0)
    orderer.receive(header("3a", "2a", 3))
    assert orderer.bridge(header("2a", "1a", 2)) == []
    assert orderer.state_of(h("2a")) == "abandoned"
    (update,) = orderer.receive(header("1a", "0r", 1))
    assert shape(update) == "+1a+?2a+3a"


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("open", "", "lacks its Batch"),
        ("unknown", "", "is not on the topics"),
        ("complete", "", "is complete"),
        ("delivered", "", "is delivered"),
        ("delivered without its content", "", "is delivered without its content"),
        ("removed", "", "left the chain"),
        ("removed", "in the reorg at 2", "left the chain in the reorg at 2"),
        ("on a side branch", "", "is on a side branch"),
        ("abandoned", "its messages are not on the topics", "is abandoned: its messages are not on the topics"),
        ("complete, in a reorg channel", "", "is complete, in a reorg channel"),
    ],
)
def test_the_text_of_an_explanation_is_that_of_its_state(state: str, reason: str, text: str) -> None:
    explanation = Explanation(h("3a"), 3, state, missing_batch=state == "open", reason=reason)
    assert str(explanation) == f"block 3 (0x{h('3a').hex()}) {text}"


def test_the_texts_of_blocks_that_were_delivered_and_removed_name_it() -> None:
    stream = Stream(start=ROOT)
    stream.publish(line("a", 1, 2, "0r"))
    stream.read()
    stream.publish(line("b", 2, 3, "1a"))
    stream.read()
    assert str(stream.follower.explain(h("3b"))).endswith(") is delivered")
    assert str(stream.follower.explain(h("2a"))).endswith(") left the chain in the reorg at 2")


def test_a_removed_block_stays_removed_where_it_is_pruned() -> None:
    stream = Stream(start=ROOT)
    for fork in (line("a", 1, 3, "0r"), line("b", 2, 4, "1a"), line("b", 5, 40, "4b")):
        stream.publish(fork)
        stream.read()
    for name in ("2a", "3a"):  # its number is forgotten
        assert str(stream.follower.explain(h(name))) == f"block 0x{h(name).hex()} left the chain in the reorg at 2"


def test_a_block_that_comes_back_is_delivered_and_not_removed() -> None:
    stream = Stream(start=ROOT)
    for fork in (line("a", 1, 2, "0r"), line("b", 2, 3, "1a"), line("a", 3, 4, "2a")):
        stream.publish(fork)
        stream.read()
    explanation = stream.follower.explain(h("2a"))
    assert (explanation.state, explanation.reason) == ("delivered", "")


def test_the_hash_of_zeros_is_no_block() -> None:
    stream = Stream(start=BlockRef(-1, bytes(32)))
    stream.publish([block("0r", "none", 0)])
    stream.read()
    explanation = stream.follower.explain(bytes(32))
    assert explanation.state == "unknown"
    assert str(explanation) == f"block 0x{bytes(32).hex()} is no block: a first block names it as its parent"


def test_the_block_below_a_start_that_was_requested_was_not_delivered() -> None:
    orderer = Orderer(ROOT, 0, settings=OrderingSettings(start_delivered=False))
    orderer.receive(header("1a", "0r", 1))
    assert orderer.state_of(h("0r")) == "below the first block of this stream"
