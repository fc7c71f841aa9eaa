from __future__ import annotations

from pathlib import Path

import pytest

from cardinal.errors import ConfigurationError
from cardinal.transports.node_url import join_nodes, options_of_all, own_options, split_nodes
from cardinal.transports.secrets import with_secrets
from cardinal.transports.settings import find_node, find_url, load_settings
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
    url = find_url("moving", config, {"CARDINAL_NEW_PASSWORD": f"newer-{SECRET}"})
    assert [first for first, _ in url.members] == [0, 128, 192]
    assert [member.password for _, member in url.members] == [SECRET, f"newer-{SECRET}", None]


def test_the_environment_goes_before_the_file(config: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET} from a file\n")
    environ = {
        "CARDINAL_MAIN_URL": "kafka://elsewhere",
        "CARDINAL_MAIN_USER": "carol",
        "CARDINAL_MAIN_PASSWORD_FILE": str(tmp_path / "secret"),
    }
    url = with_secrets(find_url("main", config, environ))
    assert (url.hosts, url.user, url.password) == (("elsewhere:9092",), "carol", f"{SECRET} from a file")


def test_a_stream_may_be_named_by_the_environment_alone() -> None:
    environ = {"CARDINAL_MY_STREAM_URL": "kafka://host", "CARDINAL_MY_STREAM_PASSWORD": SECRET}
    assert find_url("my-stream", None, environ).password == SECRET
    with pytest.raises(ConfigurationError, match="CARDINAL_OTHER_URL"):
        find_url("other", None, environ)
    assert find_url("kafka://host", None, environ) == parse_url("kafka://host")


def test_nothing_that_is_printed_holds_a_secret(config: Path) -> None:
    settings = load_settings(config)
    urls = [find_url(name, config, {"CARDINAL_COPY_PASSWORD": SECRET}) for name in settings.streams]
    for shown in (repr(settings), str(settings), settings.model_dump_json(), repr(urls), *map(str, urls)):
        assert SECRET not in shown


def test_a_url_in_the_environment_goes_before_what_the_file_says_of_the_same(config: Path) -> None:
    environ = {"CARDINAL_MAIN_URL": "kafka://dave:his-s3cr3t@elsewhere?linger.ms=1"}
    url = find_url("main", config, environ)
    assert (url.user, url.password) == ("dave", "his-s3cr3t")
    assert url.options == {"linger.ms": "1", "compression.type": "lz4"}


def test_the_environment_may_name_the_file(config: Path) -> None:
    environ = {"CARDINAL_CONFIG": str(config)}
    assert find_url("copy", None, environ) == parse_url("file:///x?fsync=never")
    assert find_url("copy", None, environ) == find_url("copy", str(config), {})
    assert find_url("kafka://host", None, {"CARDINAL_CONFIG": "/nowhere"}) == parse_url("kafka://host")


def test_a_url_that_was_found_passes_through(config: Path) -> None:
    url = find_url("main", config, {})
    assert find_url(url, config, {}) is url


def test_the_processs_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARDINAL_MINE_URL", "memory://mine")
    assert find_url("mine") == parse_url("memory://mine")


def test_options_may_be_written_as_they_come_to_hand(tmp_path: Path) -> None:
    path = tmp_path / "cardinal.toml"
    path.write_text("""
        streams.short = "null://"
        [streams.long]
        url = "kafka://host"
        [streams.long.options]
        "linger.ms" = 0.5
        compression.type = "lz4"    # a dot in TOML is a table
        tls = true
        enable.idempotence = false
        cardinal.partitions = 12
    """)
    assert find_url("short", path, {}) == parse_url("null://")
    assert find_url("long", path, {}).options == {
        "linger.ms": "0.5",
        "compression.type": "lz4",
        "tls": "true",
        "enable.idempotence": "false",
        "cardinal.partitions": "12",
    }


def test_a_node_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "node").write_text(f"https://node.example/v3/{SECRET}\n")
    path = tmp_path / "cardinal.toml"
    path.write_text(f"nodes.own = 'ws://127.0.0.1:8546'\n[nodes.far]\nurl_file = '{tmp_path}/node'")
    assert find_node("own", path, {}) == "ws://127.0.0.1:8546"
    assert find_node("far", path, {}) == f"https://node.example/v3/{SECRET}"
    assert find_node("far", path, {"CARDINAL_FAR_URL": "http://near"}) == "http://near"
    assert find_node("mine", None, {"CARDINAL_MINE_URL_FILE": str(tmp_path / "node")}).endswith(SECRET)
    assert find_node("dev://?seed=7", None, {}) == "dev://?seed=7"
    assert SECRET not in repr(load_settings(path))


def test_options_of_a_node_stand_behind_its_url(tmp_path: Path) -> None:
    path = tmp_path / "cardinal.toml"
    path.write_text("""
        [nodes.own]
        url = "ws://one:8546#lag=2&rate=9"
        options = { state = true, lag = 3, chain = "a b.toml" }
        [nodes.near]
        url = "http://two:8545"
        options.workers = 0
        [nodes.far]
        url = "http://three:8545"
        options = { workers = 0 }
    """)
    assert find_node("own", path, {}) == "ws://one:8546#lag=2&rate=9&state=yes&lag=3&chain=a%20b.toml"
    environ = {"CARDINAL_OWN_URL": "http://else#lag=4"}
    assert find_node("own", path, environ) == "http://else#state=yes&lag=3&chain=a%20b.toml&lag=4"
    assert find_node("near,far", path, {}) == "http://two:8545,http://three:8545#workers=0"
    with pytest.raises(ConfigurationError, match="'own' and 'far' have different options") as caught:
        find_node("own,far", path, {})
    assert caught.value.setting == "nodes.far"


NODES = f"""
[nodes.plain]
url = "http://one:8545#lag=2"

[nodes.far]
url = "https://two/v3#token_file=/in/the/url&lag=2"
token_file = "/run/sec rets/far"

[nodes.own]
url = "ws://three:8546"
token = "{SECRET}+&#"
header = "X-Api-Key"
options = {{ lag = 2 }}

[nodes.several]
url = "ws://four:8546#token_file=/four,ws://five:8546#lag=2"
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.toml"
    path.write_text(NODES)
    return path


def test_what_a_node_is_shown_stands_behind_its_url(nodes: Path) -> None:
    assert find_node("far", nodes, {}) == "https://two/v3#lag=2&token_file=/run/sec%20rets/far"
    found = find_node("own", nodes, {})
    assert own_options(found) == {"token": f"{SECRET}+&#", "header": "X-Api-Key"}
    assert options_of_all(found) == [("lag", "2")]
    settings = load_settings(nodes)
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert SECRET not in shown


def test_what_nodes_beside_each_other_are_shown_stays_with_each(nodes: Path) -> None:
    far, own = "https://two/v3#token_file=/run/sec%20rets/far", find_node("own", nodes, {}).replace("lag=2&", "")
    assert find_node("plain,far", nodes, {}) == f"http://one:8545,{far}&lag=2"
    assert find_node("far,own,plain", nodes, {}) == f"{far},{own},http://one:8545#lag=2"
    assert find_node("several,far", nodes, {}) == f"ws://four:8546#token_file=/four,ws://five:8546,{far}&lag=2"
    assert find_node("far,several", nodes, {}) == f"{far},ws://four:8546#token_file=/four,ws://five:8546#lag=2"


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({"CARDINAL_FAR_TOKEN": SECRET}, {"token": SECRET}),
        ({"CARDINAL_FAR_TOKEN_FILE": "/other"}, {"token_file": "/other"}),
        ({"CARDINAL_FAR_HEADER": "X-Key"}, {"token_file": "/run/sec rets/far", "header": "X-Key"}),
        ({"CARDINAL_FAR_URL": "http://else"}, {"token_file": "/run/sec rets/far"}),
        ({"CARDINAL_FAR_URL": "http://else#token_file=/mine"}, {"token_file": "/mine"}),
        ({"CARDINAL_FAR_URL": "http://else#token=x", "CARDINAL_FAR_TOKEN_FILE": "/other"}, {"token_file": "/other"}),
    ],
)
def test_variables_go_before_an_environments_url_and_that_before_the_file(
    nodes: Path, environ: dict[str, str], shown: dict[str, str]
) -> None:
    assert own_options(find_node("far", nodes, environ)) == shown


def test_node_of_the_environment_alone_is_shown_what_the_environment_says() -> None:
    environ = {
        "CARDINAL_MINE_URL": "http://host#lag=1",
        "CARDINAL_MINE_TOKEN_FILE": "/t",
        "CARDINAL_MINE_HEADER": "X-Key",
    }
    assert find_node("mine", None, environ) == "http://host#lag=1&token_file=/t&header=X-Key"


def test_one_token_for_several_urls_is_refused(nodes: Path) -> None:
    with pytest.raises(ConfigurationError, match="'several' has several URLs, and a token is one node's") as caught:
        find_node("several", nodes, {"CARDINAL_SEVERAL_TOKEN": SECRET})
    assert SECRET not in str(caught.value)


def test_token_in_a_file_of_settings_that_is_no_text_is_told_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[nodes.n]\nurl = 'http://h'\ntoken_file = 5")
    with pytest.raises(ConfigurationError, match=r"nodes\.n\.token_file in .* is a number: write a path in quotes"):
        find_node("n", tmp_path / "c.toml", {})


def test_a_comma_divides_nodes_only_where_a_scheme_follows() -> None:
    text = "ws://u:s3cr3t@a:1/k,ey#token=x%2Chttp://,http://b:2?x=1,ipc:///run/g.ipc#lag=3&token_file=/a,b"
    found = split_nodes(text)
    assert [node.url for node in found] == ["ws://u:s3cr3t@a:1/k,ey", "http://b:2?x=1", "ipc:///run/g.ipc"]
    assert [node.own for node in found] == ["token=x%2Chttp://", "", "token_file=/a,b"]
    assert [node.others for node in found] == ["", "", "lag=3"]
    assert join_nodes(found) == text


def test_a_plus_in_an_option_of_a_node_is_one() -> None:
    assert options_of_all("ws://host#chain=a+b%20c.toml&lag=2") == [("chain", "a+b c.toml"), ("lag", "2")]
