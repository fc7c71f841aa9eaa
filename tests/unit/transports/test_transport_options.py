"""Options and logins that a transport does not have are refused by their name, before anything is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cardinal.config.options import Options, nearest
from cardinal.config.settings import find_url
from cardinal.config.url import parse_url
from cardinal.errors import ConfigurationError
from cardinal.testing import MemoryBroker
from cardinal.transports import list_topics, open_sink, open_source
from cardinal.transports.file.settings import FileSettings
from cardinal.transports.kafka.settings import KafkaSettings
from cardinal.transports.websocket.settings import websocket_settings
from cardinal_connectors.ethereum.url import NodeOptions
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
        (
            "ws://host?ssl.ca.location=/ca",
            "ssl.ca.location is for TLS, and ws:// is not encrypted: write wss://host:80",
        ),
        (f"ws://host?ssl.key.password={SECRET}", "ssl.key.password is for TLS"),
        (f"wss://host?ssl.key.password={SECRET}", "ssl.key.password is of no use without ssl.certificate.location"),
        ("wss://host?ssl.key.location=/key", "ssl.key.location is of no use without ssl.certificate.location"),
    ],
)
def test_an_option_of_a_certificate_is_refused_where_none_is_sent(url: str, says: str) -> None:
    assert says in str(_refused(lambda: websocket_settings(parse_url(url))))


def test_a_servers_token_may_come_from_the_environment_where_it_is_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARDINAL_TOKEN", "")
    assert websocket_settings(parse_url("ws://host")).headers == ()
    monkeypatch.setenv("CARDINAL_TOKEN", f"{SECRET}\n")
    error = _refused(lambda: websocket_settings(parse_url("ws://host")))
    assert "the token of CARDINAL_TOKEN has characters" in str(error)


def test_a_servers_token_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    settings = websocket_settings(parse_url(f"ws://host?token_file={file}"))
    assert settings.headers == (("Authorization", "Bearer one"),)
