"""A stream that lies in two places, one of which is switched off: what a cursor says to that.

The second place has the same topics under numbers from 64 on, as a mux shows the partitions of its second member.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from cardinal.errors import CursorExpiredError
from cardinal.protocols.streams import Cursor, Follower, Payload, Record, reorg_topic
from cardinal.protocols.streams.types import Partition
from channels import THRESHOLD, Stream, line, settings
from streams import TOPIC, WIDTH, h, messages

OLD, NEW = 0, 64


def publish(stream: Stream, first: int, blocks: Sequence[Payload]) -> None:
    """Write blocks to the place whose partitions have numbers from ``first`` on."""
    for payload in blocks:
        for message in messages(payload):
            place = (message.topic, first + sum(message.key) % WIDTH[message.topic])
            records = stream.partitions.setdefault(place, [])
            records.append(Record(*place, len(records), message.key, message.value, 0, ()))


def two_places(old: int, new: int, *, first: int = OLD) -> Stream:
    """Blocks up to ``old`` in the place of numbers from ``first`` on, the next ones up to ``new`` in the other."""
    stream = Stream()
    stream.partitions |= {(topic, NEW + number): [] for topic, number in stream.partitions}
    stream.at = dict.fromkeys(stream.partitions, 0)
    publish(stream, first, line("a", 1, old, "0a"))
    stream.read()
    publish(stream, NEW - first, line("a", old + 1, new, f"{old}a"))
    stream.read()
    return stream


def switch_off(stream: Stream, first: int) -> None:
    for place in [place for place in stream.partitions if place[1] // NEW == first // NEW]:
        del stream.partitions[place]


def marks(stream: Stream) -> dict[Partition, tuple[int, int]]:
    return {place: (0, len(records)) for place, records in stream.partitions.items()}


@pytest.mark.parametrize("first", [OLD, NEW])
def test_a_place_of_which_nothing_is_needed_may_go(first: int) -> None:
    """Whichever it is: the numbers say nothing about which was there before."""
    stream = two_places(10, 10 + 2 * THRESHOLD, first=first)
    head = 10 + 2 * THRESHOLD
    switch_off(stream, first)
    stream.restart()
    publish(stream, NEW - first, line("a", head + 1, head + 3, f"{head}a"))
    assert stream.read() == "".join(f"+{number}a" for number in range(head + 1, head + 4))
    assert stream.updates[-1].seq == head + 3
    better = line("b", head, head + 5, f"{head - 1}a", 2)
    publish(stream, NEW - first, better)
    assert stream.read().startswith(f"-{head + 3}a-{head + 2}a-{head + 1}a-{head}a+{head}b"), "nothing is lacking"


def test_a_block_that_is_not_complete_keeps_its_place() -> None:
    stream = two_places(10, 10)
    place = (TOPIC, OLD)
    batch = messages(line("x", 11, 11, "10a")[0])[-1]
    at = len(stream.partitions[place])
    stream.partitions[place].append(Record(*place, at, batch.key, batch.value, 0, ()))
    publish(stream, NEW, line("a", 11, 11 + THRESHOLD, "10a"))
    stream.read()
    kept = dict(stream.partitions)
    switch_off(stream, OLD)
    with pytest.raises(CursorExpiredError, match=r"missing from blocks\[0\]") as caught:
        stream.restart()
    assert caught.value.missing == {place: (at, at + 1)}
    stream.partitions = kept
    stream.restart()


def test_what_was_not_read_of_a_place_that_is_gone_is_waited_for_and_not_skipped() -> None:
    """It was switched off before everything of it was read: only the missing block's children show that."""
    stream = two_places(10, 10 + 2 * THRESHOLD)
    head = 10 + 2 * THRESHOLD
    switch_off(stream, OLD)  # ... with block head + 1 in it, unread
    stream.restart()
    publish(stream, NEW, line("a", head + 2, head + 5, f"{head + 1}a"))
    assert stream.read() == ""
    publish(stream, NEW, line("a", head + 1, head + 1, f"{head}a"))
    assert stream.read() == "".join(f"+{number}a" for number in range(head + 1, head + 6))


def test_one_partition_of_which_nothing_is_needed_may_go_and_one_that_is_needed_may_not() -> None:
    """Numbers of partitions say nothing about places: each is judged alone."""
    stream = two_places(10, 10 + 2 * THRESHOLD)
    cursor = Cursor.parse(str(stream.follower.cursor()))
    there = marks(stream)
    for gone in sorted(cursor.next):
        left = {place: mark for place, mark in there.items() if place != gone}
        if cursor.floor[gone] == cursor.next[gone]:
            begin = Follower(settings(), cursor).begin_at(left)
            assert begin == {place: at for place, at in cursor.floor.items() if place != gone}
        else:
            with pytest.raises(CursorExpiredError) as caught:
                Follower(settings(), cursor).begin_at(left)
            assert caught.value.missing == {gone: (cursor.floor[gone], cursor.next[gone])}
    assert {cursor.floor[place] < cursor.next[place] for place in cursor.next} == {False, True}


def test_a_place_cannot_go_with_a_topic_that_is_nowhere_else() -> None:
    stream = two_places(10, 10 + 2 * THRESHOLD)
    follower = Follower(settings(), Cursor.parse(str(stream.follower.cursor())))
    there = {place: mark for place, mark in marks(stream).items() if place[1] >= NEW and place[0] != "tx"}
    with pytest.raises(CursorExpiredError, match="are missing from"):
        follower.begin_at(there)


@pytest.mark.parametrize("number", [OLD, NEW])
def test_a_reorg_channel_keeps_no_place_here(number: int) -> None:
    """A channel has one partition in each place; it may go, and says nothing about the others."""
    stream = two_places(10, 10 + 2 * THRESHOLD)
    cursor = stream.follower.cursor()
    channel = (reorg_topic(TOPIC, h("9a")), number)
    here = {place: mark for place, mark in marks(stream).items() if place[1] >= NEW}
    begin = Follower(settings(), cursor).begin_at(here | {channel: (0, 3)})
    assert begin[channel] == 0
    assert {place: at for place, at in begin.items() if place != channel} == {
        place: at for place, at in cursor.floor.items() if place[1] >= NEW
    }


@pytest.mark.slow
def test_places_that_come_and_go_at_random_never_cost_a_block() -> None:
    """One place after another: each may be left out exactly when the cursor says that nothing of it is needed."""
    outcomes = [outcome for seed in range(40) for outcome in _come_and_go(random.Random(seed))]
    assert min(outcomes.count("let go"), outcomes.count("refused")) > 20


def _come_and_go(rng: random.Random) -> list[str]:
    stream, number, place, outcomes = Stream(), 0, 0, []
    for _ in range(12):
        length = rng.randint(1, 2 * THRESHOLD)
        publish(stream, NEW * place, line("a", number + 1, number + length, f"{number}a"))
        number += length
        stream.read(step=rng.randint(1, 30), seed=rng.randint(1, 9999))
        stream.read()
        if rng.random() < 0.5:
            place += 1
            stream.partitions |= {
                (topic, NEW * place + part): [] for topic, width in WIDTH.items() for part in range(width)
            }
        cursor, kept = stream.follower.cursor(), dict(stream.partitions)
        if place:  # the newest one is written to
            switch_off(stream, NEW * rng.randrange(place))
        gone = cursor.next.keys() - stream.partitions.keys()
        try:
            stream.restart(cursor)
            assert all(cursor.floor[where] == cursor.next[where] for where in gone)
            outcomes += ["let go"] * bool(gone)
        except CursorExpiredError:
            assert any(cursor.floor[where] < cursor.next[where] for where in gone)
            outcomes.append("refused")
            stream.partitions = kept
            stream.restart(cursor)
    assert [block.number for update in stream.updates for block in update.added] == list(range(1, number + 1))
    return outcomes


def test_partitions_that_were_let_go_are_named_by_no_later_cursor() -> None:
    """Another place may have their numbers then; it is read from its beginning."""
    stream = two_places(10, 10 + 2 * THRESHOLD)
    head = 10 + 2 * THRESHOLD
    switch_off(stream, OLD)
    stream.restart()
    during = stream.follower.cursor()
    assert {number // NEW for _, number in during.next} == {1}, "before anything is read"
    assert during.floor.keys() == during.next.keys()
    stream.read()
    stream.partitions |= {(topic, part): [] for topic, width in WIDTH.items() for part in range(width)}
    publish(stream, OLD, line("a", head + 1, head + 2, f"{head}a"))
    stream.restart()
    assert {stream.at[place] for place in stream.at if place[1] < NEW} == {0}
    assert stream.read() == f"+{head + 1}a+{head + 2}a"
