"""The properties of librdkafka that the guarantees rest on, whatever else a URL says."""

from __future__ import annotations

import pytest

from cardinal.transports.kafka.settings import kafka_settings
from cardinal.transports.url import parse_url

ELSE = [
    "client.id=x",
    "linger.ms=50&compression.type=zstd",
    "tls=1&sasl.mechanism=SCRAM-SHA-512&sasl.username=a&sasl.password=b",
]


@pytest.mark.parametrize("options", ELSE)
def test_every_producer_waits_for_all_replicas_doubles_nothing_and_partitions_as_the_reference_does(
    options: str,
) -> None:
    for transactional in ("", "&transactional=update"):
        config = kafka_settings(parse_url(f"kafka://host?{options}{transactional}")).producer(10_000, "one")
        assert (config["acks"], config["enable.idempotence"], config["partitioner"]) == ("all", "true", "fnv1a")
        assert config.get("transactional.id") == ("one" if transactional else None)


@pytest.mark.parametrize("options", ELSE)
def test_every_consumer_reads_what_is_committed_and_jumps_over_nothing(options: str) -> None:
    config = kafka_settings(parse_url(f"kafka://host?{options}")).consumer()
    assert config["isolation.level"] == "read_committed"
    assert config["auto.offset.reset"] == "error"
    assert config["enable.auto.commit"] == config["enable.auto.offset.store"] == "false"


@pytest.mark.parametrize(("given", "milliseconds"), [("", 10_000), ("&transaction.timeout.ms=4000", 4_000)])
def test_a_hung_transaction_is_over_after_ten_seconds_where_nothing_else_is_said(given: str, milliseconds: int) -> None:
    settings = kafka_settings(parse_url(f"kafka://host?transactional=update{given}"))
    config = settings.producer(10_000, "one")
    assert config["transaction.timeout.ms"] == str(milliseconds)
    assert int(config["message.timeout.ms"]) <= milliseconds
    assert settings.transaction_timeout == milliseconds / 1000
