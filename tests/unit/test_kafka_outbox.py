"""A client that has stopped, and the one that takes its place."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from blocks import DEADLINE
from cardinal.transports.kafka.outbox import Outbox

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
