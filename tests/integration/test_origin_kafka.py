"""Origin of a stream's weights on Kafka: one for all producers, however they overlap."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from kafka_streams import DEADLINE, small_stream

from cardinal.producer import Producer
from cardinal.protocols.streams.types import ORIGIN_HEADER
from cardinal.transports import open_sink, parse_url

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.protocols.streams.types import Record
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PRODUCERS = 5


def settled(url: str, app: Application, name: str, together: threading.Barrier) -> str:
    with Producer(url, app, producer_id=name) as producer:
        together.wait(DEADLINE)
        return producer.settle_origin(name)


def _recent(url: str, app: Application) -> list[Record]:
    """The records of the default topic, heartbeats included."""
    sink = open_sink(parse_url(url), app, producer_id="reader")
    try:
        return sink.recent(1_000)
    finally:
        sink.close()


@pytest.mark.parametrize("option", ["", "&transactional=update"], ids=["plain", "transactions"])
def test_producers_that_propose_at_once_settle_one_origin(cardinal_broker: EmbeddedKafka, option: str) -> None:
    app = small_stream()
    url = f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=4{option}"
    together = threading.Barrier(PRODUCERS)
    with ThreadPoolExecutor(PRODUCERS) as pool:
        running = [pool.submit(settled, url, app, f"p{at}", together) for at in range(PRODUCERS)]
        origins = {one.result(2 * DEADLINE) for one in running}
    assert len(origins) == 1
    proposals = [record for record in _recent(url, app) if any(name == ORIGIN_HEADER for name, _ in record.headers)]
    assert len({record.partition for record in proposals}) == 1
    first = min(proposals, key=lambda record: record.offset)
    assert origins == {dict(first.headers)[ORIGIN_HEADER].decode()}
    with Producer(url, app, producer_id="later") as later:
        assert {later.settle_origin("later")} == origins
