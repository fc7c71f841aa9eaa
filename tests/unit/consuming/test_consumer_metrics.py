"""Metrics of a consumer that lags: what was read and is not handled counts, and the ends are those of the scrape."""

from __future__ import annotations

import pytest

from blocks import consumer, line, publish
from cardinal.consuming import watermarks
from cardinal.consuming.metrics import ConsumerMetrics
from cardinal_devkit.testing.memory import MemoryBroker


def test_lag_counts_updates_that_are_not_handled_and_grows_with_the_stream_meanwhile(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "LOOK_SECONDS", 0.0)
    publish(broker, line(1, 8))
    with consumer(broker, max_update=2) as reading:
        metrics = ConsumerMetrics(reading)

        def value(name: str) -> float:
            found = metrics.registry.get_sample_value(f"cardinal_consumer_{name}")
            assert found is not None
            return found

        everything = value("lag_records")
        before = everything
        for update in reading:
            metrics.delivered(update)
            assert 0 < value("lag_records") <= before, "all was read at once, and this update is not handled"
            assert value("lag_seconds") > 0
            assert metrics.waits_for() == f"{value('lag_records'):.0f} records are not delivered yet"
            before = value("lag_records")
            if update.added[-1].number == 8:
                publish(broker, line(9, 9))
                assert value("lag_records") > before, "nobody reads, and the stream grows"
            elif update.added[-1].number == 9:
                break
