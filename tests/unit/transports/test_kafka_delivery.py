"""Reports of a call's messages, and where these were written."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from cardinal.protocols.streams.wire.ranges import decode_ranges
from cardinal.transports.kafka.delivery import Delivery
from cardinal.transports.written import Written


class Message:
    """One that was acknowledged somewhere."""

    def __init__(self, key: bytes, offset: int | None) -> None:
        self._key, self._offset = key, offset

    def topic(self) -> str:
        return "a"

    def partition(self) -> int:
        return 1

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes:
        return self._key


@pytest.mark.parametrize(("offset", "known"), [(7, True), (None, False)])
def test_a_message_of_which_nobody_knows_where_it_lies_ends_its_call(offset: int | None, known: bool) -> None:  # noqa: FBT001 - a case
    """An earlier try has written it, and its answer was lost."""
    written, told = Written({}), list[KafkaError | None]()
    written.sends(20)
    settled: deque[Delivery] = deque()
    delivery = Delivery(2, told.append, settled, {b"h" * 32: written})
    for each in (6, offset):
        delivery.report(None, cast("Any", Message(b"\4" + b"h" * 32, each)))
    settled.popleft().finish()
    assert told == [None]
    assert (written.header("log") is not None) == known


def test_messages_of_several_blocks_are_noted_by_their_block() -> None:
    blocks = {bytes([number]) * 32: Written({}) for number in range(3)}
    settled: deque[Delivery] = deque()
    delivery = Delivery(6, lambda _: None, settled, blocks)
    for offset in range(6):
        delivery.report(None, cast("Any", Message(b"\4" + bytes([offset // 2]) * 32, offset)))
    settled.popleft().finish()
    for number, written in enumerate(blocks.values()):
        value = written.header("log")
        assert value is not None
        assert decode_ranges(value).ranges == {("a", 1): (2 * number, 2 * number + 2)}
