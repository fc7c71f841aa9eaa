"""The floors of cursors: low enough for whatever a resumed stream needs, and no lower for long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cardinal.protocols.streams import BlockRef, Cursor, Incomplete, Overflow, Payload, Quarantined, Stale
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.following.settings import OnIncomplete
from channels import THRESHOLD, Stream, called, line, shape
from streams import TOPIC, block, h, messages

ROOT = BlockRef(0, h("0r"))
QUORUM = {"policy": "quorum:2", "producers": ("a", "b")}
OPEN_MAX = 64
"""Open blocks that a cursor names."""


def delivered(stream: Stream) -> str:
    return "".join(map(shape, stream.updates))


def reaches(stream: Stream, cursor: Cursor, *names: str) -> bool:
    """Whether a reading from these floors on finds every message of these blocks."""
    return all(
        record.offset >= cursor.floor[place]
        for place, records in stream.partitions.items()
        for record in records
        if called(record.key[1:33]) in names
    )


# --- side branches -----------------------------------------------------------------------------------------


def branched(last: int) -> Stream:
    """A chain `0r 1a …`, and a lighter branch `3b 4b 5b 6b` on 2a."""
    stream = Stream()
    below = [block("0r", "none", 0), *line("a", 1, 2, "0r", 1)]
    stream.publish([*below, *line("b", 3, 6, "2a"), *line("a", 3, 6, "2a", 1)])
    stream.read()
    stream.publish(line("a", 7, last, "6a", 1))
    stream.read()
    return stream


def test_a_branch_is_needed_while_its_root_is_above_the_threshold() -> None:
    stream = branched(6)
    assert stream.follower.orderer.holds(h("6b"))
    assert reaches(stream, stream.follower.cursor(), "3b", "4b", "5b", "6b")
    stream.restart()
    stream.publish(line("b", 7, 9, "6b", 5))
    assert stream.read() == "-6a-5a-4a-3a+3b+4b+5b+6b+7b+8b+9b"


def test_a_branch_that_is_pruned_is_not_needed_though_its_blocks_lie_above_the_threshold() -> None:
    stream = branched(7)
    cursor = stream.follower.cursor()
    assert cursor.ring[-1].number == 7 - THRESHOLD
    assert not stream.follower.orderer.holds(h("6b"))
    assert not reaches(stream, cursor, "3b", "4b", "5b", "6b")


def test_an_older_cursor_still_needs_the_branch_whenever_its_text_is_made() -> None:
    stream = branched(9)
    before = next(update for update in stream.updates if update.added[-1].number == 6)
    stream.restart(before.cursor)
    stream.publish(line("b", 7, 19, "6b", 5))
    assert stream.read().endswith("+19b")


def test_what_is_read_again_of_a_branch_that_was_pruned_is_not_quarantined() -> None:
    stream = branched(7)
    stream.restart()
    # The floors lie above the branch's transactions; its Batches are read again all the same.
    stream.at = {place: 0 if place[0] == TOPIC else at for place, at in stream.at.items()}
    stream.read()
    stream.publish(line("a", 8, 20, "7a", 1))
    assert stream.read().endswith("+20a")
    assert stream.named(Quarantined) == []


# --- chains that become shorter ----------------------------------------------------------------------------


def test_where_a_lower_head_reaches_farther_down_pruned_blocks_are_named_as_missing() -> None:
    """17a's chain is long, and part of it is pruned; 15b is heavier, and a threshold above 11a."""
    stream = Stream()
    below = [block("0r", "none", 0), *line("a", 1, 14, "0r", 1)]
    for payload in [*below, *line("a", 15, 17, "14a", 1)]:
        stream.publish([payload])
        stream.read()
    stream.publish(line("b", 15, 15, "14a", 9))
    assert stream.read() == "-17a-16a-15a+15b"
    cursor = stream.follower.cursor()
    assert [ref.number for ref in cursor.ring] == [15, 14, 13, 12, 11]
    assert cursor.missing == {h("11a"), h("12a")}
    assert reaches(stream, cursor, "13a")
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
    stream.at = {place: 0 if place[0] == TOPIC else at for place, at in stream.at.items()}
    stream.read()
    stream.publish(line("c", 13, 30, "12b", 100))
    assert stream.read().endswith("+30c")
    assert stream.named(Quarantined) == []


def test_blocks_that_were_complete_long_before_the_head_came_there_are_not_waited_for() -> None:
    """One message of 5a and of 12a comes when a hundred blocks above them are complete."""
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
    assert stream.follower.cursor().ring[-1].number == 11 - THRESHOLD
    stream.write(late[1][:1])
    assert stream.read().endswith("+110a")
    assert stream.named(Quarantined) == []


# --- parts of old blocks that are read again ---------------------------------------------------------------


def left_far_behind(policy: str = "first", producers: tuple[str, ...] = ("",), *, opened: int = 0) -> Stream:
    """A chain to 30a, of which a channel leaves at 10a for 12b, and 15b: twenty blocks are pruned.

    A block that nothing leads to came beside 15a and waits: its Batch pins the partition of Batches from there on. So
    the Batches of the pruned blocks are read again, and their transactions are not.
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
    for number in range(opened):  # content without a Batch
        stream.write(messages(block(f"{number}o", "none"))[:1])
    stream.read()
    stream.restart()
    publish(line("b", 16, 16, "15b", 100))
    stream.restart()
    publish(line("b", 17, 60, "16b", 100))
    assert stream.updates[-1].added[-1].number == 60
    return stream


@pytest.mark.parametrize("opened", [0, OPEN_MAX])
@pytest.mark.parametrize(("policy", "producers"), [("first", ("",)), ("quorum:2", ("x", "y"))])
def test_what_is_read_again_in_parts_after_a_deep_reorg_is_stale_and_not_quarantined(
    policy: str, producers: tuple[str, ...], opened: int
) -> None:
    """However many blocks are open: a cursor names some of them."""
    stream = left_far_behind(policy, producers, opened=opened)
    assert stream.named(Quarantined) == []
    stale = {called(event.block.hash) for event in stream.events if isinstance(event, Stale)}
    assert len({name for name in stale if name.endswith("a")}) > 1
    reported = {called(event.explanation.block) for event in stream.events if isinstance(event, Incomplete)}
    assert opened or not {name for name in reported if name.endswith("a")}


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
    assert len(stream.follower.cursor().open) == OPEN_MAX
    stream.restart()
    stream.read()
    publish(line("a", 61, 70, "60a"))
    assert stream.updates[-1].added[-1].number == 70
    stale = {called(event.block.hash) for event in stream.events if isinstance(event, Stale)}
    assert {"10a", "20a", "40a"} <= stale
    assert stream.named(Quarantined) == []


# --- evicted blocks ----------------------------------------------------------------------------------------


def sparse(number: int, *, logs: bool = False) -> Payload:
    """A block of the chain; hardly any has logs, so that their partitions stand still."""
    updates = {f"b/{number}a/t/0": b"x"} | ({f"b/{number}a/l/0": b"y"} if logs else {})
    return Payload(number, h(f"{number}a"), h(f"{number - 1}a" if number > 1 else "0r"), number, updates)


def write(stream: Stream, payload: Payload, *topics: str) -> None:
    """Every producer writes what of a block belongs to these topics, all of it without."""
    for producer in stream.options.get("producers", ("",)):  # type: ignore[attr-defined] # of strings
        stream.write([one for one in messages(payload) if not topics or one.topic in topics], producer)


def evicted(stream: Stream) -> set[bytes]:
    return {event.block for event in stream.events if isinstance(event, Overflow)}


@pytest.mark.parametrize("policy", [{}, QUORUM], ids=["first", "quorum"])
@pytest.mark.parametrize("late", [False, True])
def test_the_content_of_an_evicted_block_is_found_after_a_restart(policy: dict[str, object], *, late: bool) -> None:
    """Its log lies in a partition in which nothing else needs anything; it may come after the block was evicted."""
    stream = Stream(start=ROOT, bounds=Bounds(open_blocks=8 if not policy else 16), **policy)
    write(stream, sparse(1, logs=True))
    stream.read()
    write(stream, sparse(2, logs=True), *(("tx",) if late else ("tx", "logs")))
    for number in range(3, 20):
        write(stream, sparse(number), "tx")
    stream.read()
    assert h("2a") in evicted(stream)
    if late:
        write(stream, sparse(2, logs=True), "logs")
        stream.read()
    assert reaches(stream, stream.follower.cursor(), "2a")
    stream.restart()
    for number in range(2, 20):
        write(stream, sparse(number, logs=number == 2), TOPIC)
    for _ in range(4):
        stream.read()
        stream.rest()
    assert delivered(stream) == "".join(f"+{number}a" for number in range(1, 20))


def test_the_content_of_an_evicted_waiting_block_is_found_after_a_restart() -> None:
    stream = Stream(start=ROOT, max_waiting=1)
    write(stream, sparse(4, logs=True))
    write(stream, sparse(3))
    stream.read()
    assert evicted(stream) == {h("4a")}
    write(stream, sparse(1))
    stream.read()
    stream.restart()
    write(stream, sparse(2))
    stream.read()
    assert delivered(stream) == "+1a+2a+3a+4a"


def test_an_evicted_waiting_block_holds_nothing_back_once_the_chain_is_past_it() -> None:
    stream = Stream(start=ROOT, max_waiting=1)
    write(stream, Payload(5, h("5z"), h("4z"), 1, {"b/5z/l/0": b"x"}))
    (place,) = [place for place, records in stream.partitions.items() if place[0] == "logs" and records]
    write(stream, sparse(3))
    stream.read()
    assert evicted(stream) == {h("5z")}
    assert stream.follower.cursor().floor[place] == 0
    for number in (1, 2, *range(4, 12)):
        write(stream, sparse(number))
        stream.read()
    assert stream.follower.cursor().floor[place] == 1


@pytest.mark.parametrize("distance", [50, 200])
def test_what_was_evicted_and_never_completed_holds_no_cursor_back_forever(distance: int) -> None:
    """Somebody left blocks half written, and no Batch of them will come."""
    stream = Stream(start=ROOT, bounds=Bounds(open_blocks=8, headless_distance=distance))
    write(stream, sparse(1))
    for index in range(20):
        stream.write(messages(block(f"900y{index}", "none", 1))[:1])
    stream.read()
    places = [place for place, records in stream.partitions.items() if place[0] in {"logs", "tx"} and records]
    floor = stream.follower.cursor().floor
    assert any(floor[place] == 0 for place in places)
    for number in range(2, 400):
        write(stream, sparse(number))
        stream.read()
    floor, ends = stream.follower.cursor().floor, stream.ends()
    assert delivered(stream).endswith("+399a")
    assert all(ends[place] - floor[place] <= distance for place in ends)
    assert all(floor[place] > 0 for place in places)
