"""Every property of librdkafka reaches the client, by URL or by settings; but what the guarantees rest on."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer as Client

from cardinal.errors import ConfigurationError
from cardinal.transports import parse_url
from cardinal.transports.kafka import kafka_settings
from cardinal.transports.settings import find_url

PROPERTIES = {
    "client.id": "me",
    "metadata.max.age.ms": "60000",
    "topic.metadata.refresh.interval.ms": "30000",
    "socket.keepalive.enable": "true",
    "socket.nagle.disable": "true",
    "socket.send.buffer.bytes": "100000",
    "socket.connection.setup.timeout.ms": "9000",
    "broker.address.family": "v4",
    "broker.address.ttl": "500",
    "connections.max.idle.ms": "70000",
    "reconnect.backoff.ms": "50",
    "reconnect.backoff.max.ms": "700",
    "statistics.interval.ms": "5000",
    "api.version.request.timeout.ms": "4000",
    "client.dns.lookup": "resolve_canonical_bootstrap_servers_only",
    "queue.buffering.max.messages": "1234",
    "queue.buffering.max.kbytes": "5678",
    "linger.ms": "7",
    "batch.num.messages": "77",
    "batch.size": "65536",
    "compression.type": "lz4",
    "compression.level": "3",
    "retries": "9",
    "retry.backoff.ms": "60",
    "retry.backoff.max.ms": "900",
    "max.in.flight.requests.per.connection": "3",
    "message.timeout.ms": "45000",
    "request.timeout.ms": "20000",
    "sticky.partitioning.linger.ms": "4",
    "metadata.recovery.strategy": "none",
}


@pytest.mark.parametrize(("name", "value"), PROPERTIES.items())
def test_a_property_reaches_the_client_by_url_and_by_settings(name: str, value: str, tmp_path: Path) -> None:
    settings = tmp_path / "streams.toml"
    settings.write_text(f'[streams.main]\nurl = "kafka://host:9092"\n[streams.main.options]\n"{name}" = "{value}"\n')
    for url in (parse_url(f"kafka://host:9092?{name}={value}"), find_url("main", settings, {})):
        config = kafka_settings(url).producer(10_000_024, "one")
        assert config[name] == value
        Client(config)  # refuses a property that it does not know


@pytest.mark.parametrize(
    ("name", "value", "always"),
    [
        ("acks", "1", "all"),
        ("enable.idempotence", "false", "true"),
        ("partitioner", "murmur2", "fnv1a"),
    ],
)
def test_what_the_guarantees_rest_on_is_refused_by_its_name(name: str, value: str, always: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is always {always}") as caught:
        kafka_settings(parse_url(f"kafka://host:9092?{name}={value}")).producer(10_000_024, "one")
    assert caught.value.setting == name
