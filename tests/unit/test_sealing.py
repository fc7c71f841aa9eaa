"""Which Batch may be handed over when."""

from __future__ import annotations

import pytest

from cardinal.errors import LocalProtocolError
from cardinal.protocols.streams import SealQueue
from streams import h


def begun() -> SealQueue:
    """A queue whose first Batch is acknowledged."""
    queue = SealQueue()
    queue.add(h("0a"), h("none"))
    assert queue.acknowledged(h("0a")) == [h("0a")]
    assert queue.sealed(h("0a")) == []
    return queue


def test_the_first_batch_is_acknowledged_before_the_next_goes() -> None:
    queue = SealQueue()
    for name, parent in (("0a", "none"), ("1a", "0a"), ("2a", "1a")):
        queue.add(h(name), h(parent))
    assert queue.acknowledged(h("0a")) == [h("0a")]
    assert queue.acknowledged(h("1a")) == []
    assert queue.acknowledged(h("2a")) == []
    assert queue.sealed(h("0a")) == [h("1a"), h("2a")]


def test_a_child_waits_for_its_parents_batch_to_be_handed_over_not_acknowledged() -> None:
    queue = begun()
    queue.add(h("1a"), h("0a"))
    queue.add(h("2a"), h("1a"))
    assert queue.acknowledged(h("2a")) == []
    assert queue.acknowledged(h("1a")) == [h("1a"), h("2a")]
    assert len(queue) == 2
    assert queue.sealed(h("2a")) == []
    assert queue.sealed(h("1a")) == []
    assert h("1a") not in queue


def test_siblings_do_not_wait_for_each_other() -> None:
    queue = begun()
    for name in ("1a", "1b"):
        queue.add(h(name), h("0a"))
    assert queue.acknowledged(h("1b")) == [h("1b")]
    assert queue.sealed(h("1b")) == []
    assert queue.acknowledged(h("1a")) == [h("1a")]


def test_an_announced_sub_batch_holds_its_block_and_its_descendants() -> None:
    queue = begun()
    queue.add(h("1a"), h("0a"), [h("s")])
    queue.add(h("2a"), h("1a"))
    assert queue.acknowledged(h("1a")) == []
    assert queue.acknowledged(h("2a")) == []
    assert queue.sub_batch_acknowledged(h("1a"), h("s")) == [h("1a"), h("2a")]


def test_a_sub_batch_may_be_acknowledged_before_the_rest() -> None:
    queue = begun()
    queue.add(h("1a"), h("0a"), [h("s")])
    assert queue.sub_batch_acknowledged(h("1a"), h("s")) == []
    assert queue.acknowledged(h("1a")) == [h("1a")]
    assert queue.sub_batch_acknowledged(h("1a"), h("s")) == []


def test_a_failed_block_holds_its_descendants_until_it_is_sent_again() -> None:
    queue = begun()
    queue.add(h("1a"), h("0a"))
    queue.add(h("2a"), h("1a"))
    queue.failed(h("1a"))
    assert queue.acknowledged(h("2a")) == []
    assert queue.acknowledged(h("1a")) == []
    queue.add(h("1a"), h("0a"))
    assert queue.acknowledged(h("1a")) == [h("1a"), h("2a")]


def test_a_first_block_that_fails_gives_its_place_up() -> None:
    queue = SealQueue()
    queue.add(h("0a"), h("none"))
    queue.acknowledged(h("0a"))
    queue.failed(h("0a"))
    queue.add(h("0a"), h("none"))
    assert queue.acknowledged(h("0a")) == [h("0a")]


def test_a_block_that_is_under_way_is_not_added_twice() -> None:
    queue = begun()
    queue.add(h("1a"), h("0a"))
    with pytest.raises(LocalProtocolError, match="already being sent"):
        queue.add(h("1a"), h("0a"))


def test_what_is_not_under_way_is_passed_over() -> None:
    queue = begun()
    assert queue.acknowledged(h("9z")) == []
    assert queue.sub_batch_acknowledged(h("9z"), h("s")) == []
    assert queue.sealed(h("9z")) == []
    queue.failed(h("9z"))
