"""The messages of a reorg channel."""

from __future__ import annotations

import pytest

from cardinal.errors import SplitError
from cardinal.protocols.streams import Batch, BlockRef, Reorg, ReorgComplete, decode, reorg_topic, split_reorg
from streams import SCHEMA, TOPIC, chain, h


def test_a_reorg_is_announced_and_everything_else_is_on_its_channel() -> None:
    ancestor = BlockRef(2, h("2a"))
    announced, messages = split_reorg(ancestor, chain("3b 4b", root="2a"), SCHEMA, TOPIC)
    assert announced.topic == TOPIC
    assert decode(announced.key, announced.value) == Reorg(ancestor.hash, 2)
    assert {message.topic for message in messages} == {reorg_topic(TOPIC, ancestor.hash)}
    decoded = [decode(message.key, message.value) for message in messages]
    assert decoded[0] == Reorg(ancestor.hash, 2)
    assert decoded[-1] == ReorgComplete(ancestor.hash, 2)
    assert [message.hash for message in decoded if isinstance(message, Batch)] == [h("3b"), h("4b")]


def test_an_ancestor_that_has_no_place_on_the_wire_is_refused() -> None:
    with pytest.raises(SplitError):
        split_reorg(BlockRef(2**31, h("2a")), [], SCHEMA, TOPIC)
