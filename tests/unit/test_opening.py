"""What was there when a stream was opened, and is whole, counts until it is delivered or waits no longer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cardinal.protocols.streams import BlockRef, Follower, FollowerSettings, Payload
from streams import SCHEMA, Log, block, chain, h, messages, name

SETTINGS = FollowerSettings("test", "test:1", reorg_threshold=3, prefixes=tuple(SCHEMA), start=BlockRef(0, h("0g")))


def _opened(blocks: Iterable[Payload], settings: FollowerSettings = SETTINGS, *, cut: str = "") -> tuple[Log, Follower]:
    """A follower that has read everything; of the block ``cut`` only the Batch is there."""
    log, follower = Log(), Follower(settings)
    for one in blocks:
        found = messages(one)
        follower.receive(log.append(found[-1:] if one.hash == h(cut) else found))
    assert not follower.opening.is_read
    _step(log, follower)
    assert follower.opening.is_read
    return log, follower


def _step(log: Log, follower: Follower, *blocks: Payload) -> None:
    follower.receive(log.append(message for one in blocks for message in messages(one)))
    for _ in range(2):
        follower.progress(log.ends(), log.ends())


def _head(follower: Follower) -> str:
    assert follower.orderer.head is not None
    return name(follower.orderer.head.hash)


def test_blocks_that_wait_for_their_parent_at_the_end_are_left() -> None:
    log, follower = _opened(chain("1a 2a 3a 4a 5a"), cut="3a")
    assert _head(follower) == "2a"
    assert follower.opening.leaves_blocks
    _step(log, follower, block("3a", "2a"))
    assert _head(follower) == "5a"
    assert not follower.opening.leaves_blocks


def test_blocks_that_come_later_and_wait_are_not_left() -> None:
    log, follower = _opened(chain("1a 2a"))
    assert not follower.opening.leaves_blocks
    _step(log, follower, block("4a", "3a"), block("5a", "4a"))
    assert follower.orderer.waits(h("5a"))
    assert not follower.opening.leaves_blocks


def test_newer_ends_are_another_opening() -> None:
    """The driver looks again how far the stream goes when the first Batch comes."""
    log, follower = _opened([])
    assert not follower.opening.leaves_blocks
    follower.not_caught_up()
    assert not follower.opening.is_read
    _step(log, follower, block("1a", "0g"), block("3a", "2a"))
    assert follower.opening.is_read
    assert follower.opening.leaves_blocks


def test_a_side_branch_without_its_parent_is_left_only_while_it_stands_above_the_head() -> None:
    log, follower = _opened([*chain("1a 2a 3a"), block("5x", "4x"), block("3x", "2x")])
    assert _head(follower) == "3a"
    assert follower.opening.leaves_blocks
    _step(log, follower, block("4a", "3a"))
    assert follower.opening.leaves_blocks
    _step(log, follower, block("5a", "4a"))
    assert not follower.opening.leaves_blocks
    assert follower.orderer.waits(h("5x"))


def test_a_side_branch_without_its_parent_below_the_head_is_never_left() -> None:
    _, follower = _opened([*chain("1a 2a 3a"), block("3x", "2x")])
    assert follower.orderer.waits(h("3x"))
    assert not follower.opening.leaves_blocks


def test_what_stands_on_a_block_that_is_passed_over_is_left_no_longer() -> None:
    log, follower = _opened(chain("1a 2a 3a 4a 5a"), cut="3a")
    assert follower.opening.leaves_blocks
    for number in range(6, 12):
        _step(log, follower, block(f"{number}a", f"{number - 1}a"))
    assert _head(follower) == "11a"
    assert not follower.opening.leaves_blocks


def test_a_block_that_is_let_go_for_want_of_room_is_left_no_longer() -> None:
    """Of two blocks that wait, the highest one goes."""
    log, follower = _opened([*chain("1a 2a"), block("9x", "8x")], replace(SETTINGS, max_waiting=1))
    assert follower.opening.leaves_blocks
    _step(log, follower, block("4a", "3a"))
    assert not follower.orderer.holds(h("9x"))
    assert not follower.opening.leaves_blocks


def test_a_follower_that_goes_on_after_a_cursor_leaves_what_waits_above_its_head() -> None:
    log, follower = _opened(chain("1a 2a"))
    cursor = follower.cursor()
    log.append(message for one in (block("4a", "3a"), block("5a", "4a")) for message in messages(one))
    resumed = Follower(SETTINGS, cursor)
    begin = resumed.begin_at({place: (0, end) for place, end in log.ends().items()})
    resumed.receive(record for place, records in log.partitions.items() for record in records[begin[place] :])
    _step(log, resumed)
    assert _head(resumed) == "2a"
    assert not resumed.resuming
    assert resumed.opening.leaves_blocks
    _step(log, resumed, block("3a", "2a"))
    assert _head(resumed) == "5a"
    assert not resumed.opening.leaves_blocks


def test_what_the_chain_goes_on_without_is_left_no_longer() -> None:
    """A block with a number that no chain comes to, say."""
    log, follower = _opened([*chain("1a 2a"), block("900x", "899x")])
    _step(log, follower, block("3a", "2a"), block("4a", "3a"))
    assert follower.opening.leaves_blocks
    _step(log, follower, block("5a", "4a"))
    assert follower.orderer.waits(h("900x"))
    assert not follower.opening.leaves_blocks
