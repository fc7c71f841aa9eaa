from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.apps import get
from cardinal.errors import ConfigurationError
from cardinal.transports import open_source
from cardinal.transports.address import is_secret
from cardinal.transports.parsing import mux_of
from cardinal.transports.secrets import with_secrets
from cardinal.transports.url import parse_url

SECRET = "s3cr3t-Pa$$"  # noqa: S105 - made up, to look for it in what is printed


def test_a_kafka_url_names_its_brokers_and_options() -> None:
    url = parse_url("kafka://one:9093,two,[::1]:9094?compression.codec=lz4&linger.ms=5")
    assert url.hosts == ("one:9093", "two:9092", "[::1]:9094")
    assert url.options == {"compression.codec": "lz4", "linger.ms": "5"}
    assert (url.user, url.password) == (None, None)


def test_options_that_are_preferred_leave_its_own_and_others_replace_them() -> None:
    url = parse_url("kafka://one:9093?linger.ms=5")
    given = {"linger.ms": "7", "compression.type": "lz4"}
    assert url.preferring(given).options == {"linger.ms": "5", "compression.type": "lz4"}
    assert url.replacing(given).options == given


def test_credentials_are_decoded_and_an_at_sign_may_stand_in_the_password() -> None:
    url = parse_url("kafka://al%20ice:a%2Fs3cr3t@c%3A@host")
    assert (url.user, url.password, url.hosts) == ("al ice", "a/s3cr3t@c:", ("host:9092",))


@pytest.mark.parametrize(
    "text",
    [
        f"kafka://alice:{SECRET}@host:9092?tls=1",
        f"kafka://host?sasl.username=alice&sasl.password={SECRET}",
        f"kafka://host?ssl.key.password={SECRET}&sasl.oauthbearer.client.secret={SECRET}",
        f"kafka://host?sasl.oauthbearer.assertion.private.key.passphrase={SECRET}",
        f"mux:kafka://alice:{SECRET}@host:9092,64=kafka://bob:{SECRET}@other?ssl.key.password={SECRET}",
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
        ("kafka://host:port", "host 1 is no port"),
        ("kafka://one,two:909x", "host 2 is no port"),
        ("kafka://host:0", "'0' is no port of host"),
        ("kafka://host:65536", "no port"),
        ("kafka://host:", "no port"),
        ("kafka://ho st:1", "host 1 is no host"),
        ("kafka://::1:9092", "an IPv6 address in brackets"),
        (f"kafka://alice:{SECRET}/x@host", "%2F"),
        (f"kafka://alice:{SECRET}#x@host", "%23"),
        (f"kafka://alice:{SECRET}?x@host", "%3F"),
        (f"kafka://alice:{SECRET}%40host", "%40"),
        ("kafka://[::1:9092", "cannot be read"),
        ("kafka://host/topic", "topics come from the application"),
        ("kafka://host?tls", "cannot be read"),
        ("kafka://host?a=1&a=2", "'a' twice"),
        (f"kafka://a:{SECRET}@one,a:{SECRET}@two", "once in a kafka URL, before its first host"),
        (f"kafka://one:1,a:{SECRET}@two:2", "once in a kafka URL, before its first host"),
        ("memory://", "memory://name"),
        ("file://", "file://DIR"),
        ("file://?fsync=never", "file://DIR"),
        ("file:///a#b", "%23"),
        ("file:///a%00b", "file://DIR"),
        ("null://host", "names nothing"),
        ("mux:", "begins with a scheme"),
        ("mux:mux:kafka://a", "a mux in a mux"),
        ("mux:64=kafka://a,64=kafka://b", "64 follows 64"),
        ("mux:kafka://a,9=kafka://b,3=kafka://c", "3 follows 9"),
    ],
)
def test_what_cannot_work_is_refused_with_the_form_to_use(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(text)
    assert says in str(caught.value)
    assert caught.value.setting is not None


@pytest.mark.parametrize(
    "text",
    [
        f"kafka://alice:{SECRET}@host:x",
        f"kafka://alice:{SECRET}@[::1",
        f"alice:{SECRET}@host",
        f"{SECRET}://host",
        f"mux:kafka://alice:{SECRET}@host,kafka://bob:{SECRET}@host:x",
        f"mux:{SECRET}",
        f"kafka://alice:{SECRET}",
        f"kafka://alice:{SECRET}%40host:9092",
        f"kafka://alice:{SECRET} host:9092",
        f"kafka://{SECRET} host",
        f"kafka://alice:x?{SECRET}@host:9092?tls=1",
        f"kafka://alice:{SECRET}?x@host:9092?tls=1",
        f"kafka://alice:{SECRET}?x@host:9092",
        f"kafka://alice:12345?{SECRET}@host:9092?tls=1",
        f"kafka://alice:12345?{SECRET}@host:9092",
        f"kafka://alice:12345?{SECRET}%40host:9092?tls=1",
        f"kafka://alice:12345/{SECRET}@host:9092",
        f"kafka://alice:12345#{SECRET}@host:9092",
        "kafka://alice:123456s3cr3t,host",
        f"mux:kafka://alice:{SECRET},x://b@host",
        f"kafka://alice:{SECRET}@one:9092,alice:{SECRET}@two:9092",
        f"kafka://alice:{SECRET}@one,bob@two",
        f"kafka://one:9092,alice:{SECRET}@two:9092",
        f"kafka://alice:{SECRET}@x:y@host",
    ],
)
def test_a_refusal_never_repeats_the_password(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(text)
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in str(caught.value.setting)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_plus_in_an_option_is_one() -> None:
    url = parse_url("kafka://host?sasl.password=a+b/c%2Bd%20e==&client.id=x+y")
    assert url.options == {"sasl.password": "a+b/c+d e==", "client.id": "x+y"}


@given(st.dictionaries(st.text(min_size=1), st.text()), st.sampled_from(["kafka://host", "file:///a+b,c", "null://"]))
def test_what_is_printed_of_a_url_without_secrets_reads_back_equal(options: dict[str, str], where: str) -> None:
    shown = {name: value for name, value in options.items() if not is_secret(name) and not set("@?") & {*name, *value}}
    url = replace(parse_url(where), options=shown)
    assert parse_url(str(url)) == url
    mux = mux_of([(None, url), (7, url)])
    assert parse_url(str(mux)) == mux


def test_the_rest_of_a_password_that_is_taken_for_an_option_is_not_printed() -> None:
    url = parse_url(f"kafka://alice:12345?tls={SECRET}@host:9092")
    assert "s3cr3t" not in f"{url} {url!r}"


def test_a_parsed_url_passes_through() -> None:
    url = parse_url("kafka://host")
    assert parse_url(url) is url


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("file:///var/lib/x", "/var/lib/x"),
        ("file://here/and/there", "here/and/there"),
        ("file://here", "here"),
        ("file:///a%20b%3Fc%23d", "/a b?c#d"),
        ("file:///a@b:c,d", "/a@b:c,d"),
    ],
)
def test_a_file_url_names_a_folder(text: str, folder: str) -> None:
    url = parse_url(f"{text}?fsync=never")
    assert (url.address, url.user, dict(url.options)) == (folder, None, {"fsync": "never"})
    assert parse_url(str(url)) == url


def test_a_mux_url_has_members_and_their_first_numbers() -> None:
    url = parse_url("mux:kafka://a:1,b:2?tls=1,file:///x,200=kafka://c?client.id=x%2Ckafka://y")
    assert [(first, str(member)) for first, member in url.members] == [
        (0, "kafka://a:1,b:2?tls=1"),
        (64, "file:///x"),
        (200, "kafka://c:9092?client.id=x%2Ckafka://y"),
    ]
    assert parse_url(str(url)) == url
    assert parse_url("MUX:null://").members == ((0, parse_url("null://")),)


def test_a_secret_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(f"{SECRET}\n")
    (tmp_path / "two").write_text(f"other-{SECRET}")
    url = parse_url(f"kafka://alice@host?password_file={tmp_path}/one&ssl.key.password_file={tmp_path}/two")
    assert SECRET not in f"{url} {url!r}"
    assert str(tmp_path) in str(url)  # where it is may be said
    read = with_secrets(url)
    assert read.password == SECRET
    assert read.options == {"ssl.key.password": f"other-{SECRET}"}
    for shown in (str(read), repr(read)):
        assert SECRET not in shown


def test_every_member_of_a_mux_reads_its_own_secret(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{SECRET}{name}")
    url = with_secrets(parse_url(f"mux:kafka://a?password_file={tmp_path}/a,kafka://b?password_file={tmp_path}/b"))
    assert [member.password for _, member in url.members] == [f"{SECRET}a", f"{SECRET}b"]
    assert SECRET not in f"{url} {url!r} {url.members}"


@pytest.mark.parametrize(
    ("query", "content", "says"),
    [
        ("password_file=/nowhere/at/all", b"", "cannot be read"),
        ("password_file={}", b"", "empty"),
        ("password_file={}", b"\xff" + SECRET.encode(), "text"),
        ("password_file={}", SECRET.encode() * 9_999, "too large"),
        ("sasl.password=s3cr3t&sasl.password_file={}", SECRET.encode(), "two ways"),
    ],
)
def test_a_secret_file_that_cannot_work_is_named(tmp_path: Path, query: str, content: bytes, says: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(ConfigurationError, match=says) as caught:
        open_source("kafka://host?" + query.format(tmp_path / "secret"), get("evm"))
    assert SECRET not in str(caught.value)
    assert caught.value.setting in ("password_file", "sasl.password_file")


def test_two_passwords_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    with pytest.raises(ConfigurationError, match="two ways"):
        with_secrets(parse_url(f"kafka://a:{SECRET}@host?password_file={tmp_path}/secret"))
