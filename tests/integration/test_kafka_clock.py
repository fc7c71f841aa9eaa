"""A process whose clock is turned back by a day each time somebody looks at it."""

from __future__ import annotations

import itertools
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, line, publish, steps, until
from cardinal.consumer import Consumer

if TYPE_CHECKING:
    from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker
DAY = 24 * 3600


def test_a_clock_that_goes_back_by_a_day_holds_up_neither_side(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins, is idle, goes on, and resumes; the producer pings. Waits and deadlines are by the monotonic clock."""
    name = uuid.uuid4().hex
    app = Blocks(default_topic=f"{name}-block", topics={"a/": f"{name}-a", "b/": f"{name}-b"})
    url = f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    began, now, looked = time.monotonic(), time.time(), itertools.count(1)
    monkeypatch.setattr(time, "time", lambda: now - DAY * next(looked))
    monkeypatch.setattr(time, "time_ns", lambda: int(now - DAY * next(looked)) * 1_000_000_000)
    monkeypatch.setattr("cardinal.consuming.new_partitions.LOOK_SECONDS", 0.2)
    publish(url, line(1, 20), app=app)
    with Consumer(url, app, idle_timeout=3.0) as reading:
        updates = list(reading)
    assert steps(updates) == [f"+{number}a" for number in range(1, 21)]
    publish(url, line(21, 40), app=app)
    with Consumer(url, app, start=str(updates[-1].cursor), idle_timeout=DEADLINE) as reading:
        assert steps(until(reading, "40a")) == [f"+{number}a" for number in range(21, 41)]
    assert next(looked) > 2, "nobody looked: the producers' pings say the time"
    assert time.monotonic() - began < 6 * DEADLINE
