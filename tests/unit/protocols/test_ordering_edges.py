from __future__ import annotations

from cardinal.protocols.streams import Orderer, Payload
from cardinal.protocols.streams.events import ForkBelowStart
from cardinal.protocols.streams.types import BlockRef


def name_hash(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def block(name: str, parent: str, weight: int) -> Payload:
    return Payload(int(name[:-1]), name_hash(name), name_hash(parent), weight)


def test_a_fork_below_the_start_removes_nothing_that_was_not_delivered() -> None:
    """The start's ancestors come after it, and then a heavier chain that leaves below it: reported, not followed."""
    orderer = Orderer(reorg_threshold=16)
    orderer.receive(block("3a", "2a", 3))
    updates = orderer.caught_up()
    for late in (
        block("2a", "1a", 2),
        block("1a", "0a", 1),
        block("2b", "1a", 3),
        block("3b", "2b", 5),
        block("4b", "3b", 7),
    ):
        updates += orderer.receive(late)
    assert [[ref.hash for ref in update.added] for update in updates] == [[name_hash("3a")]]
    assert all(not update.removed for update in updates)
    reported = [event for event in orderer.take_reports() if isinstance(event, ForkBelowStart)]
    assert reported == [ForkBelowStart(BlockRef(3, name_hash("3b")), BlockRef(3, name_hash("3a")))]


def test_a_heavier_sibling_of_the_start_replaces_it_after_its_parent_came_late() -> None:
    orderer = Orderer(reorg_threshold=16)
    orderer.receive(block("3a", "2a", 3))
    orderer.caught_up()
    updates = orderer.receive(block("2a", "1a", 2)) + orderer.receive(block("3b", "2a", 4))
    assert [(update.removed[0].hash, update.added[0].hash) for update in updates] == [
        (name_hash("3a"), name_hash("3b"))
    ]


def test_a_branch_whose_fork_point_is_forgotten_can_no_longer_win() -> None:
    """8b to 10b hang on 7a; when 7a lies below the threshold, a heavy 11b has no way back to the chain."""
    orderer = Orderer(reorg_threshold=3)
    orderer.receive(block("1a", "0a", 10))
    orderer.caught_up()
    for number in range(2, 11):
        orderer.receive(block(f"{number}a", f"{number - 1}a", 10 * number))
    for number in range(8, 11):
        orderer.receive(block(f"{number}b", f"{number - 1}b" if number > 8 else "7a", 5 * number))
    for number in (11, 12):
        orderer.receive(block(f"{number}a", f"{number - 1}a", 10 * number))
    assert orderer.receive(block("11b", "10b", 1000)) == []
    assert orderer.head == BlockRef(12, name_hash("12a"))


def test_a_block_whose_number_does_not_follow_is_cut_also_at_the_start() -> None:
    orderer = Orderer()
    for late in (block("1a", "0a", 1), block("2a", "1a", 2), block("9z", "2a", 3)):
        orderer.receive(late)
    assert [ref.number for update in orderer.caught_up() for ref in update.added] == [1, 2]
