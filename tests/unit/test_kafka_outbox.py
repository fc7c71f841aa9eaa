"""A client that has stopped, and the one that takes its place."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from blocks import DEADLINE
from cardinal.protocols.streams.wire.ranges import decode_ranges
from cardinal.transports.kafka.outbox import Delivery, Outbox
from cardinal.transports.written import Written

FENCED = KafkaError(KafkaError._FENCED, fatal=True)
_SOON = 0.3
"""Seconds for what must not come in between."""


class Client:
    """Says that it has stopped when it is told to."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.purged = 0

    def poll(self, seconds: float) -> int:
        if self.stopped.wait(seconds):
            raise KafkaException(FENCED)
        return 0

    def purge(self) -> None:
        self.purged += 1


def test_what_the_one_before_says_late_does_not_stop_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = Client(), Client()
    outbox = Outbox(cast("Any", before))
    stop, stopping, replaced = outbox.stop, threading.Event(), threading.Event()

    def stop_slowly(error: KafkaError) -> None:
        stopping.set()
        replaced.wait(_SOON)
        stop(error)

    monkeypatch.setattr(outbox, "stop", stop_slowly)
    before.stopped.set()
    assert stopping.wait(DEADLINE)
    outbox.go_on_with(cast("Any", after))
    replaced.set()
    before.stopped.clear()
    outbox.close(DEADLINE)
    assert outbox.client is after
    assert outbox.stopped is None
    assert after.purged == 0


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
    settled.popleft().tell()
    assert told == [None]
    assert (written.header("log") is not None) == known


def test_messages_of_several_blocks_are_noted_by_their_block() -> None:
    blocks = {bytes([number]) * 32: Written({}) for number in range(3)}
    settled: deque[Delivery] = deque()
    delivery = Delivery(6, lambda _: None, settled, blocks)
    for offset in range(6):
        delivery.report(None, cast("Any", Message(b"\4" + bytes([offset // 2]) * 32, offset)))
    settled.popleft().tell()
    for number, written in enumerate(blocks.values()):
        value = written.header("log")
        assert value is not None
        assert decode_ranges(value).ranges == {("a", 1): (2 * number, 2 * number + 2)}
