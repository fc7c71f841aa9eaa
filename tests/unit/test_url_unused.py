"""What is said of a stream and would be of no use to its transport is refused by its name, before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cardinal.errors import ConfigurationError
from cardinal.testing import MemoryBroker
from cardinal.transports import list_topics, open_sink, open_source
from cardinal.transports.parsing import parse_url
from cardinal.transports.settings import find_url
from cardinal.transports.websocket.settings import websocket_settings
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
def test_a_login_that_nobody_asks_for_is_refused_wherever_it_is_written(
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
def test_a_login_in_the_url_of_a_memory_broker_is_refused(opened: Opening) -> None:
    broker = MemoryBroker("here")
    assert "no use for a user and a password" in str(_refused(lambda: opened(f"memory://alice:{SECRET}@here")))
    broker.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"file://alice:{SECRET}@/dir", "a file URL has no user and no password: write file://DIR, with %40"),
        (f"file://alice:{SECRET}@host/dir?fsync=never", "a file URL has no user and no password"),
        (f"file://alice@{SECRET}", "a file URL has no user and no password"),
        (f"file://alice:1?{SECRET}=x@/dir", "a file URL has no user and no password"),
        (f"mux:null://,file://alice:{SECRET}@/dir", "a file URL has no user and no password"),
        (f"null://alice:{SECRET}@", "a null URL names nothing, and has no user and no password: write null://"),
        (f"null://alice:1/{SECRET}@", "a null URL has no user and no password: write null://, one ? before"),
        (f"memory://alice:1/{SECRET}@here", "has no user and no password: write memory://name"),
        (f"ws://alice:1#{SECRET}@host", "has no user and no password: write ws://host:port"),
        (
            f"ws://host?a?{SECRET}=c",
            "write ws://host:port, one ? before its options if",
        ),
    ],
)
def test_a_login_where_a_folder_or_nothing_belongs_is_refused_and_not_repeated(text: str, says: str) -> None:
    assert says in str(_refused(lambda: parse_url(text)))


def test_a_folder_may_have_an_at_sign() -> None:
    for text, folder in (("file:///a@b", "/a@b"), ("file://a%40b/c", "a@b/c")):
        assert parse_url(text).address == folder
        assert parse_url(str(parse_url(text))) == parse_url(text)


@pytest.mark.parametrize("opened", OPENINGS)
def test_an_option_of_another_transport_is_refused(tmp_path: Path, opened: Opening) -> None:
    broker = MemoryBroker("here")
    for url, option in (
        (f"file://{tmp_path}/log", "linger.ms"),
        ("null://", "fsync"),
        ("memory://here", "cardinal.partitions"),
    ):
        error = _refused(lambda url=url, option=option: opened(f"{url}?{option}=5"))
        assert f"there is no option {option} of {url.partition(':')[0]}:// URLs" in str(error)
        assert error.setting == option
    assert not (tmp_path / "log").exists()
    broker.close()


@pytest.mark.parametrize("fsync", ["", "fsync=always&", "fsync=never&"])
def test_an_interval_is_refused_where_the_disk_is_not_asked_at_intervals(tmp_path: Path, fsync: str) -> None:
    url = f"file://{tmp_path}/log?{fsync}fsync.interval.ms=5"
    for opened in OPENINGS:
        error = _refused(lambda opened=opened: opened(url))
        assert "fsync.interval.ms is for fsync=interval only" in str(error)
    assert not (tmp_path / "log").exists()


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
def test_what_is_for_a_certificate_is_refused_where_none_is_shown(url: str, says: str) -> None:
    assert says in str(_refused(lambda: websocket_settings(parse_url(url))))
