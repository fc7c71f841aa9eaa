"""Streams and nodes by name: settings file, environment, their order, and one sentence for what cannot work."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from cardinal.config.secrets import with_secrets
from cardinal.config.settings import find_node, find_url, load_settings
from cardinal.config.url import NodeUrl, parse_node_url, parse_url
from cardinal.errors import ConfigurationError

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

[nodes.plain]
url = "http://one:8545#lag=2"

[nodes.far]
url = "https://two/v3#token_file=/in/the/url&lag=2"
token_file = "/run/sec rets/far"

[nodes.own]
url = "ws://three:8546"
token = "{SECRET}+&#"
header = "X-Api-Key"
options = {{ lag = 2, state = true }}

[nodes.several]
url = "ws://four:8546#token_file=/four,ws://five:8546#lag=2"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "cardinal.toml"
    path.write_text(FILE)
    return path


def credentials(url: NodeUrl) -> list[dict[str, str]]:
    return [dict(node.credentials) for node in url.nodes]


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_is_found_by_its_name(config: Path) -> None:
    url = find_url("main", config, {})
    assert url.hosts == ("one:1", "two:2")
    assert (url.user, url.password) == ("alice", SECRET)
    assert url.options == {"tls": "1", "linger.ms": "9", "compression.type": "lz4"}
    assert find_url("copy", config, {}) == parse_url("file:///x?fsync=never")
    assert find_url(url, config, {}) is url


def test_a_mux_consists_of_other_streams(config: Path) -> None:
    url = find_url("moving", config, {"CARDINAL_NEW_PASSWORD": f"newer-{SECRET}"})
    assert [first for first, _ in url.members] == [0, 128, 192]
    assert [member.password for _, member in url.members] == [SECRET, f"newer-{SECRET}", None]


def test_a_stream_may_be_defined_by_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"CARDINAL_MY_STREAM_URL": "kafka://host", "CARDINAL_MY_STREAM_PASSWORD": SECRET}
    assert find_url("my-stream", None, environ).password == SECRET
    with pytest.raises(ConfigurationError, match="CARDINAL_OTHER_URL"):
        find_url("other", None, environ)
    assert find_url("kafka://host", None, environ) == parse_url("kafka://host")
    monkeypatch.setenv("CARDINAL_MINE_URL", "memory://mine")
    assert find_url("mine") == parse_url("memory://mine")


def test_nothing_that_is_printed_holds_a_secret(config: Path) -> None:
    settings = load_settings(config)
    urls = [find_url(name, config, {"CARDINAL_COPY_PASSWORD": SECRET}) for name in settings.streams]
    nodes = [find_node(name, config, {"CARDINAL_FAR_TOKEN": SECRET}) for name in settings.nodes]
    texts = (repr(settings), str(settings), settings.model_dump_json(), repr(urls), repr(nodes))
    for shown in (*texts, *map(str, urls), *map(str, nodes)):
        assert SECRET not in shown


def test_the_environment_may_name_the_file(config: Path) -> None:
    environ = {"CARDINAL_CONFIG": str(config)}
    assert find_url("copy", None, environ) == parse_url("file:///x?fsync=never")
    assert find_url("copy", None, environ) == find_url("copy", str(config), {})
    assert find_url("kafka://host", None, {"CARDINAL_CONFIG": "/nowhere"}) == parse_url("kafka://host")


def test_options_may_be_written_as_toml_has_them(tmp_path: Path) -> None:
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


LAYERS = ("URL in the file", "file", "URL in the environment", "environment")


def _found(given: frozenset[str], folder: Path, *, by_file: bool) -> tuple[str | None, str | None, str | None]:
    """User, password and an option, where each of these layers has its own."""
    environ, lines = {}, []
    words = {layer: layer.replace(" ", "-") for layer in LAYERS}

    def password(layer: str) -> str:
        if not by_file:
            return words[layer]
        (folder / words[layer]).write_text(words[layer])
        return str(folder / words[layer])

    name = "password_file" if by_file else "password"

    def url(layer: str) -> str:
        if layer not in given:
            return "kafka://host"
        secret = f"?password_file={password(layer)}&" if by_file else "?"
        who = words[layer] if by_file else f"{words[layer]}:{words[layer]}"
        return f"kafka://{who}@host{secret}linger.ms={LAYERS.index(layer)}"

    lines.append(f'url = "{url(LAYERS[0])}"')
    if LAYERS[1] in given:
        lines += [f'user = "{words[LAYERS[1]]}"', f'{name} = "{password(LAYERS[1])}"', "options.linger.ms = 1"]
    if LAYERS[2] in given:
        environ["CARDINAL_MAIN_URL"] = url(LAYERS[2])
    if LAYERS[3] in given:
        environ |= {
            "CARDINAL_MAIN_USER": words[LAYERS[3]],
            f"CARDINAL_MAIN_{name.upper()}": password(LAYERS[3]),
        }
    config = folder / "cardinal.toml"
    config.write_text("\n".join(["[streams.main]", *lines]))
    found = with_secrets(find_url("main", config, environ))
    return found.user, found.password, found.options.get("linger.ms")


@pytest.mark.parametrize("by_file", [False, True], ids=["as text", "in a file"])
def test_the_first_layer_that_has_a_setting_decides(tmp_path: Path, *, by_file: bool) -> None:
    """Every choice of places: variables, then the environment's URL, then the file's settings, then the file's URL."""
    order = (3, 2, 1, 0)
    for chosen in product((False, True), repeat=4):
        given = frozenset(layer for layer, is_there in zip(LAYERS, chosen, strict=True) if is_there)
        first = next((LAYERS[at].replace(" ", "-") for at in order if LAYERS[at] in given), None)
        option = next((str(at) for at in order if LAYERS[at] in given and at != 3), None)
        assert _found(given, tmp_path, by_file=by_file) == (first, first, option), sorted(given)


def test_a_login_of_the_file_is_not_for_another_transport_of_the_environment(config: Path) -> None:
    url = find_url("main", config, {"CARDINAL_MAIN_URL": "file:///log"})
    assert (url.scheme, url.user, url.password) == ("file", None, None)
    url = find_url("main", config, {"CARDINAL_MAIN_URL": "kafka://other"})
    assert (url.user, url.password) == ("alice", SECRET)


@pytest.mark.parametrize(
    "name", ["URL", "USER", "PASSWORD", "PASSWORD_FILE", "URL_FILE", "TOKEN", "TOKEN_FILE", "HEADER"]
)
def test_an_empty_variable_is_not_set(config: Path, name: str) -> None:
    assert find_url("main", config, {f"CARDINAL_MAIN_{name}": ""}) == find_url("main", config, {})
    assert find_node("own", config, {f"CARDINAL_OWN_{name}": ""}) == find_node("own", config, {})


def test_an_empty_variable_names_no_settings_file() -> None:
    environ = {"CARDINAL_CONFIG": "", "CARDINAL_MAIN_URL": "kafka://host", "CARDINAL_MAIN_USER": ""}
    assert find_url("main", None, environ) == parse_url("kafka://host")
    with pytest.raises(ConfigurationError, match="set CARDINAL_MAIN_URL, or give the settings file"):
        find_url("main", None, {"CARDINAL_CONFIG": "", "CARDINAL_MAIN_URL": ""})


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_a_node_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "node").write_text(f"https://node.example/v3/{SECRET}\n")
    path = tmp_path / "cardinal.toml"
    path.write_text(f"nodes.own = 'ws://127.0.0.1:8546'\n[nodes.far]\nurl_file = '{tmp_path}/node'")
    assert find_node("own", path, {}) == parse_node_url("ws://127.0.0.1:8546")
    assert find_node("far", path, {}) == parse_node_url(f"https://node.example/v3/{SECRET}")
    assert find_node("far", path, {"CARDINAL_FAR_URL": "http://near"}) == parse_node_url("http://near")
    found = find_node("mine", None, {"CARDINAL_MINE_URL_FILE": str(tmp_path / "node")})
    assert found.nodes[0].url.endswith(SECRET)
    assert find_node("dev://?seed=7", None, {}).nodes[0].url == "dev://?seed=7"
    assert find_node(found, None, {}) is found
    assert SECRET not in repr(load_settings(path))


def test_options_of_a_node_follow_the_order_of_layers(tmp_path: Path) -> None:
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
    options = {"state": "true", "lag": "3", "chain": "a b.toml"}
    assert find_node("own", path, {}).options == {**options, "rate": "9"}
    assert find_node("own", path, {"CARDINAL_OWN_URL": "http://else#lag=4"}).options == {**options, "lag": "4"}
    assert find_node("near,far", path, {}) == parse_node_url("http://two:8545,http://three:8545#workers=0")
    with pytest.raises(ConfigurationError, match="'own' and 'far' have different options") as caught:
        find_node("own,far", path, {})
    assert caught.value.setting == "nodes.far"


def test_nodes_keep_their_own_credentials(config: Path) -> None:
    own = {"token": f"{SECRET}+&#", "header": "X-Api-Key"}
    found = find_node("own", config, {})
    assert (credentials(found), found.options) == ([own], {"lag": "2", "state": "true"})
    found = find_node("plain,far", config, {})
    assert (credentials(found), found.options) == ([{}, {"token_file": "/run/sec rets/far"}], {"lag": "2"})
    found = find_node("far,several", config, {})
    assert credentials(found) == [{"token_file": "/run/sec rets/far"}, {"token_file": "/four"}, {}]


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"CARDINAL_FAR_TOKEN": SECRET}, {"token": SECRET}),
        ({"CARDINAL_FAR_TOKEN_FILE": "/other"}, {"token_file": "/other"}),
        ({"CARDINAL_FAR_HEADER": "X-Key"}, {"token_file": "/run/sec rets/far", "header": "X-Key"}),
        ({"CARDINAL_FAR_URL": "http://else"}, {"token_file": "/run/sec rets/far"}),
        ({"CARDINAL_FAR_URL": "http://else#token_file=/mine"}, {"token_file": "/mine"}),
        ({"CARDINAL_FAR_URL": "http://else#token=x", "CARDINAL_FAR_TOKEN_FILE": "/other"}, {"token_file": "/other"}),
    ],
)
def test_credentials_of_a_node_follow_the_order_of_layers(
    config: Path, environ: dict[str, str], found: dict[str, str]
) -> None:
    assert credentials(find_node("far", config, environ)) == [found]


def test_a_node_may_be_defined_by_the_environment_alone() -> None:
    environ = {
        "CARDINAL_MINE_URL": "http://host#lag=1",
        "CARDINAL_MINE_TOKEN_FILE": "/t",
        "CARDINAL_MINE_HEADER": "X-Key",
    }
    assert find_node("mine", None, environ) == parse_node_url("http://host#lag=1&token_file=/t&header=X-Key")


def test_one_token_for_several_urls_is_refused(config: Path) -> None:
    with pytest.raises(ConfigurationError, match="'several' has several URLs, and a token belongs to one") as caught:
        find_node("several", config, {"CARDINAL_SEVERAL_TOKEN": SECRET})
    assert SECRET not in str(caught.value)


# --- refusals --------------------------------------------------------------------------------------------------------


def refusal(folder: Path, text: str, *, name: str = "a") -> str:
    """The sentence for a file with this text."""
    path = folder / "cardinal.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        with_secrets(find_url(name, path, {}))
    said = str(caught.value)
    assert SECRET not in said
    assert "\n" not in said
    assert SECRET not in str(caught.value.setting)
    assert caught.value.setting is not None
    assert caught.value.__cause__ is None
    return said.replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[stream.a]\nurl = 'kafka://h'", "there is no setting stream in FILE: did you mean streams?"),
        ("x = 1", "there is no setting x in FILE: use nodes, streams"),
        (f"[streams.a]\npasword = '{SECRET}'", "there is no setting streams.a.pasword in FILE: did you mean password?"),
        (
            "[streams.a]\nbootstrap = 'h:1'",
            "there is no setting streams.a.bootstrap in FILE: use members, options, password, password_file, url, user",
        ),
        ("[nodes.n]\nurls = 'http://h'", "there is no setting nodes.n.urls in FILE: did you mean url?"),
        (f"[streams.a]\n'{SECRET}' = 1", "there is no setting streams.a.… in FILE: use members, "),
        (f"streams.a.url = ['{SECRET}']", "streams.a.url in FILE: input should be a valid string"),
        ("streams.a.password_file = true", "streams.a.password_file in FILE: input is not a valid path"),
        ("streams.a.members = [1]", "streams.a.members.0 in FILE: input should be a valid string"),
        ("streams.a.options = 'x=1'", "streams.a.options in FILE: input should be a valid dictionary"),
        (f"streams.a.options.x = ['{SECRET}']", "streams.a.options.x in FILE: input should be a valid string"),
        ("streams.a = 5", "streams.a in FILE: write a URL in quotes, or a table"),
        ("streams = ['kafka://h']", "streams in FILE: input should be a valid dictionary"),
        ("nodes.n = {url = 5}", "nodes.n.url in FILE: input should be a valid string"),
        (f"[streams.'{SECRET}/']\nurl = 'x'", "streams.… in FILE is not a name: write letters, digits, - and _"),
        (
            f"[streams.a]\nurl = 'kafka://h'\npassword = {SECRET}",
            "the settings FILE are not TOML: correct them at line 3, column 12",
        ),
        (f"[streams.a]\nurl = 'kafka://u:{SECRET}@host:x'", "streams.a.url in FILE: host 1 of this kafka URL"),
        (f"[streams.a]\nurl = '{SECRET}'", "begins with a scheme"),
        (f"[streams.a]\nuser = '{SECRET}'", "neither url nor members"),
        (f"[streams.a]\nurl='kafka://h'\npassword='{SECRET}'\npassword_file='/x'", "given twice"),
        (f"[streams.a]\nurl='kafka://u:{SECRET}@h'\nmembers=['b']", "no url"),
        ("[streams.a]\nmembers=['b']", "no stream is called 'b'"),
        ("[streams.a]\nmembers=['a']", "no member of itself"),
        ("[streams.b]\nmembers=['a']\n[streams.a]\nmembers=['b']", "no member of itself"),
        ("[streams.b]\nurl='kafka://h'", "no stream is called 'a'"),
        ("[streams.a]\nurl='kafka://h'\n[nodes.a]\nurl='http://h'", "streams.a and nodes.a have the same variables"),
        (
            "streams.a-b = 'kafka://h'\nstreams.a_b = 'kafka://i'",
            "FILE: streams.a-b and streams.a_b have the same variables, CARDINAL_A_B_…: rename one of them",
        ),
        ("streams.a = 'kafka://h'\nnodes.A = 'http://h'", "streams.a and nodes.A have the same variables"),
        ("[streams.a.options]\n'x.y' = 1\nx = {y = 2}", "streams.a.options in FILE: an option is given twice"),
    ],
)
def test_a_setting_that_cannot_work_is_named_by_its_place(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("said", "environ", "named"),
    [
        (f"user = 'alice'\npassword = '{SECRET}'", {}, "leave out user, password, and"),
        ("password_file = '/x'", {}, "leave out password_file, and"),
        ("options.linger.ms = 5", {}, "leave out options, and"),
        ("", {"USER": "alice", "PASSWORD": SECRET}, "leave out CARDINAL_A_PASSWORD, CARDINAL_A_USER, and"),
        ("", {"PASSWORD_FILE": "/x"}, "leave out CARDINAL_A_PASSWORD_FILE, and"),
    ],
)
@pytest.mark.parametrize("several", ["members = ['b']", "url = 'mux:kafka://h,kafka://i'"])
def test_a_login_or_options_of_a_mux_are_refused(
    tmp_path: Path, several: str, said: str, environ: dict[str, str], named: str
) -> None:
    (tmp_path / "cardinal.toml").write_text(f"streams.b = 'kafka://h'\n[streams.a]\n{several}\n{said}")
    with pytest.raises(ConfigurationError, match="the stream 'a' is a mux, whose members have a user") as caught:
        find_url("a", tmp_path / "cardinal.toml", {f"CARDINAL_A_{what}": text for what, text in environ.items()})
    assert named in str(caught.value)
    assert SECRET not in str(caught.value)


def test_an_unknown_name_is_refused_with_the_nearest_one_or_its_variable(tmp_path: Path) -> None:
    text = "[streams.production]\nurl = 'kafka://h'\n[streams.copy]\nurl = 'null://'"
    for name, remedy in (("prodution", "did you mean production?"), ("x", "use copy, production")):
        assert refusal(tmp_path, text, name=name) == f"no stream is called '{name}' in FILE: {remedy}"
    with pytest.raises(ConfigurationError, match=r"CARDINAL_MY_STREAM_URL.*settings file"):
        find_url("my-stream", None, {})
    with pytest.raises(ConfigurationError, match=r"CARDINAL_MY_NODE_URL.*settings file"):
        find_node("my-node", None, {})


def test_a_missing_secret_is_named_by_its_file(tmp_path: Path) -> None:
    missing = tmp_path / "secret"
    said = refusal(tmp_path, f"[streams.a]\nurl = 'kafka://u@h'\npassword_file = '{missing}'")
    assert said == f"the file {missing} of password_file cannot be read: No such file or directory"
    path = tmp_path / "cardinal.toml"
    path.write_text(f"[nodes.main]\nurl_file = '{tmp_path}/none'")
    with pytest.raises(ConfigurationError, match=rf"the file {tmp_path}/none of url_file cannot be read"):
        find_node("main", path, {})


def test_a_settings_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.toml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(ConfigurationError, match=rf"the settings {path} cannot be read: .*{why}"):
            find_url("a", path, {})
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        find_url("a", tmp_path / "latin", {})


def test_a_given_file_is_checked_also_where_no_name_is_looked_up_in_it(tmp_path: Path) -> None:
    (tmp_path / "cardinal.toml").write_text("x = 1")
    with pytest.raises(ConfigurationError, match="no setting x"):
        find_url("kafka://host", tmp_path / "cardinal.toml", {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"kafka://alice:{SECRET}@host:x", "host 1 of this kafka URL cannot be read"),
        (f"'kafka://alice:{SECRET}@host'", "no transport is called '…'"),
        (SECRET, "a stream's URL begins with a scheme"),
    ],
)
def test_the_error_of_a_url_begins_with_where_it_was_written(config: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match="^CARDINAL_MAIN_URL: .*" + says) as caught:
        find_url("main", config, {"CARDINAL_MAIN_URL": text})
    assert SECRET not in str(caught.value)
    config.write_text(f'streams.main = "{text}"')
    with pytest.raises(ConfigurationError, match=rf"^streams\.main\.url in {config}: .*{says}"):
        find_url("main", config, {})


def test_the_error_of_a_nodes_url_begins_with_where_it_was_written(config: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    for name, text in (("URL", SECRET), ("URL_FILE", str(tmp_path / "secret"))):
        with pytest.raises(ConfigurationError, match=f"^CARDINAL_OWN_{name}: a node's URL begins with") as caught:
            find_node("own", config, {f"CARDINAL_OWN_{name}": text})
        assert SECRET not in str(caught.value)
    config.write_text(f"nodes.own = '{SECRET}'")
    with pytest.raises(ConfigurationError, match=rf"^nodes\.own\.url in {config}: a node's URL begins with"):
        find_node("own", config, {})
    config.write_text("nodes.own.url = 'http://h'\nnodes.own.url_file = '/x'\nnodes.none.token = 'x'")
    for name in ("own", "none"):
        with pytest.raises(ConfigurationError, match="has one of url and url_file, not both or none"):
            find_node(name, config, {})
