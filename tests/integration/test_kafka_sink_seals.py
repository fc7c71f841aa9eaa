"""A seal that goes with its block waits for it, as one that goes by itself does: for muxes and reorg channels."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka_streams import DEADLINE, a_block, everything_on, small_stream

from cardinal.embedded import EmbeddedKafka
from cardinal.errors import DeliveryError
from cardinal.protocols.streams import split
from cardinal.transports import open_sink

pytestmark = pytest.mark.broker

LARGE = 5_000


def test_where_the_content_is_refused_no_seal_is_sent(cardinal_broker: EmbeddedKafka) -> None:
    """The content's topic is told to take less than it did when the sink was opened; that of the Batches is not."""
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}?compression.type=none"
    sink = open_sink(url, app, producer_id="one")
    [topic] = app.topics.values()
    takes_less = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[takes_less])
    admin = AdminClient(cardinal_broker.client_config())
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE)
    payload = a_block("1a", "0g", values=1, size=LARGE)
    *content, batch = split(payload, app.topics, app.default_topic)
    deadline = time.monotonic() + DEADLINE
    while sink.send(content, None).exception(DEADLINE) is None:  # until the broker, who was told, does it
        assert time.monotonic() < deadline
    with pytest.raises(DeliveryError) as caught:
        sink.send(content, batch).result(DEADLINE)
    assert caught.value.hash == payload.hash
    sink.flush(DEADLINE)
    assert [record for record in everything_on(url, app, [app.default_topic]) if record.key[:1] == b"\0"] == []
    sink.close()
