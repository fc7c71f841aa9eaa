"""What schedules of the model found in ordering and in cursors: one case each, as small as it can be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cardinal.protocols.streams import BlockRef, ChainUpdate, Cursor, Follower, ForkBelowStart, Orderer, Payload
from cardinal.protocols.streams.events import Superseded
from cardinal.protocols.streams.ordering.orderer import OrderingSettings
from channels import THRESHOLD, Stream, line, settings, shape
from streams import Log, block, cursor_at, h, messages


def header(name_: str, parent: str, weight: int) -> Payload:
    return Payload(int(name_[:-1]), h(name_), h(parent), weight)


def feed(orderer: Orderer, *blocks: Payload) -> str:
    return " ".join(shape(update) for payload in blocks for update in orderer.receive(payload))


def started(*ring: BlockRef, root: str = "", blocks: Sequence[Payload] = ()) -> Orderer:
    """Resumed where the ring's last block is the start that was chosen."""
    orderer = Orderer(reorg_threshold=8)
    assert (
        orderer.restore(cursor_at(ring, ring[0].number, len(ring), ring[-1], root=h(root) if root else b""), blocks)
        == []
    )
    return orderer


# --- the start and what is below it ------------------------------------------------------------------------


def test_the_parent_of_a_start_that_its_sibling_replaced_stays_a_fork_point_after_a_resume() -> None:
    orderer = Orderer(reorg_threshold=8)
    assert orderer.restore(cursor_at([BlockRef(1, h("1a"))], 5, 3, BlockRef(1, h("1b"))), [header("1a", "0g", 5)]) == []
    assert feed(orderer, header("1c", "0g", 6)) == "-1a+1c"


def test_the_start_is_replaced_after_a_resume_also_where_its_content_cannot_be_read_again() -> None:
    orderer = started(BlockRef(2, h("2a")), root="1g")
    assert feed(orderer, header("2b", "1g", 3)) == "-?2a+2b"
    assert feed(orderer, header("3a", "2a", 4)) == "-2b+?2a+3a"


def test_the_parent_of_a_given_start_that_was_replaced_stays_a_fork_point_after_a_resume() -> None:
    orderer = Orderer(BlockRef(2, h("2a")), 2, reorg_threshold=8)
    assert orderer.restore(cursor_at([BlockRef(2, h("2b"))], 3, 2, BlockRef(2, h("2b")), root=h("1g")), []) == []
    assert feed(orderer, header("2c", "1g", 4)) == "-?2b+2c"


def test_a_content_that_names_another_parent_than_the_cursor_is_refused() -> None:
    orderer = started(BlockRef(2, h("2a")), root="1g", blocks=[header("2a", "1z", 2)])
    assert [type(event).__name__ for event in orderer.take_reports()] == ["Quarantined"]


@pytest.mark.parametrize("last", ["4b", "3b", "2b"])
def test_a_better_chain_below_the_start_is_reported_whichever_of_its_blocks_comes_last(last: str) -> None:
    orderer = Orderer(reorg_threshold=8)
    feed(orderer, header("3a", "2a", 3))
    orderer.caught_up()
    better = [header("5b", "4b", 5), header("4b", "3b", 2), header("3b", "2b", 1), header("2b", "1b", 1)]
    feed(orderer, *(one for one in better if one.hash != h(last)))
    feed(orderer, *(one for one in better if one.hash == h(last)))
    reports = [event for event in orderer.take_reports() if isinstance(event, ForkBelowStart)]
    assert reports == [ForkBelowStart(BlockRef(5, h("5b")), BlockRef(3, h("3a")))]


def test_a_better_chain_below_the_start_is_looked_for_within_a_budget_upwards_too() -> None:
    """Thirty thousand blocks wait above one that comes last: they are not looked through."""
    orderer = Orderer(reorg_threshold=8, settings=OrderingSettings(max_waiting=60_000))
    feed(orderer, header("3a", "2a", 3))
    orderer.caught_up()
    for index in range(30_000):
        orderer.receive(Payload(4, index.to_bytes(32, "little"), h("3b"), 9))
    feed(orderer, header("3b", "2b", 2))
    assert [event for event in orderer.take_reports() if isinstance(event, ForkBelowStart)] == []


def test_a_ring_that_reaches_below_the_given_start_keeps_it_as_what_it_is() -> None:
    orderer = Orderer(BlockRef(2, h("2a")), 2)
    ring = [BlockRef(3, h("3b")), BlockRef(2, h("2a")), BlockRef(1, h("1b"))]
    assert orderer.restore(cursor_at(ring, 3, 3, BlockRef(1, h("1b"))), []) == []
    assert [orderer.history.at(ref.number) for ref in ring] == [ref.hash for ref in ring]
    assert orderer.head == BlockRef(3, h("3b"))
    assert orderer.state_of(h("2a")) == "delivered"


def test_what_stands_below_the_parent_of_a_given_start_becomes_known_when_that_comes_last() -> None:
    orderer = Orderer(BlockRef(2, h("2a")), 2, reorg_threshold=8)
    orderer.receive(header("2a", "1a", 2))
    orderer.receive(header("1b", "0g", 1))
    assert [shape(update) for update in orderer.receive(Payload(2, h("2b"), h("1b"), 9))] == []
    (update,) = orderer.receive(header("1a", "0g", 1))
    assert shape(update) == "-2a-1a+1b+2b"


def test_a_resume_at_the_given_start_itself_goes_on_from_it() -> None:
    orderer = Orderer(BlockRef(0, h("0r")), 0)
    assert orderer.receive(header("0q", "none", 0)) == []
    assert orderer.receive(Payload(0, BlockRef(0, h("0r")).hash, h("none"), 0)) == []
    assert orderer.state_of(BlockRef(0, h("0r")).hash) == "delivered"


def test_a_delivered_block_that_comes_again_after_the_floor_fell_is_a_fork_point_again() -> None:
    orderer = Orderer(BlockRef(0, h("0r")), 0, reorg_threshold=2)
    for payload in line("a", 1, 6, "0r"):
        orderer.receive(payload)
    assert not orderer.holds(h("3a"))
    (update,) = orderer.receive(Payload(5, h("5b"), h("4a"), 50))
    assert shape(update) == "-6a-5a+5b"
    assert orderer.receive(header("3a", "2a", 3)) == []
    (update,) = orderer.receive(Payload(4, h("4c"), h("3a"), 60))
    assert shape(update) == "-5b-4a+4c"


# --- the whitelist -----------------------------------------------------------------------------------------


def test_a_refused_block_takes_nothing_of_the_delivered_chain_with_it() -> None:
    """The start's parent comes so late that it is forgotten, and the whitelist pins another block at its number."""
    orderer = Orderer(reorg_threshold=1, whitelist={1: h("1z")})
    assert feed(orderer, header("2a", "1a", 2), header("3a", "2a", 3)) == "+2a+3a"
    assert feed(orderer, header("1a", "0g", 1)) == ""
    assert [type(event).__name__ for event in orderer.take_reports()] == ["Quarantined"]
    assert feed(orderer, header("3b", "2a", 4), header("4b", "3b", 5)) == "-3a+3b +4b"


# --- cursors of updates ------------------------------------------------------------------------------------


def chain(updates: list[ChainUpdate]) -> list[bytes]:
    blocks: list[bytes] = []
    for update in updates:
        for removed in update.removed:
            assert blocks.pop() == removed.hash
        blocks += [added.hash for added in update.added]
    return blocks


def test_of_many_updates_of_one_step_every_one_can_be_resumed_from() -> None:
    """22a comes first of all; when 30a is the head it is forgotten, but whoever stopped at 10a still needs it."""
    log = Log()
    blocks = line("a", 1, 30, "0r")
    early = blocks.pop(21)
    records = [record for payload in (early, *blocks) for record in log.append(messages(payload))]

    def read(cursor: Cursor | None = None) -> list[ChainUpdate]:
        follower = Follower(settings(start=BlockRef(0, h("0r"))), None if cursor is None else Cursor.parse(str(cursor)))
        began = follower.begin_at({place: (0, end) for place, end in log.ends().items()})
        unread = [record for record in records if record.offset >= began[record[:2]]]
        return follower.step(unread, log.ends(), log.ends()).updates

    updates = read()
    assert len(updates) > 2 * THRESHOLD
    for count in range(1, len(updates) + 1):
        more = read(updates[count - 1].cursor)
        assert not more or more[0].first_seq == updates[count - 1].seq + 1
        assert chain([*updates[:count], *more]) == chain(updates)


def test_a_channel_that_was_won_in_the_same_step_as_an_earlier_update_is_still_followed_from_it() -> None:
    stream = Stream()
    stream.publish([block("0r", "none", 0), *line("a", 1, 12, "0r")])
    stream.read()
    announced, content = stream.channel("3a", 3, line("b", 4, 13, "3a", 1))
    stream.write([announced])
    stream.read()
    stream.publish([header("13a", "12a", 13)])
    stream.write(content)
    stream.updates.clear()
    stream.read()
    assert [shape(update)[:4] for update in stream.updates] == ["+13a", "-13a"]
    first = stream.updates[0]
    again = Stream()
    again.partitions = stream.partitions
    again.restart(first.cursor)
    assert again.read().startswith("-13a-12a-11a-10a")
    assert again.follower.orderer.head == BlockRef(13, h("13b"))


# --- disputed blocks ---------------------------------------------------------------------------------------


def test_a_superseded_block_is_removed_without_content_after_a_resume() -> None:
    """Which of its two Batches can be completed by the deadline depends on the order of reading."""
    stream = Stream(start=BlockRef(0, h("0r")))
    honest = block("1b", "0r", 1, txs=1)
    *content, batch = messages(honest)
    *_, lie = messages(block("1b", "0r", 1, txs=2))
    stream.write([lie, *content, batch])
    stream.publish(line("b", 2, 4, "1b"))
    stream.publish([header(f"{number}x", f"{number - 1}y", 9) for number in range(100, 200)])
    stream.read()
    assert [type(event) for event in stream.events if isinstance(event, Superseded)] == [Superseded]
    assert "".join(shape(update) for update in stream.updates) == "+1b+2b+3b+4b"
    assert stream.updates[-1].cursor.missing == {h("1b")}
    stream.restart()
    stream.publish(line("c", 1, 5, "0r"))
    assert stream.read().startswith("-4b-3b-2b-?1b+1c")


def test_a_block_that_turns_out_disputed_when_it_is_read_again_is_removed_without_content() -> None:
    orderer = Orderer(BlockRef(0, h("0g")), 0)
    assert (
        orderer.restore(cursor_at([BlockRef(1, h("1a"))], 1, 1, missing=frozenset([h("1a")])), [header("1a", "0g", 1)])
        == []
    )
    assert feed(orderer, header("1b", "0g", 2)) == "-?1a+1b"
    assert feed(orderer, header("2a", "1a", 3)) == "-1b+1a+2a"
