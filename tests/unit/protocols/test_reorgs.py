"""Reorgs deeper than the threshold, through channels, as a follower's driver sees them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.protocols.streams import (
    BlockRef,
    Cursor,
    Finality,
    FinalityViolated,
    Follower,
    FollowerSettings,
    ForkBelowStart,
    OnFinalityViolation,
    Payload,
    Rejected,
    ReorgAbandoned,
    ReorgBegan,
    ReorgEnded,
    Routed,
    reorg_topic,
    split,
)
from cardinal.protocols.streams.cursor import CHANNELS_MAX
from cardinal.protocols.streams.following.follower import Requests, Step
from cardinal.protocols.streams.types import Record
from cardinal.protocols.streams.wire.codec import encode
from cardinal.protocols.streams.wire.messages import ReorgComplete
from channels import THRESHOLD, Stream, line, settings, shape
from streams import SCHEMA, TOPIC, WIDTH, block, h, messages, parents_of


def deep(stream: Stream) -> None:
    """A chain of 12 blocks, of which 5 or fewer are held."""
    stream.publish([block("0r", "none", 0), *line("a", 1, 12, "0r")])
    stream.read()


def test_a_reorg_through_a_channel_is_one_update() -> None:
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced])
    assert stream.read() == ""
    assert stream.follower.channels == (reorg_topic(TOPIC, h("3a")),)
    stream.write(content[:-1])
    assert stream.read() == ""
    assert stream.follower.explain(h("13b")).state == "complete, in a reorg channel"
    stream.write(content[-1:])
    assert stream.read() == ("-12a-11a-10a-9a-8a-?7a-?6a-?5a-?4a+4b+5b+6b+7b+8b+9b+10b+11b+12b+13b")
    assert stream.follower.channels == ()
    marks = [type(event) for event in stream.events if isinstance(event, ReorgBegan | ReorgEnded)]
    assert marks == [ReorgBegan, ReorgBegan, ReorgEnded]
    stream.publish(line("b", 14, 15, "13b", 1))
    assert stream.read() == "+14b +15b"
    assert len(stream.follower.cursor().ring) == THRESHOLD + 1


def test_a_channels_chain_that_is_lighter_wins_when_its_children_come() -> None:
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("6a", 6, line("b", 7, 11, "6a"))
    stream.write([announced, *content])
    assert stream.read() == ""
    stream.publish(line("a", 13, 13, "12a"))
    stream.publish(line("b", 12, 13, "11b"))
    assert stream.read() == "+13a"
    stream.publish(line("b", 14, 14, "13b"))
    assert stream.read() == "-13a-12a-11a-10a-9a-8a-?7a+7b+8b+9b+10b+11b+12b+13b+14b"
    assert stream.follower.channels == ()


def test_a_producer_that_begins_again_completes_its_own_attempt() -> None:
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced, *content[: len(content) // 2]], "one")
    stream.read()
    stream.write([announced, *content], "one")
    assert stream.read().endswith("+12b+13b")
    assert stream.follower.channels == ()


def test_blocks_of_an_attempt_that_did_not_end_do_not_win() -> None:
    """One producer is in the middle of a heavy chain when another one completes a lighter one."""
    stream = Stream()
    deep(stream)
    announced, heavy = stream.channel("3a", 3, line("c", 4, 13, "3a", 50))
    _, light = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced])
    stream.write(heavy[:-1], "one")
    stream.write(light, "two")
    assert stream.read().endswith("+12b+13b")
    stream.write(heavy[-1:], "one")
    assert stream.read().endswith("+12c+13c")


def test_an_attempt_that_is_not_linked_is_none() -> None:
    stream = Stream()
    deep(stream)
    blocks = line("b", 4, 13, "3a", 1)
    announced, content = stream.channel("3a", 3, blocks[1:])
    stream.write([announced, *content])
    assert stream.read() == ""
    stream.write(stream.channel("3a", 3, blocks[:1])[1], "two")
    assert stream.read() == ""
    stream.write(stream.channel("3a", 3, blocks)[1], "two")
    assert stream.read().endswith("+12b+13b")


def test_after_a_restart_older_batches_extend_what_is_remembered() -> None:
    stream = Stream()
    deep(stream)
    stream.restart()
    stream.read()
    assert stream.requests.history is None
    announced, content = stream.channel("2a", 2, line("b", 3, 13, "2a", 1))
    stream.write([announced, *content])
    assert stream.read().startswith("-12a-11a-10a-9a-8a-?7a-?6a-?5a-?4a-?3a+3b")
    assert stream.recalled == [2]


def test_a_channel_is_not_given_up_while_older_batches_are_looked_up_for_it() -> None:
    """However many steps that takes: the blocks that come meanwhile say nothing about it."""
    stream = Stream()
    deep(stream)
    stream.restart()
    stream.read()
    recall = stream.follower.recall
    stream.follower.recall = lambda _parents: Step((), Requests())  # type: ignore[method-assign] # a driver that is at it
    announced, content = stream.channel("2a", 2, line("b", 3, 33, "2a", 1))
    stream.write([announced, *content])
    assert stream.read(steps=20) == ""
    stream.publish(line("a", 13, 13 + 4 * THRESHOLD, "12a"))
    assert stream.read(step=1, steps=1_000).endswith(f"+{13 + 4 * THRESHOLD}a")
    assert stream.named(ReorgAbandoned) == []
    stream.follower.recall = recall  # type: ignore[method-assign] # it has them
    assert stream.read().endswith("+32b+33b")


def test_an_ancestor_deeper_than_may_be_remembered_is_not_looked_up() -> None:
    """What is remembered is bounded, and so is what is looked up for it."""
    stream = Stream(history=8)
    deep(stream)
    stream.restart()
    stream.read()
    stream.write([stream.channel("2a", 2, line("b", 3, 13, "2a", 1))[0]])
    stream.read()
    assert stream.requests.history is None
    assert stream.recalled == []
    stream.write([stream.channel("5a", 5, line("c", 6, 13, "5a", 1))[0]])
    stream.read()
    assert stream.recalled == [5]
    assert stream.follower.orderer.history.lowest == BlockRef(5, h("5a"))


def test_batches_that_disagree_about_a_parent_extend_nothing() -> None:
    stream = Stream()
    deep(stream)
    stream.restart()
    stream.read()
    lie = Payload(6, h("6a"), h("5z"), 6)
    found = [record for place, records in stream.partitions.items() if place[0] == TOPIC for record in records]
    lied = [
        Record(TOPIC, 0, 99, *split(lie, {}, TOPIC)[-1][1:]),
        Record(TOPIC, 0, 99, b"", b""),
        found[0]._replace(value=b"x"),
    ]
    parents = parents_of([*found, *lied, found[-1], *lied])
    assert parents.keys() == {h(f"{number}a") for number in range(1, 13)} - {h("6a")} | {h("0r")}
    stream.write([stream.channel("2a", 2, line("b", 3, 13, "2a", 1))[0]])
    announcement = stream.partitions[TOPIC, 1][-1:] + stream.partitions[TOPIC, 0][-1:]
    assert stream.follower.step(announcement, stream.ends()).requests.history == 2
    assert stream.follower.orderer.history.lowest == BlockRef(8, h("8a"))
    assert stream.follower.recall(parents) == Step([], Requests(channels=stream.follower.channels)), "requested in vain"
    assert stream.follower.orderer.history.lowest == BlockRef(6, h("6a")), "less is missing than before"


def test_an_ancestor_below_the_start_is_reported() -> None:
    stream = Stream()
    stream.publish(line("a", 6, 12, "5a"))
    stream.read()
    stream.write([stream.channel("4a", 4, line("b", 5, 13, "4a"))[0]])
    stream.read()
    assert stream.named(ForkBelowStart) == [ForkBelowStart(BlockRef(4, h("4a")), BlockRef(6, h("6a")))]
    assert stream.follower.channels == ()


def test_an_ancestor_below_the_start_that_was_not_known_yet_is_reported_later() -> None:
    stream = Stream()
    stream.write([stream.channel("4a", 4, line("b", 5, 13, "4a"))[0]])
    stream.read()
    assert len(stream.follower.channels) == 1
    stream.publish(line("a", 6, 12, "5a"))
    stream.read()
    assert stream.named(ForkBelowStart) == [ForkBelowStart(BlockRef(4, h("4a")), BlockRef(6, h("6a")))]


def test_the_starts_parent_may_be_the_ancestor() -> None:
    stream = Stream()
    stream.publish(line("a", 6, 15, "5a"))
    stream.read()
    announced, content = stream.channel("5a", 5, line("b", 6, 16, "5a", 1))
    stream.write([announced, *content])
    assert stream.read().startswith("-15a-14a-13a-12a-11a-?10a-?9a-?8a-?7a-?6a+6b")


SILENT = f"nothing came on it for {THRESHOLD} blocks, and no attempt is complete"


@pytest.mark.parametrize(
    ("ancestor", "last", "count", "reason"),
    [
        pytest.param("6a", 10, None, "its chain did not become the heavier one", id="lighter"),
        pytest.param("6z", 20, None, "its ancestor is not part of the delivered chain", id="another chain"),
        pytest.param("6a", 20, 3, SILENT, id="silent"),
        pytest.param("6a", 20, 0, SILENT, id="without a topic"),
    ],
)
def test_a_channel_that_comes_to_nothing_is_abandoned(ancestor: str, last: int, count: int | None, reason: str) -> None:
    stream = Stream()
    deep(stream)
    announced, content = stream.channel(ancestor, 6, line("b", 7, last, ancestor))
    stream.write([announced, *content[:count]])
    assert stream.read() == ""
    assert len(stream.follower.channels) == 1
    stream.publish(line("a", 13, 13 + THRESHOLD, "12a"))
    stream.read()
    stream.read()
    assert stream.named(ReorgAbandoned) == [ReorgAbandoned(BlockRef(6, h(ancestor)), reason)]
    assert stream.follower.channels == ()
    assert not stream.follower.orderer.holds(h("7b"))
    if reason == SILENT:
        stream.write(content[count:])
        assert stream.read() == "", "nobody reads it any more"
        stream.write([announced])
        assert stream.read().endswith("+20b"), "another announcement opens it again"


def test_an_ancestor_that_the_chain_has_not_come_to_is_waited_for() -> None:
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("14a", 14, line("b", 15, 20, "14a", 9))
    stream.write([announced, *content])
    assert stream.read() == ""
    stream.publish(line("a", 13, 14, "12a"))
    assert stream.read() == "+13a+14a +15b+16b+17b+18b+19b+20b"


def test_a_channel_that_was_not_read_to_its_end_is_not_abandoned() -> None:
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("6a", 6, line("b", 7, 20, "6a"))
    stream.write([announced, *content])
    follower = stream.follower
    main = [place for place in stream.partitions if place[0] in WIDTH]

    def read_main() -> Step:
        """Everything of the main topics, and nothing of the channel."""
        records = [record for place in main for record in stream.partitions[place][stream.at[place] :]]
        ends = stream.ends()
        stream.at |= {place: ends[place] for place in main}
        channels = {(topic, 0): 0 for topic in follower.channels}
        return follower.step(records, stream.at | channels, ends)

    read_main()
    (topic,) = follower.channels
    stream.publish(line("a", 13, 13 + THRESHOLD, "12a"))
    step = read_main()
    assert step.requests.watermarks
    for reports in (step.reports, read_main().reports):
        assert not any(isinstance(event, ReorgAbandoned) for event in reports)
    (update,) = follower.step(stream.partitions[topic, 0], stream.ends()).updates
    assert shape(update).endswith("+20b")


def test_finality_withholds_a_deep_switch_too() -> None:
    marks = {h("12a"): Finality(None, 5)}
    for policy, seen in ((OnFinalityViolation.HALT, ""), (OnFinalityViolation.FOLLOW, "+13b")):
        stream = Stream(finality_of=lambda item: marks.get(item.hash), on_finality_violation=policy)
        deep(stream)
        announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
        stream.write([announced, *content])
        assert stream.read().endswith(seen)
        assert stream.named(FinalityViolated) == [FinalityViolated(BlockRef(13, h("13b")), 5)]
        assert (stream.follower.orderer.head == BlockRef(12, h("12a"))) is (seen == "")


def test_a_stream_that_finality_halted_continues_when_it_is_restarted_to_follow() -> None:
    marks = {h("12a"): Finality(None, 5)}
    stream = Stream(finality_of=lambda item: marks.get(item.hash))
    deep(stream)
    announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced, *content])
    assert stream.read() == ""
    cursor = Cursor.parse(str(stream.follower.cursor()))
    assert cursor.violation == FinalityViolated(BlockRef(13, h("13b")), 5)
    stream.restart(finality_of=lambda item: marks.get(item.hash))
    assert stream.read() == ""
    assert stream.follower.orderer.violation == cursor.violation
    stream.restart(finality_of=lambda item: marks.get(item.hash), on_finality_violation=OnFinalityViolation.FOLLOW)
    assert stream.read().endswith("+13b")


def test_the_whitelist_and_the_numbers_hold_in_a_channel() -> None:
    stream = Stream(whitelist={8: h("8a")})
    deep(stream)
    announced, content = stream.channel("6a", 6, line("b", 7, 20, "6a"))
    stream.write([announced, *content])
    assert stream.read() == ""
    assert stream.follower.orderer.state_of(h("7b")) == "on a side branch"
    assert stream.follower.orderer.state_of(h("9b")) == "refused: it descends from a refused block"


def test_what_is_no_message_of_its_channel_is_rejected() -> None:
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("6a", 6, line("b", 7, 20, "6a"))
    topic = content[0].topic
    stream.write([announced, Routed(topic, *encode(ReorgComplete(h("5a"), 5))), Routed(topic, b"\x05short", b"")])
    stream.read()
    assert [event.reason for event in stream.named(Rejected)][:1] == ["it names another ancestor than its channel"]  # type: ignore[attr-defined]
    assert len(stream.named(Rejected)) == 2


def test_only_the_default_topic_announces_and_not_too_many() -> None:
    stream = Stream()
    deep(stream)
    announced = [stream.channel("6a", 6, [])[0], *(stream.channel(f"{n}z", n, [])[0] for n in range(1, 17))]
    stream.write([announced[0]._replace(topic="tx")])
    stream.read()
    assert stream.follower.channels == ()
    stream.write(announced)
    stream.read()
    assert len(stream.follower.channels) == CHANNELS_MAX
    assert stream.named(ReorgAbandoned) == [
        ReorgAbandoned(stream.named(ReorgAbandoned)[0].ancestor, "16 newer reorg channels are open")  # type: ignore[attr-defined]
    ]
    assert len(str(stream.follower.cursor())) < 12_000


def test_without_a_default_topic_there_are_no_channels() -> None:
    follower = Follower(FollowerSettings("test", "test:1", prefixes=tuple(SCHEMA)))
    announced, _ = Stream().channel("6a", 6, line("b", 7, 9, "6a"))
    step = follower.step([Record(TOPIC, 0, 0, *announced[1:])], {(TOPIC, 0): 1})
    assert [type(event) for event in step.items] == [ReorgBegan]
    assert step.requests.channels == ()
    assert step.requests.history is None


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [(5, "it holds more blocks than allowed"), (1, "its messages name more blocks than allowed")],
)
def test_a_channel_that_holds_too_much_is_abandoned(blocks: int, reason: str) -> None:
    stream = Stream()
    deep(stream)
    channels = stream.follower._channels
    channels._settings = replace(channels._settings, history=blocks)
    announced, content = stream.channel("6a", 6, line("b", 7, 20, "6a"))
    stream.write([announced, *content])
    assert stream.read() == ""
    assert stream.named(ReorgAbandoned) == [ReorgAbandoned(BlockRef(6, h("6a")), reason)]


def test_a_channel_on_which_ever_more_producers_begin_is_abandoned() -> None:
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("6a", 6, line("b", 7, 20, "6a"))
    stream.write([announced])
    assert stream.read() == ""
    (channel,) = stream.follower._channels._channels.values()
    for number in range(1_000):
        stream.write(content[:1], producer=str(number))
    assert stream.read() == ""
    assert len(channel.attempts) <= 65
    why = "it has more attempts in flight than allowed"
    assert stream.named(ReorgAbandoned) == [ReorgAbandoned(BlockRef(6, h("6a")), why)]


def test_of_channels_that_hold_too_much_together_the_largest_is_abandoned() -> None:
    stream = Stream()
    deep(stream)
    small, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    large, flood = stream.channel("2a", 2, line("c", 3, 40, "2a", 1))
    stream.write([small, *content[:-1]])
    assert stream.read() == ""
    channels = stream.follower._channels
    ours = next(iter(channels._channels.values())).size
    channels._settings = replace(channels._settings, max_bytes=3 * ours)
    stream.write([large, *flood[:-1]])
    assert stream.read() == ""
    why = "reorg channels are over their common bound, and it holds the most"
    assert stream.named(ReorgAbandoned) == [ReorgAbandoned(BlockRef(2, h("2a")), why)]
    stream.write(content[-1:])
    assert stream.read().endswith("+12b+13b")


def test_records_of_a_channel_that_is_not_open_are_skipped() -> None:
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("6a", 6, line("b", 7, 20, "6a"))
    stream.write([announced])
    stream.read()
    other = Record(reorg_topic(TOPIC, h("9a")), 0, 0, *content[0][1:])
    assert stream.follower.step([other], {**stream.at, other[:2]: 1}).items == []


def test_an_attempt_whose_blocks_are_not_all_complete_ends_where_they_are() -> None:
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("6a", 6, line("b", 7, 20, "6a"))
    lost = next(index for index, message in enumerate(content) if message.key[1:33] == h("15b"))
    stream.write([announced, *content[:lost], *content[lost + 1 :]])
    assert stream.read().endswith("+13b+14b")


def test_a_forgotten_chain_is_the_reason_why_a_channel_is_abandoned() -> None:
    stream = Stream()
    deep(stream)
    stream.restart()
    stream.read()
    announced, content = stream.channel("2a", 2, line("b", 3, 13, "2a", 1))
    recall = stream.follower.recall
    stream.follower.recall = lambda _parents: Step((), Requests())  # type: ignore[method-assign] # a driver that is at it
    stream.write([announced, *content])
    stream.read(steps=20)
    stream.publish(line("a", 13, 13 + THRESHOLD, "12a"))
    assert stream.read(steps=20).startswith("+13a")
    assert stream.named(ReorgAbandoned) == [], "it may still be found"
    stream.follower.recall = lambda _parents: recall({})  # type: ignore[method-assign] # there is nothing
    assert stream.read(steps=20) == ""
    stream.publish(line("a", 14 + THRESHOLD, 14 + 2 * THRESHOLD, f"{13 + THRESHOLD}a"))
    stream.read(steps=20)
    (event,) = stream.named(ReorgAbandoned)
    assert isinstance(event, ReorgAbandoned)
    assert event.reason == "its ancestor is below the remembered part of the delivered chain"


@pytest.mark.parametrize("places", [(64,), (0, 64), (64, 1000)])
def test_a_channel_is_followed_in_whatever_place_it_lies(places: tuple[int, ...]) -> None:
    """Old and new cluster read as one: the channel is where the producer writes, in one of them or in each."""
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced])
    for place in places:
        stream.write(content, "one", place)
    assert stream.read(step=3).endswith("+12b+13b")
    assert stream.named(Rejected) == []
    assert len(stream.named(ReorgEnded)) == len(places), "it is read to the end in all of them"
    assert stream.follower.channels == ()


@pytest.mark.parametrize("seed", range(1, 40))
def test_what_one_producer_sends_to_two_places_is_two_attempts(seed: int) -> None:
    """Nothing says which is read first: that it begins in one is no new beginning in the other."""
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced])
    stream.write(content, "one", 0)
    stream.write(content[: seed % len(content)], "one", 64)  # ... and there it died
    assert stream.read(step=6, seed=seed).endswith("+12b+13b")
    assert stream.follower.channels != (), "nobody knows that"
    stream.publish(line("b", 14, 20, "13b", 1))
    stream.read()
    stream.read()
    assert stream.follower.channels == ()
    assert stream.named(ReorgAbandoned) == []


@pytest.mark.parametrize("cut", range(0, 42, 6))
@pytest.mark.parametrize("first", [0, 64])
def test_a_restart_within_a_channel_of_two_places_continues(first: int, cut: int) -> None:
    """Each has a part of it when the cursor is made, and the floors hold both."""
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced])
    stream.write(content[:cut], "one", 64 - first)
    stream.write(content[: cut // 2], "one", first)
    stream.read(step=3)
    (topic,) = stream.follower.channels
    assert {number for name, number in stream.follower.cursor().next if name == topic} == (
        {0, 64} if cut > 1 else {64 - first} if cut else set()
    )
    stream.restart()
    stream.publish(line("a", 13, 13, "12a"))
    stream.read(step=5)
    stream.restart()
    stream.write(content[cut // 2 :], "one", first)
    removed = "-13a-12a-11a-10a-9a-?8a-?7a-?6a-?5a-?4a"
    assert stream.read(step=4) == removed + "+4b+5b+6b+7b+8b+9b+10b+11b+12b+13b"
    stream.restart()
    stream.publish(line("b", 14, 16, "13b", 1))
    assert stream.read().replace(" ", "") == "+14b+15b+16b"


def test_cursors_of_one_step_reach_down_to_channels_that_the_step_is_done_with_in_every_place() -> None:
    """The update before the switch still needs the channel, whose chain the same step delivers."""
    stream = Stream()
    deep(stream)
    announced, content = stream.channel("3a", 3, line("b", 4, 14, "3a", 1))
    stream.write([announced])
    *parts, batch = messages(line("a", 13, 13, "12a")[0])
    stream.write(parts)
    stream.write(content[:-1], "one", 64)
    assert stream.read() == ""
    stream.write([batch])
    stream.write(content[-1:], "one", 64)
    stream.read()
    before, switch = stream.updates[-2:]
    assert shape(before) == "+13a"
    assert shape(switch).endswith("+13b+14b")
    (where,) = (place for place in stream.partitions if place[0] not in WIDTH)
    assert before.cursor.floor[where] == 0
    stream.restart(before.cursor)
    assert stream.read() == shape(switch)


def test_the_ring_continues_with_older_blocks_after_a_reorg_to_a_shorter_chain() -> None:
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
    assert alone.channels == ()


def test_records_of_other_topics_pass_a_follower_with_open_channels() -> None:
    stream = Stream()
    stream.publish([block("0r", "none", 0), *line("a", 1, 5, "0r")])
    stream.write([stream.channel("3a", 3, line("b", 4, 6, "3a", 1))[0]])
    stream.read()
    step = stream.follower.step([Record("else", 0, 0, b"\xff", b"")], stream.ends())
    assert [type(event) for event in step.items] == [Rejected]
