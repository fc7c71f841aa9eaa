from __future__ import annotations

from pathlib import Path

import pytest

from cardinal.errors import ConfigurationError
from cardinal.transports.secrets import with_secrets
from cardinal.transports.settings import TransportSettings, find_url, load_settings
from cardinal.transports.url import parse_url

SECRET = "s3cr3t-Pa$$"  # noqa: S105 - made up, to look for it in what is printed

FILE = f"""
[streams.main]
url = "kafka://one:1,two:2?tls=1&linger.ms=5"
user = "alice"
password = "{SECRET}"

[streams.main.options]
"compression.type" = "lz4"
"linger.ms" = 9

[streams.new]
url = "kafka://bob:{SECRET}@three"

[streams.copy]
url = "file:///x?fsync=never"

[streams.moving]
members = ["main", "128=new", "copy"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "cardinal.toml"
    path.write_text(FILE)
    return path


def test_a_stream_is_found_by_its_name(config: Path) -> None:
    url = find_url("main", config, {})
    assert url.hosts == ("one:1", "two:2")
    assert (url.user, url.password) == ("alice", SECRET)
    assert url.options == {"tls": "1", "linger.ms": "9", "compression.type": "lz4"}
    assert find_url("copy", config, {}) == parse_url("file:///x?fsync=never")


def test_a_mux_is_made_of_other_streams(config: Path) -> None:
    url = find_url("moving", config, {"CARDINAL_NEW_PASSWORD": "newer"})
    assert [first for first, _ in url.members] == [0, 128, 192]
    assert [member.password for _, member in url.members] == [SECRET, "newer", None]


def test_the_environment_goes_before_the_file(config: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    environ = {
        "CARDINAL_MAIN_URL": "kafka://elsewhere",
        "CARDINAL_MAIN_USER": "carol",
        "CARDINAL_MAIN_PASSWORD_FILE": str(tmp_path / "secret"),
    }
    url = with_secrets(find_url("main", config, environ))
    assert (url.hosts, url.user, url.password) == (("elsewhere:9092",), "carol", "from a file")


def test_a_stream_may_be_named_by_the_environment_alone() -> None:
    environ = {"CARDINAL_MY_STREAM_URL": "kafka://host", "CARDINAL_MY_STREAM_PASSWORD": SECRET}
    assert find_url("my-stream", None, environ).password == SECRET
    with pytest.raises(ConfigurationError, match="begins with a scheme"):
        find_url("other", None, environ)
    assert find_url("kafka://host", None, environ) == parse_url("kafka://host")


def test_nothing_that_is_printed_holds_a_secret(config: Path) -> None:
    settings = load_settings(config)
    urls = [settings.url(name, {"CARDINAL_COPY_PASSWORD": SECRET}) for name in settings.streams]
    for shown in (repr(settings), str(settings), settings.model_dump_json(), repr(urls), *map(str, urls)):
        assert SECRET not in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"password = {SECRET}", "no TOML"),
        (f"[streams.a]\npasword = '{SECRET}'", "streams.a.pasword"),
        (f"[streams.a]\nurl = ['{SECRET}']", "streams.a.url"),
        (f"[streams.'{SECRET}/']\nurl = 'x'", "streams"),
        (f"[streams.a.options]\nx = ['{SECRET}']", "streams.a.options.x"),
        (f"[streams.a]\nurl = 'kafka://u:{SECRET}@host:x'", "no port"),
        (f"[streams.a]\nurl = '{SECRET}'", "begins with a scheme"),
        (f"[streams.a]\nuser = '{SECRET}'", "neither url nor members"),
        (f"[streams.a]\nurl='kafka://h'\npassword='{SECRET}'\npassword_file='/x'", "two ways"),
        (f"[streams.a]\nurl='kafka://u:{SECRET}@h'\nmembers=['b']", "no url"),
        ("[streams.a]\nmembers=['b']", "no stream is called 'b'"),
        ("[streams.a]\nmembers=['a']", "no member of itself"),
        ("[streams.b]\nmembers=['a']\n[streams.a]\nmembers=['b']", "no member of itself"),
        ("x = 1", "x: Extra"),
    ],
)
def test_settings_that_cannot_work_are_refused_without_repeating_a_secret(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "cardinal.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=says) as caught:
        find_url("a", path, {})
    assert SECRET not in str(caught.value)
    assert caught.value.setting is not None
    assert SECRET not in caught.value.setting
    assert caught.value.__cause__ is None


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigurationError, match=str(path)):
            load_settings(path)
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        load_settings(tmp_path / "latin")


def test_settings_without_streams_name_none() -> None:
    with pytest.raises(ConfigurationError, match="none"):
        TransportSettings().url("a", {})
