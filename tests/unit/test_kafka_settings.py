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


@pytest.mark.parametrize(
    "name", ["stats_cb", "oauth_cb", "error_cb", "default.topic.config", "delivery.report.only.error", "opaque"]
)
def test_what_no_text_can_say_or_what_would_keep_acknowledgements_away_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} cannot be set by a URL") as caught:
        kafka_settings(parse_url(f"kafka://host:9092?{name}=true"))
    assert caught.value.setting == name


@pytest.mark.parametrize("name", ["metadata.broker.list", "bootstrap.servers"])
def test_the_brokers_are_those_of_the_url(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is given in two ways"):
        kafka_settings(parse_url(f"kafka://host:9092?{name}=other:9092"))


def test_what_only_producers_take_is_kept_from_other_clients() -> None:
    settings = kafka_settings(parse_url("kafka://host:9092?enable.gapless.guarantee=true"))
    assert settings.producer(10_000, "one")["enable.gapless.guarantee"] == "true"
    assert "enable.gapless.guarantee" not in {**settings.client(), **settings.consumer()}


@pytest.mark.parametrize("option", ["ssl.ca.location=/ca.pem", "ssl.keystore.password=s3cr3t"])
def test_what_is_for_tls_is_refused_where_there_is_none(option: str) -> None:
    name = option.partition("=")[0]
    for url in (f"kafka://host:9092?{option}", f"kafka://u:s3cr3t@host:9092?{option}&security.protocol=SASL_PLAINTEXT"):
        with pytest.raises(ConfigurationError, match=f"{name} is for TLS, and this is not encrypted: add tls=1"):
            kafka_settings(parse_url(url))
    kafka_settings(parse_url(f"kafka://host:9092?{option}&tls=1"))
    kafka_settings(parse_url(f"kafka://host:9092?{option}&security.protocol=ssl"))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "kafka://host?tls=1&security.protocol=PLAINTEXT",
            "tls=1 and security.protocol=PLAINTEXT contradict each other",
        ),
        ("kafka://u:s3cr3t@host?tls=1&security.protocol=SASL_PLAINTEXT", "contradict each other"),
        ("kafka://u:s3cr3t@host?security.protocol=SSL", "security.protocol=SSL shows no login"),
        ("kafka://u:s3cr3t@host?security.protocol=PLAINTEXT", "security.protocol=PLAINTEXT shows no login"),
        ("kafka://host?sasl.password=s3cr3t", "a password is of no use without a user"),
        ("kafka://u:s3cr3t@host?sasl.username=x", "the user is given in two ways"),
        ("kafka://u:s3cr3t@host?sasl.password=s3cr3t", "the password is given in two ways"),
        ("kafka://u:s3cr3t@host?sasl.mechanism=PLAIN&sasl.mechanisms=PLAIN", "sasl.mechanism is given in two ways"),
    ],
)
def test_a_login_or_an_encryption_that_would_be_left_out_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        kafka_settings(parse_url(url))
    assert "s3cr3t" not in str(caught.value)
