"""Every property of librdkafka reaches the client, by URL or by settings; but what the guarantees rest on."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from cardinal.config.settings import find_url
from cardinal.config.url import parse_url
from cardinal.errors import ConfigurationError, RefusedError
from cardinal.transports.kafka.errors import Reasons, bad_setting
from cardinal.transports.kafka.settings import KafkaSettings, kafka_settings

PROPERTIES = {
    "client.id": "me",
    "socket.keepalive.enable": "true",
    "broker.address.family": "v4",
    "queue.buffering.max.kbytes": "5678",
    "linger.ms": "7",
    "batch.size": "65536",
    "compression.type": "lz4",
    "max.in.flight.requests.per.connection": "3",
    "message.timeout.ms": "45000",
}


def settings_of(url: str) -> KafkaSettings:
    return kafka_settings(parse_url(url))


def test_properties_reach_the_client_by_url_and_by_settings(tmp_path: Path) -> None:
    options = "\n".join(f'"{name}" = "{value}"' for name, value in PROPERTIES.items())
    settings = tmp_path / "streams.toml"
    settings.write_text(f'[streams.main]\nurl = "kafka://127.0.0.1:1"\n[streams.main.options]\n{options}\n')
    query = "&".join(f"{name}={value}" for name, value in PROPERTIES.items())
    for url in (parse_url(f"kafka://127.0.0.1:1?{query}"), find_url("main", settings, {})):
        config = kafka_settings(url).producer(10_000_024, "one")
        assert PROPERTIES.items() <= config.items()
        Client(config)  # refuses a property that it does not know


def test_short_forms_and_other_names_set_the_property_that_they_stand_for() -> None:
    settings = settings_of(
        "kafka://host?fetch.default=5&max.waittime=6&net.maxopenrequests=2&log=1&partitions=3&replication=2&idempotent=1"
        "&retention.ms=-1&max.message.bytes=9&cardinal.connect.timeout.ms=1500&compression.codec=lz4"
        "&request.required.acks=-1&message.send.max.retries=10"
    )
    found = settings.properties
    assert (found["fetch.message.max.bytes"], found["fetch.wait.max.ms"], found["log_level"]) == ("5", "6", "6")
    assert (found["max.in.flight.requests.per.connection"], found["retries"]) == ("2", "10")
    Client(settings.producer(10_000_024, "one"))
    assert (settings.partitions, settings.replication, settings.retention_ms) == (3, 2, -1)
    assert (settings.max_message_bytes, settings.connect_timeout) == (9, 1.5)


@pytest.mark.parametrize(
    ("name", "value", "always"),
    [
        ("acks", "1", "all"),
        ("request.required.acks", "0", "all"),
        ("enable.idempotence", "false", "true"),
        ("partitioner", "murmur2", "fnv1a"),
        ("idempotent", "0", "1"),
    ],
)
def test_what_the_guarantees_rest_on_is_refused_by_its_name(name: str, value: str, always: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name.removeprefix('request.required.')} is always {always}"):
        settings_of(f"kafka://host:9092?{name}={value}").producer(10_000_024, "one")


@pytest.mark.parametrize("transactional", ["", "&transactional=update"])
def test_the_guarantees_hold_with_any_other_settings(transactional: str) -> None:
    settings = settings_of(f"kafka://a:s3cr3t@host?tls=1&sasl.mechanism=SCRAM-SHA-512&linger.ms=50{transactional}")
    config = settings.producer(10_000, "one")
    assert (config["acks"], config["enable.idempotence"], config["partitioner"]) == ("all", "true", "fnv1a")
    assert config.get("transactional.id") == ("one" if transactional else None)
    config = settings.consumer()
    assert (config["isolation.level"], config["auto.offset.reset"]) == ("read_committed", "error")
    assert config["enable.auto.commit"] == config["enable.auto.offset.store"] == "false"


@pytest.mark.parametrize(("given", "milliseconds"), [("", 10_000), ("&transaction.timeout.ms=4000", 4_000)])
def test_a_hung_transaction_ends_after_ten_seconds_by_default(given: str, milliseconds: int) -> None:
    settings = settings_of(f"kafka://host?transactional=update{given}")
    config = settings.producer(10_000, "one")
    assert config["transaction.timeout.ms"] == str(milliseconds)
    assert int(config["message.timeout.ms"]) <= milliseconds
    assert settings.transaction_timeout == milliseconds / 1000


@pytest.mark.parametrize("name", ["stats_cb", "default.topic.config", "delivery.report.only.error", "opaque"])
def test_what_no_text_can_set_or_what_would_withhold_acknowledgements_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} cannot be set by a URL") as caught:
        settings_of(f"kafka://host:9092?{name}=true")
    assert caught.value.setting == name


@pytest.mark.parametrize(
    "options",
    [
        "metadata.broker.list=other:9092",
        "bootstrap.servers=other:9092",
        "partitions=1&cardinal.partitions=2",
        "linger.ms=1&queue.buffering.max.ms=2",
        "sasl.mechanism=PLAIN&sasl.mechanisms=PLAIN",
        "sasl.username=x",
        "sasl.password=s3cr3t",
    ],
)
def test_an_option_that_is_given_under_two_names_is_refused(options: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is given twice: leave one of them out") as caught:
        settings_of(f"kafka://u:s3cr3t@host:9092?{options}")
    assert "s3cr3t" not in str(caught.value)


def test_what_only_producers_accept_is_kept_from_other_clients() -> None:
    settings = settings_of("kafka://host:9092?enable.gapless.guarantee=true")
    assert settings.producer(10_000, "one")["enable.gapless.guarantee"] == "true"
    assert "enable.gapless.guarantee" not in {**settings.client(), **settings.consumer()}


@pytest.mark.parametrize("option", ["ssl.ca.location=/ca.pem", "ssl.keystore.password=s3cr3t"])
def test_an_option_of_tls_is_refused_where_there_is_none(option: str) -> None:
    name = option.partition("=")[0]
    for url in (f"kafka://host:9092?{option}", f"kafka://u:s3cr3t@host:9092?{option}&security.protocol=SASL_PLAINTEXT"):
        with pytest.raises(ConfigurationError, match=f"{name} is for TLS, and this is not encrypted: add tls=1"):
            settings_of(url)
    settings_of(f"kafka://host:9092?{option}&tls=1")
    settings_of(f"kafka://host:9092?{option}&security.protocol=ssl")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "kafka://host?tls=1&security.protocol=PLAINTEXT",
            "tls=1 and security.protocol=PLAINTEXT contradict each other",
        ),
        ("kafka://u:s3cr3t@host?security.protocol=SSL", "security.protocol=SSL sends no login"),
        ("kafka://u:s3cr3t@host?security.protocol=PLAINTEXT", "security.protocol=PLAINTEXT sends no login"),
        ("kafka://host?sasl.password=s3cr3t", "a password is of no use without a user"),
    ],
)
def test_a_login_or_an_encryption_that_would_be_ignored_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        settings_of(url)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("tls=s3cr3t", "tls"),
        ("log=s3cr3t", "log"),
        ("transactional=s3cr3t", "transactional"),
        ("transactional=update&transaction.timeout.ms=0", "transaction.timeout.ms"),
        ("transaction.timeout.ms=5", "transaction.timeout.ms"),
        ("transactional.id=a", "transactional.id"),
        ("cardinal.partitions=0", "cardinal.partitions"),
        ("cardinal.replication=s3cr3t", "cardinal.replication"),
        ("cardinal.retention.ms=0", "cardinal.retention.ms"),
        ("cardinal.max.message.bytes=s3cr3t", "cardinal.max.message.bytes"),
        ("cardinal.connect.timeout.ms=-1", "cardinal.connect.timeout.ms"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_the_name_of_its_option(options: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        settings_of(f"kafka://host?{options}")
    assert caught.value.setting == named
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("cardinal.partitons=1", "did you mean cardinal.partitions?"),
        ("cardinal.queue.bytes=1", "use queue.buffering.max.kbytes"),
        ("connect.timeout.ms=1", "did you mean cardinal.connect.timeout.ms?"),
        ("cardinal.nothing=1", "use a librdkafka property, or cardinal.connect.timeout.ms, cardinal.max.message.bytes"),
        ("compresion.type=lz4", "did you mean compression.type?"),
        ("sasl.usename=me", "did you mean sasl.username?"),
        ("linger.ms=abc", "linger.ms"),
        ("compression.type=abc", "compression.type"),
    ],
)
def test_what_neither_we_nor_the_client_accept_is_named_as_it_was_written(option: str, says: str) -> None:
    try:
        Client(settings_of(f"kafka://host?{option}").producer(10_000, "one"))
    except KafkaException as error:
        said = str(bad_setting(error))
    except ConfigurationError as error:
        said = str(error)
    assert says in said
    assert "queue.buffering.max.ms" not in said


def test_no_credential_is_printed() -> None:
    settings = settings_of(
        "kafka://alice:s3cr3t@host?tls=1&ssl.key.password=s3cr3t&sasl.oauthbearer.client.secret=s3cr3t"
    )
    assert "s3cr3t" in settings.properties.values()
    assert "s3cr3t" not in f"{settings!r} {settings} {settings.properties!r} {vars(settings)!r}"


def test_a_refused_login_is_one_sentence() -> None:
    reasons = Reasons("host:9092")
    reasons(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED))
    refusal = reasons.refusal()
    assert isinstance(refusal, RefusedError)
    assert str(refusal).startswith("Kafka at host:9092 refused the login: ")
    assert str(refusal).endswith("; check user, password and mechanism")
    reasons.forget()
    assert reasons.refusal() is None
