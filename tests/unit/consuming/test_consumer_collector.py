from __future__ import annotations

import gc
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, line, publish, until
from cardinal.consumer import Consumer
from cardinal.consuming.gc_pause import collector_waits
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def collector() -> Iterator[None]:
    """Whatever a test does to the collector, it is on before and after."""
    assert gc.isenabled()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector")
def test_the_collector_waits_and_goes_on_also_after_an_error() -> None:
    with collector_waits():
        assert not gc.isenabled()
        with collector_waits():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collector_waits():
        raise KeyError
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with collector_waits():
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_between_updates_the_collector_is_as_the_user_has_it_and_records_are_assembled_without() -> None:
    runs: list[int] = []

    def noted(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            runs.append(info["generation"])

    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        publish(broker, line(1, 400))
        with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE) as reading:
            gc.collect()
            gc.callbacks.append(noted)
            try:
                until(reading, "400a")
            finally:
                gc.callbacks.remove(noted)
            assert gc.isenabled()
    # 2,000 messages, a record and more for each, and the collector comes every 700 objects where it does not wait
    assert len(runs) <= 3
