from __future__ import annotations

import pytest

from cardinal.errors import ConfigurationError
from cardinal.transports.url import parse_url

SECRET = "s3cr3t-Pa$$"  # noqa: S105 - made up, to look for it in what is printed


def test_a_kafka_url_names_its_brokers_and_options() -> None:
    url = parse_url("kafka://one:9093,two,[::1]:9094?compression.codec=lz4&linger.ms=5")
    assert url.hosts == ("one:9093", "two:9092", "[::1]:9094")
    assert url.options == {"compression.codec": "lz4", "linger.ms": "5"}
    assert (url.user, url.password) == (None, None)


def test_credentials_are_decoded_and_an_at_sign_may_stand_in_the_password() -> None:
    url = parse_url("kafka://al%20ice:a%2Fb@c%3A@host")
    assert (url.user, url.password, url.hosts) == ("al ice", "a/b@c:", ("host:9092",))


@pytest.mark.parametrize(
    "text",
    [
        f"kafka://alice:{SECRET}@host:9092?tls=1",
        f"kafka://host?sasl.username=alice&sasl.password={SECRET}",
        f"kafka://host?ssl.key.password={SECRET}&sasl.oauthbearer.client.secret={SECRET}",
    ],
)
def test_no_secret_is_printed(text: str) -> None:
    url = parse_url(text)
    for shown in (str(url), repr(url), f"{url}", str([url]), url.address):
        assert SECRET not in shown
    assert "host:9092" in str(url)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("localhost:9092", "kafka://host:port"),
        ("", "kafka://host:port"),
        ("pulsar://host", "'pulsar'"),
        ("kafka://", "names no host"),
        ("kafka://,", "names no host"),
        ("kafka://?tls=1", "names no host"),
        ("kafka://host:port", "'port' is no port"),
        ("kafka://host:0", "no port"),
        ("kafka://host:65536", "no port"),
        ("kafka://host:", "no port"),
        ("kafka://ho st:1", "no host"),
        ("kafka://[::1:9092", "cannot be read"),
        ("kafka://host/topic", "topics come from the application"),
        ("kafka://host?tls", "cannot be read"),
        ("kafka://host?a=1&a=2", "'a' twice"),
        ("memory://", "memory://name"),
    ],
)
def test_what_cannot_work_is_refused_with_the_form_to_use(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(text)
    assert says in str(caught.value)
    assert caught.value.setting is not None


@pytest.mark.parametrize(
    "text",
    [f"kafka://alice:{SECRET}@host:x", f"kafka://alice:{SECRET}@[::1", f"alice:{SECRET}@host", f"{SECRET}://host"],
)
def test_a_refusal_never_repeats_the_password(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(text)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_parsed_url_passes_through() -> None:
    url = parse_url("kafka://host")
    assert parse_url(url) is url
