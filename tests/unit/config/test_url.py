"""URLs of streams and nodes: what they mean, what is refused, and that no secret is printed."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.config.secrets import with_secrets
from cardinal.config.url import Endpoint, is_secret, mux_of, parse_node_url, parse_url
from cardinal.errors import ConfigurationError

SECRET = "s3cr3t-Pa$$"  # noqa: S105 - made up, to look for it in what is printed
SECRETS = (
    *("token", "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem"),
    *("sasl.oauthbearer.config", "sasl.oauthbearer.client.secret"),
    *("sasl.oauthbearer.assertion.private.key.passphrase", "sasl.oauthbearer.assertion.private.key.pem"),
)
"""librdkafka's sensitive properties, and ours."""

ENCODE = "percent-encode the password"


def test_a_kafka_url_has_brokers_and_options() -> None:
    url = parse_url("kafka://one:9093,two,[::1]:9094?compression.codec=lz4&linger.ms=5")
    assert url.hosts == ("one:9093", "two:9092", "[::1]:9094")
    assert url.options == {"compression.codec": "lz4", "linger.ms": "5"}
    assert (url.user, url.password) == (None, None)


def test_defaults_keep_its_own_options_and_options_replace_them() -> None:
    url = parse_url("kafka://one:9093?linger.ms=5&group.id=g")
    given = {"linger.ms": "7", "compression.type": "lz4"}
    assert url.with_defaults(given).options == {**given, "linger.ms": "5", "group.id": "g"}
    assert url.with_options(given).options == {**given, "group.id": "g"}
    mux = mux_of([(None, url), (None, url)])
    assert [member.without_group().options for _, member in mux.members] == [{"linger.ms": "5"}] * 2


@pytest.mark.parametrize(
    ("login", "user", "password"),
    [
        ("al%20ice:a%2Fs3cr3t%40c%3A@", "al ice", "a/s3cr3t@c:"),
        ("alice:a:b@", "alice", "a:b"),
        ("alice@", "alice", None),
        (":a@", None, "a"),
    ],
)
def test_credentials_are_decoded(login: str, user: str | None, password: str | None) -> None:
    url = parse_url(f"kafka://{login}host")
    assert (url.user, url.password, url.hosts) == (user, password, ("host:9092",))


@pytest.mark.parametrize(
    "text",
    [
        f"kafka://alice:{SECRET}@host:9092?tls=1",
        f"kafka://host?sasl.username=alice&sasl.password={SECRET}",
        f"mux:kafka://alice:{SECRET}@host:9092,64=kafka://bob:{SECRET}@other?ssl.key.password={SECRET}",
        *(f"kafka://host?{name}={SECRET}" for name in SECRETS),
        *(f"mux:ws://host:9092?{name}={SECRET},null://" for name in SECRETS),
    ],
)
def test_no_secret_is_printed(text: str) -> None:
    url = parse_url(text)
    for shown in (str(url), repr(url), f"{url}", str([url]), url.address):
        assert "s3cr3t" not in shown
    assert "host:9092" in str(url)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("localhost:9092", "kafka://host:port"),
        ("", "kafka://host:port"),
        ("pulsar://host", "'pulsar'"),
        ("kafak://host", "did you mean kafka?"),
        ("http://host", "the URL of a node, not of a stream"),
        ("kafka://", "names no host"),
        ("kafka://?tls=1", "names no host"),
        ("kafka://host:port", "host 1 of this kafka URL cannot be read: write kafka://host:port, with a port from 1"),
        ("kafka://one,two:909x", "host 2"),
        ("kafka://host:65536", "host 1"),
        ("kafka://ho st:1", "host 1"),
        ("kafka://[::1:9092", "an IPv6 address in brackets"),
        (f"kafka://alice:{SECRET}%40host", "an @ behind a percent-encoded password"),
        (f"kafka://alice:{SECRET}/x@host", ENCODE),
        (f"kafka://alice:{SECRET}?x@host", ENCODE),
        (f"kafka://a:{SECRET}@one,a:{SECRET}@two", ENCODE),
        (f"kafka://alice:a{SECRET}@c@host", ENCODE),
        ("kafka://host?sasl.username=a@b", ENCODE),
        ("kafka://host/topic", "topics come from the application"),
        ("kafka://host?tls", "?option=value"),
        ("kafka://host?a=1&a=2", "'a' twice"),
        ("memory://", "memory://name"),
        ("file://", "file://DIR"),
        ("file://?fsync=never", "file://DIR"),
        ("file:///a#b", "%23"),
        ("file:///a%00b", "file://DIR"),
        ("null://host", "null://"),
        ("mux:", "begins with a scheme"),
        ("mux:mux:kafka://a", "list all members in one"),
        ("mux:64=kafka://a,64=kafka://b", "64 follows 64"),
        ("mux:kafka://a,9=kafka://b,3=kafka://c", "3 follows 9"),
        (f"file://alice:{SECRET}@/dir", "a file URL has no user and no password: write file://DIR, with %40"),
        (f"file://alice:{SECRET}@host/dir?fsync=never", "a file URL has no user and no password"),
    ],
)
def test_invalid_input_is_refused_with_the_form_to_use(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(text)
    assert says in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.setting is not None


@pytest.mark.parametrize("text", [Path("/x"), 5])
def test_what_is_not_text_is_refused(text: object) -> None:
    for parse in (parse_url, parse_node_url):
        with pytest.raises(ConfigurationError, match="is text, not"):
            parse(text)  # type: ignore[operator] # on purpose


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
        f"kafka://alice:12345?{SECRET}@host:9092",
        f"kafka://alice:12345/{SECRET}@host:9092",
        f"kafka://alice:12345#{SECRET}@host:9092",
        "kafka://alice:123456s3cr3t,host",
        f"mux:kafka://alice:{SECRET},x://b@host",
        f"kafka://alice:{SECRET}@one:9092,alice:{SECRET}@two:9092",
        f"kafka://alice:{SECRET}@x:y@host",
        f"file://alice@{SECRET}",
        f"file://alice:1?{SECRET}=x@/dir",
        f"mux:null://,file://alice:{SECRET}@/dir",
        f"null://alice:1/{SECRET}@",
        f"memory://alice:1/{SECRET}@here",
        f"ws://alice:1#{SECRET}@host",
        f"ws://host?a?{SECRET}=c",
    ],
)
def test_a_refusal_never_repeats_the_password(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(text)
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in str(caught.value.setting)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_plus_in_an_option_is_one() -> None:
    url = parse_url("kafka://host?sasl.password=a+b/c%2Bd%20e==&client.id=x+y")
    assert url.options == {"sasl.password": "a+b/c+d e==", "client.id": "x+y"}
    assert parse_node_url("ws://host#chain=a+b%20c.toml&lag=2").options == {"chain": "a+b c.toml", "lag": "2"}


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9._-]+", fullmatch=True).filter(lambda name: not is_secret(name)), st.text()
    ),
    st.sampled_from(["kafka://host", "file:///a+b,c", "null://"]),
)
def test_a_url_without_secrets_reads_back_equal(options: dict[str, str], where: str) -> None:
    url = replace(parse_url(where), options=options)
    assert parse_url(str(url)) == url
    mux = mux_of([(None, url), (7, url)])
    assert parse_url(str(mux)) == mux


def test_a_parsed_url_passes_through() -> None:
    url, node = parse_url("kafka://host"), parse_node_url("ws://host")
    assert parse_url(url) is url
    assert parse_node_url(node) is node


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("file:///var/lib/x", "/var/lib/x"),
        ("file://here/and/there", "here/and/there"),
        ("file://here", "here"),
        ("file:///a%20b%3Fc%23d", "/a b?c#d"),
        ("file:///a@b:c,d", "/a@b:c,d"),
        ("file://a%40b/c", "a@b/c"),
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


# --- secrets in files ------------------------------------------------------------------------------------------------


def test_a_secret_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(f"{SECRET}\n")
    (tmp_path / "two").write_text(f"other-{SECRET}")
    url = parse_url(f"kafka://alice@host?password_file={tmp_path}/one&ssl.key.password_file={tmp_path}/two")
    assert str(tmp_path) in str(url)  # where it is may be said
    read = with_secrets(url)
    assert read.password == SECRET
    assert read.options == {"ssl.key.password": f"other-{SECRET}"}
    for shown in (str(url), repr(url), str(read), repr(read)):
        assert SECRET not in shown


@pytest.mark.parametrize(
    ("query", "content", "says"),
    [
        ("password_file=/nowhere/at/all", b"", "cannot be read"),
        ("password_file={}", b"", "empty"),
        ("password_file={}", b"\xff" + SECRET.encode(), "text"),
        ("password_file={}", SECRET.encode() * 9_999, "too large"),
        ("sasl.password=s3cr3t&sasl.password_file={}", SECRET.encode(), "twice"),
    ],
)
def test_a_secret_file_that_cannot_work_is_named(tmp_path: Path, query: str, content: bytes, says: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(ConfigurationError, match=says) as caught:
        with_secrets(parse_url("kafka://host?" + query.format(tmp_path / "secret")))
    assert SECRET not in str(caught.value)
    assert caught.value.setting in ("password_file", "sasl.password_file")


def test_two_passwords_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    with pytest.raises(ConfigurationError, match="password is given twice"):
        with_secrets(parse_url(f"kafka://a:{SECRET}@host?password_file={tmp_path}/secret"))


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_a_comma_separates_nodes_only_where_a_scheme_follows() -> None:
    url = parse_node_url(
        "ws://u:s3cr3t@a:1/k,ey#token=x%2Chttp://,http://b:2?x=1,ipc:///run/g.ipc#lag=3&lag=4&header=,b"
    )
    assert [node.url for node in url.nodes] == ["ws://u:s3cr3t@a:1/k,ey", "http://b:2?x=1", "ipc:///run/g.ipc"]
    assert [dict(node.credentials) for node in url.nodes] == [{"token": "x,http://"}, {}, {"header": ",b"}]
    assert url.options == {"lag": "4"}
    assert url.scheme == "ws"
    assert f"{url} {url!r} {url.nodes}".count("s3cr3t") == 0
    assert str(url) == "ws://a:1, http://b:2, ipc:///run/g.ipc"
    assert url.with_options({"lag": "1", "rate": "5"}).options == {"lag": "1", "rate": "5"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "begins with a scheme"),
        ("localhost:8545", "begins with a scheme"),
        (f"http://u:{SECRET}@[::1", "cannot be read: write http://host:port, and percent-encode the password"),
        (f"http://u:{SECRET}/x@host:1", "percent-encode the password"),
        (f"http://u:{SECRET}@host:port/s3cr3t", "percent-encode the password"),
        ("http://a#lag=2,http://b", "behind # of a node that is not the last there may be token, token_file, header"),
    ],
)
def test_a_node_url_that_cannot_be_read_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_node_url(text)
    assert says in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://localhost:8545", "http://localhost:8545"),
        ("https://user:sesame@node.example/v3/sesame?key=sesame#sesame", "https://node.example"),
        ("wss://sesame@node.example:443/ws", "wss://node.example:443"),
        ("ws://user:sesame@[::1]:8546/", "ws://[::1]:8546"),
        ("ipc:///run/geth.ipc", "ipc:///run/geth.ipc"),
        ("http://", "http://"),
    ],
)
def test_of_a_node_only_scheme_host_and_port_are_printed(url: str, shown: str) -> None:
    (node,) = parse_node_url(url).nodes
    assert (node.address, repr(node)) == (shown, f"Endpoint({shown!r})")


def _basic(login: str, encoding: str = "utf-8") -> str:
    return base64.b64encode(login.encode(encoding)).decode()


@pytest.mark.parametrize(
    ("url", "hidden"),
    [
        ("https://node.example/v3?key=s3sam%65open", {"s3sam%65open", "s3sameopen"}),
        ("https://node.example/v3?key=s3same+open%2B", {"s3same+open%2B", "s3same open+", "s3same+open+"}),
        ("https://node.example/v3?s3same-open", {"s3same-open"}),
        ("https://node.example/s3sam%65open", {"s3sam%65open", "s3sameopen"}),
        ("https://s3same-open@node.example", {"s3same-open", _basic("s3same-open:")}),
        ("https://s3sam%65open@node.example", {"s3sam%65open", "s3sameopen", _basic("s3sameopen:")}),
        ("https://al:a%40sesame@node.example", {"a%40sesame", "a@sesame", _basic("al:a@sesame")}),
        (
            "https://al:%C3%A9sesame@node.example",
            {"%C3%A9sesame", "\u00e9sesame", _basic("al:\u00e9sesame"), _basic("al:\u00e9sesame", "latin-1")},
        ),
        ("https://al:\u20acsesame@node.example", {"\u20acsesame", _basic("al:\u20acsesame"), _basic("al:?sesame")}),
        ("https://al@node.example/rpc?v=1", {_basic("al:")}),
        ("ipc:///run/geth-socket.ipc", set()),
    ],
)
def test_what_a_url_hides_is_listed_in_every_form_that_a_node_may_repeat(url: str, hidden: set[str]) -> None:
    assert set(Endpoint.parse(url).secrets()) == hidden
