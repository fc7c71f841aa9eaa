"""Options and logins that a transport does not have are refused by their name, before anything is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cardinal.config.options import Options, nearest
from cardinal.config.settings import find_url
from cardinal.config.url import parse_url
from cardinal.errors import ConfigurationError
from cardinal.transports import list_topics, open_sink, open_source
from cardinal.transports.file.settings import FileSettings
from cardinal.transports.kafka.settings import KafkaSettings
from cardinal_devkit import MemoryBroker
from cardinal_ethereum.feed.url import NodeOptions
from cardinal_relay.transport.settings import websocket_settings
from file_logs import APP

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    from cardinal.transports import TransportUrl

    Opening: TypeAlias = Callable[[str | TransportUrl], object]

SECRET = "s3cr3t"  # noqa: S105 - made up, to look for it in what is printed

OPENINGS: tuple[Opening, ...] = (
    lambda url: open_sink(url, APP, producer_id="a"),
    lambda url: open_source(url, APP),
    list_topics,
)


def _refused(call: Callable[[], object]) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        call()
    assert SECRET not in f"{caught.value!r} {caught.value.setting}"
    assert "\n" not in str(caught.value)
    return caught.value


class _Some(Options):
    some_number: int = 1
    other: str = ""


def test_an_option_is_named_as_its_field_with_dots() -> None:
    assert _Some.read({"some.number": "5"}, "x://").some_number == 5
    error = _refused(lambda: _Some.read({"some.nunber": SECRET}, "x:// URLs"))
    assert str(error) == "there is no option some.nunber of x:// URLs: did you mean some.number?"
    assert str(_refused(lambda: _Some.read({"zzz": SECRET}, "x:// URLs"))).endswith(": use other, some.number")
    assert "there is no option some_number" in str(_refused(lambda: _Some.read({"some_number": "5"}, "x://")))
    error = _refused(lambda: _Some.read({"some.number": SECRET}, "x:// URLs"))
    assert str(error).startswith("the option some.number of x:// URLs cannot be used: input should be a valid integer")


@pytest.mark.parametrize("options", [FileSettings, KafkaSettings, NodeOptions])
def test_every_option_has_a_description_and_a_default(options: type[Options]) -> None:
    for name, field in options.model_fields.items():
        assert field.description, name
        assert not field.is_required() or name == "address"


def test_the_nearest_name_is_suggested_or_all_are_listed() -> None:
    assert nearest("lags", ["lag", "rate"]) == "did you mean lag?"
    assert nearest("x", ["lag", "rate"]) == "use lag, rate"
    assert nearest("x", []) == "use none"
    assert nearest("x", ["lag"], "read the manual") == "read the manual"


@pytest.mark.parametrize("where", ["file://{}/log", "null://", "memory://here"])
@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"user": "alice"}, "no use for a user:"),
        ({"password": SECRET}, "no use for a password:"),
        ({"user": "alice", "password": SECRET}, "no use for a user and a password:"),
        ({"password_file": "{}/secret"}, "no use for a password:"),
    ],
)
@pytest.mark.parametrize("opened", OPENINGS)
def test_a_login_of_a_transport_without_one_is_refused_wherever_it_is_written(
    tmp_path: Path, where: str, said: dict[str, str], named: str, opened: Opening
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    said = {name: value.format(tmp_path) for name, value in said.items()}
    url, broker = where.format(tmp_path), MemoryBroker("here")
    config = tmp_path / "cardinal.toml"
    config.write_text("\n".join(["[streams.a]", f"url = '{url}'", *(f"{name} = '{said[name]}'" for name in said)]))
    found = find_url("a", config, {})
    assert named in str(_refused(lambda: opened(found)))
    found = find_url("a", None, {"CARDINAL_A_URL": url, **{f"CARDINAL_A_{name.upper()}": said[name] for name in said}})
    assert named in str(_refused(lambda: opened(found)))
    assert not (tmp_path / "log").exists()
    broker.close()


@pytest.mark.parametrize("opened", OPENINGS)
@pytest.mark.parametrize("url", [f"memory://alice:{SECRET}@here", f"null://alice:{SECRET}@"])
def test_a_login_in_the_url_of_a_transport_without_one_is_refused(opened: Opening, url: str) -> None:
    broker = MemoryBroker("here")
    assert "no use for a user and a password" in str(_refused(lambda: opened(url)))
    broker.close()


@pytest.mark.parametrize("opened", OPENINGS)
def test_an_option_of_another_transport_is_refused(tmp_path: Path, opened: Opening) -> None:
    broker = MemoryBroker("here")
    for url, option in (
        (f"file://{tmp_path}/log", "linger.ms"),
        (f"file://{tmp_path}/log", "segment_bytes"),
        ("null://", "fsync"),
        ("memory://here", "cardinal.partitions"),
    ):
        error = _refused(lambda url=url, option=option: opened(f"{url}?{option}=5"))
        assert f"there is no option {option} of {url.partition(':')[0]}:// URLs" in str(error)
        assert error.setting == option
    assert not (tmp_path / "log").exists()
    broker.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"ws://user:{SECRET}@host", "token_file"),
        ("ws://host?nonsense=1", "window.bytes"),
        ("ws://host?window.bytes=0", "window.bytes"),
        ("ws://host?path=relative", "path"),
        (f"ws://host?token={SECRET}%0a", "no header can carry"),
        ("ws://host?ssl.ca.location=/ca", "is for TLS, and ws:// is not encrypted: write wss://host:80"),
        (f"ws://host?ssl.key.password={SECRET}", "ssl.key.password is for TLS"),
        (f"wss://host?ssl.key.password={SECRET}", "ssl.key.password is of no use without ssl.certificate.location"),
        ("wss://host?ssl.key.location=/key", "ssl.key.location is of no use without ssl.certificate.location"),
        ("wss://host?ssl.ca.location=/does/not/exist", "ssl.ca.location cannot be used: No such file"),
    ],
)
def test_a_websocket_option_that_cannot_work_is_named(url: str, says: str) -> None:
    assert says in str(_refused(lambda: open_source(url, APP)))


def test_a_websocket_url_has_hosts_and_a_path_and_cannot_be_written_to() -> None:
    assert websocket_settings(parse_url("ws://a,b:9?path=/x")).addresses == ("ws://a:80/x", "ws://b:9/x")
    assert websocket_settings(parse_url("wss://a")).addresses == ("wss://a:443/",)
    assert websocket_settings(parse_url("cardinal://[::1]")).addresses == ("ws://[::1]:8765/",)
    assert "read only" in str(_refused(lambda: open_sink("ws://127.0.0.1:1", APP, producer_id="a")))


def test_a_servers_token_comes_from_the_url_its_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def headers(options: str = "") -> tuple[tuple[str, str], ...]:
        return websocket_settings(parse_url(f"ws://host{options}")).headers

    monkeypatch.setenv("CARDINAL_TOKEN", "")
    assert headers() == ()
    monkeypatch.setenv("CARDINAL_TOKEN", f"{SECRET}\n")
    assert "the token of CARDINAL_TOKEN has characters" in str(_refused(headers))
    monkeypatch.setenv("CARDINAL_TOKEN", "two")
    assert headers() == (("Authorization", "Bearer two"),)
    (tmp_path / "token").write_text("one")
    assert headers(f"?token_file={tmp_path}/token") == headers("?token=one") == (("Authorization", "Bearer one"),)
