"""Which Batch may be handed over when."""

from __future__ import annotations

import pytest

from cardinal.errors import LocalProtocolError
from cardinal.protocols.streams import SealQueue
from streams import h
from work_counter import lines


def begun() -> SealQueue:
    """A queue whose first Batch is acknowledged."""
    queue = SealQueue()
    queue.add(h("0a"), h("none"))
    queue.acknowledged(h("0a"))
    go(queue, "0a")
    assert line(queue) == []
    return queue


def line(queue: SealQueue) -> list[bytes]:
    """The Batches that may go, the next one first."""
    return list(queue._line)


def hand_over(queue: SealQueue, *names: str) -> None:
    """Hand these Batches over; they are the next ones in the line."""
    for name in names:
        assert queue.next_free() == h(name)
        queue.hand_over(h(name))


def go(queue: SealQueue, *names: str) -> None:
    """Hand these Batches over and acknowledge them."""
    hand_over(queue, *names)
    for name in names:
        queue.sealed(h(name))


def test_the_first_batch_is_acknowledged_before_the_next_goes() -> None:
    queue = SealQueue()
    for name, parent in (("0a", "none"), ("1a", "0a"), ("2a", "1a")):
        queue.add(h(name), h(parent))
        queue.acknowledged(h(name))
        assert line(queue) == [h("0a")]
    go(queue, "0a")
    assert line(queue) == [h("1a"), h("2a")]


def test_a_child_waits_for_its_parents_batch_to_be_handed_over_not_acknowledged() -> None:
    queue = begun()
    queue.add(h("1a"), h("0a"))
    queue.add(h("2a"), h("1a"))
    queue.acknowledged(h("2a"))
    assert line(queue) == []
    queue.acknowledged(h("1a"))
    assert line(queue) == [h("1a"), h("2a")]
    assert len(queue) == 2
    go(queue, "1a", "2a")
    assert len(queue) == 0
    assert h("1a") not in queue


def test_an_announced_sub_batch_holds_its_block_and_its_descendants() -> None:
    queue = begun()
    queue.add(h("1a"), h("0a"), [h("s")])
    queue.add(h("2a"), h("1a"))
    queue.acknowledged(h("1a"))
    queue.acknowledged(h("2a"))
    assert line(queue) == []
    queue.sub_batch_acknowledged(h("1a"), h("s"))
    assert line(queue) == [h("1a"), h("2a")]


def test_a_failed_block_holds_its_descendants_until_it_is_sent_again() -> None:
    queue = begun()
    queue.add(h("1a"), h("0a"))
    queue.add(h("2a"), h("1a"))
    queue.failed(h("1a"))
    queue.acknowledged(h("2a"))
    queue.acknowledged(h("1a"))
    assert line(queue) == []
    queue.add(h("1a"), h("0a"))
    queue.acknowledged(h("1a"))
    assert line(queue) == [h("1a"), h("2a")]


def test_a_block_that_is_under_way_is_not_added_twice() -> None:
    queue = begun()
    queue.add(h("1a"), h("0a"))
    with pytest.raises(LocalProtocolError, match="already being sent"):
        queue.add(h("1a"), h("0a"))


def test_what_is_not_under_way_is_passed_over() -> None:
    queue = begun()
    queue.acknowledged(h("9z"))
    queue.sub_batch_acknowledged(h("9z"), h("s"))
    queue.sealed(h("9z"))
    queue.failed(h("9z"))
    assert queue.next_free() is None
    with pytest.raises(KeyError):
        queue.hand_over(h("9z"))


def ready(queue: SealQueue, names: str) -> None:
    """Add a chain and acknowledge its content."""
    parent, *rest = names.split()
    for name in rest:
        queue.add(h(name), h(parent))
        queue.acknowledged(h(name))
        parent = name


def test_a_failed_grandparent_holds_a_block_whose_parent_is_sealed() -> None:
    queue = begun()
    ready(queue, "0a 1a 2a")
    hand_over(queue, "1a")
    go(queue, "2a")
    queue.failed(h("1a"))
    ready(queue, "2a 3a 4a")
    assert line(queue) == []
    assert h("2a") not in queue
    queue.add(h("1a"), h("0a"))
    queue.acknowledged(h("1a"))
    assert line(queue) == [h("1a"), h("3a"), h("4a")]
    go(queue, "1a", "3a", "4a")
    assert len(queue) == 0


def test_a_first_block_that_fails_lets_another_be_the_first() -> None:
    queue = SealQueue()
    for name in ("0a", "0b", "0c"):
        queue.add(h(name), h(f"none {name}"))
        queue.acknowledged(h(name))
    assert line(queue) == [h("0a")]
    queue.failed(h("0b"))
    assert line(queue) == [h("0a")]
    queue.failed(h("0a"))
    assert line(queue) == [h("0c")]
    go(queue, "0c")
    assert len(queue) == 2


def test_a_block_that_comes_again_has_the_same_parent() -> None:
    queue = begun()
    queue.add(h("1a"), h("0a"))
    queue.failed(h("1a"))
    with pytest.raises(LocalProtocolError, match="another parent"):
        queue.add(h("1a"), h("0b"))


def test_a_block_is_not_its_own_ancestor() -> None:
    queue = begun()
    with pytest.raises(LocalProtocolError, match="its own ancestor"):
        queue.add(h("1a"), h("1a"))
    queue.add(h("2a"), h("1a"))
    queue.add(h("3a"), h("2a"))
    for parent in ("2a", "3a"):
        with pytest.raises(LocalProtocolError, match="its own ancestor"):
            queue.add(h("1a"), h(parent))
    queue.add(h("1a"), h("0a"))


def test_a_sealed_block_that_waits_for_its_ancestors_can_be_sent_again() -> None:
    queue = begun()
    ready(queue, "0a 1a 2a 3a")
    hand_over(queue, "1a", "2a")
    queue.sealed(h("2a"))
    queue.add(h("2a"), h("1a"))
    assert len(queue) == 3
    assert line(queue) == []
    queue.failed(h("2a"))
    queue.failed(h("2a"))
    queue.add(h("2a"), h("1a"))
    queue.sealed(h("1a"))
    queue.acknowledged(h("2a"))
    go(queue, "2a", "3a")
    assert not queue._entries
    assert not queue._children


@pytest.mark.parametrize("shape", ["chain", "chain backwards", "fan", "failed root", "failed blocks"])
def test_ten_thousand_blocks_under_way_cost_no_more_each_than_a_thousand(shape: str) -> None:
    small = lines(lambda: many_under_way(shape, 1_000))
    assert lines(lambda: many_under_way(shape, 10_000)) < 11 * small


def many_under_way(shape: str, count: int) -> None:
    queue = begun()
    names = [b"%032d" % index for index in range(count)]
    parents = [h("0a"), *names] if shape != "fan" else [h("0a")] * count
    for name, parent in zip(names, parents, strict=False):
        queue.add(name, parent)
    for name in names if shape != "chain backwards" else reversed(names):
        queue.acknowledged(name)
    if shape == "failed root":
        queue.hand_over(names[0])
        queue.failed(names[0])
        queue.add(names[0], parents[0])
        queue.acknowledged(names[0])
    if shape == "failed blocks":
        for name, parent in zip(reversed(names), reversed(parents[:-1]), strict=True):
            queue.failed(name)
            queue.add(name, parent)
        for name in names:
            queue.acknowledged(name)
    handed = []
    while (free := queue.next_free()) is not None:
        queue.hand_over(free)
        handed.append(free)
    assert handed == names
    for name in names:
        queue.sealed(name)
    assert len(queue) == 0
    assert not queue._entries
