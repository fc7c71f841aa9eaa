"""Variables of the environment: what counts as set, and that what is wrong with one is told by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cardinal.errors import ConfigurationError
from cardinal.transports.node_url import own_options
from cardinal.transports.parsing import parse_url
from cardinal.transports.secrets import with_secrets
from cardinal.transports.settings import find_node, find_url
from cardinal.transports.websocket.settings import websocket_settings

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cr3t-Pa$$"  # noqa: S105 - made up, to look for it in what is printed
STREAM = ("URL", "USER", "PASSWORD", "PASSWORD_FILE")
NODE = ("URL", "URL_FILE", "TOKEN", "TOKEN_FILE", "HEADER")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    path = tmp_path / "cardinal.toml"
    path.write_text(
        f"[streams.main]\nurl = 'kafka://host'\nuser = 'alice'\npassword_file = '{tmp_path}/secret'\n"
        f"[nodes.own]\nurl = 'ws://host'\ntoken_file = '{tmp_path}/secret'\nheader = 'X-Key'\n"
    )
    return path


@pytest.mark.parametrize("names", [*((name,) for name in STREAM), STREAM])
def test_a_streams_variable_that_is_set_to_nothing_is_not_set(config: Path, names: tuple[str, ...]) -> None:
    url = with_secrets(find_url("main", config, {f"CARDINAL_MAIN_{name}": "" for name in names}))
    assert (url.hosts, url.user, url.password) == (("host:9092",), "alice", SECRET)


@pytest.mark.parametrize("names", [*((name,) for name in NODE), NODE])
def test_a_nodes_variable_that_is_set_to_nothing_is_not_set(config: Path, names: tuple[str, ...]) -> None:
    url = find_node("own", config, {f"CARDINAL_OWN_{name}": "" for name in names})
    assert url == find_node("own", config, {})
    assert own_options(url) == {"token_file": str(config.parent / "secret"), "header": "X-Key"}


def test_a_settings_file_that_is_named_by_nothing_is_none() -> None:
    environ = {"CARDINAL_CONFIG": "", "CARDINAL_MAIN_URL": "kafka://host", "CARDINAL_MAIN_USER": ""}
    assert find_url("main", None, environ) == parse_url("kafka://host")
    with pytest.raises(ConfigurationError, match="set CARDINAL_MAIN_URL, or give the settings file"):
        find_url("main", None, {"CARDINAL_CONFIG": "", "CARDINAL_MAIN_URL": ""})


def test_a_servers_token_that_is_set_to_nothing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARDINAL_TOKEN", "")
    assert websocket_settings(parse_url("ws://host")).headers == ()
    monkeypatch.setenv("CARDINAL_TOKEN", f"{SECRET}\n")
    with pytest.raises(ConfigurationError, match="the token of CARDINAL_TOKEN has characters") as caught:
        websocket_settings(parse_url("ws://host"))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"kafka://alice:{SECRET}@host:x", "host 1 is no port"),
        (f"'kafka://alice:{SECRET}@host'", "no transport is called '…'"),
        (SECRET, "a transport URL begins with a scheme"),
    ],
)
def test_what_is_wrong_with_a_url_begins_with_where_it_was_written(config: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match="^CARDINAL_MAIN_URL: .*" + says) as caught:
        find_url("main", config, {"CARDINAL_MAIN_URL": text})
    assert SECRET not in str(caught.value)
    config.write_text(f'streams.main = "{text}"')
    with pytest.raises(ConfigurationError, match=rf"^streams\.main\.url in {config}: .*{says}"):
        find_url("main", config, {})


def test_what_is_no_url_of_a_node_is_told_by_where_it_was_written(config: Path, tmp_path: Path) -> None:
    for name, text in (("URL", SECRET), ("URL_FILE", str(tmp_path / "secret"))):
        with pytest.raises(ConfigurationError, match=f"^CARDINAL_OWN_{name} gives no URL of a node") as caught:
            find_node("own", config, {f"CARDINAL_OWN_{name}": text})
        assert SECRET not in str(caught.value)
    config.write_text(f"nodes.own = '{SECRET}'")
    with pytest.raises(ConfigurationError, match=rf"^nodes\.own\.url in {config} gives no URL of a node"):
        find_node("own", config, {})
