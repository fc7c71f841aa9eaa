"""A settings file that cannot be used: one sentence that names file, place and what to write, and no value."""

from __future__ import annotations

from pathlib import Path

import pytest

from cardinal.errors import ConfigurationError
from cardinal.transports.secrets import with_secrets
from cardinal.transports.settings import find_node, find_url

SECRET = "s3cr3t-Pa$$"  # noqa: S105 - made up, to look for it in what is printed


def refusal(folder: Path, text: str, *, name: str = "a") -> str:
    """What is said of a file with this text."""
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
    ],
)
def test_a_setting_that_does_not_exist_is_named_with_the_one_that_does(tmp_path: Path, text: str, says: str) -> None:
    assert refusal(tmp_path, text).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"streams.a.url = ['{SECRET}']", "streams.a.url in FILE is a list: write text in quotes"),
        ("streams.a.user = 5", "streams.a.user in FILE is a number: write text in quotes"),
        ("streams.a.password = 2026-01-01", "streams.a.password in FILE is a date: write text in quotes"),
        ("streams.a.password_file = true", "streams.a.password_file in FILE is true or false: write a path in quotes"),
        ("streams.a.members = 'b'", "streams.a.members in FILE is text: write a list of names of streams"),
        ("streams.a.members = [1]", "streams.a.members.0 in FILE is a number: write text in quotes"),
        ("streams.a.options = 'x=1'", "streams.a.options in FILE is text: write a table"),
        (
            f"streams.a.options.x = ['{SECRET}']",
            "streams.a.options.x in FILE is a list: write text, a number, or true or false",
        ),
        ("streams.a = 5", "streams.a in FILE is a number: write a URL in quotes, or a table"),
        ("streams = ['kafka://h']", "streams in FILE is a list: write a table"),
        ("nodes.n = {url = 5}", "nodes.n.url in FILE is a number: write text in quotes"),
        (f"[streams.'{SECRET}/']\nurl = 'x'", "streams.… in FILE is no name: write letters, digits, - and _"),
    ],
)
def test_a_value_of_another_type_is_named_with_what_to_write(tmp_path: Path, text: str, says: str) -> None:
    assert refusal(tmp_path, text).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"[streams.a]\nurl = 'kafka://h'\npassword = {SECRET}",
            "the settings FILE are no TOML: look at line 3, column 12",
        ),
        ("[streams.a]\nurl = 'kafka://h'\nurl = 'kafka://i'", "the settings FILE are no TOML: look at its end, line 3"),
        ("[streams.a]\n\nurl = 'kafka://h", "the settings FILE are no TOML: look at its end, line 3"),
        ("[streams.a]\nmembers = ['b',", "the settings FILE are no TOML: look at its end, line 2"),
    ],
)
def test_what_is_no_toml_is_named_by_its_line(tmp_path: Path, text: str, says: str) -> None:
    assert refusal(tmp_path, text).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"[streams.a]\nurl = 'kafka://u:{SECRET}@host:x'", "no port"),
        (f"[streams.a]\nurl = '{SECRET}'", "begins with a scheme"),
        (f"[streams.a]\nuser = '{SECRET}'", "neither url nor members"),
        (f"[streams.a]\nurl='kafka://h'\npassword='{SECRET}'\npassword_file='/x'", "two ways"),
        (f"[streams.a]\nurl='kafka://u:{SECRET}@h'\nmembers=['b']", "no url"),
        ("[streams.a]\nmembers=['b']", "no stream is called 'b'"),
        ("[streams.a]\nmembers=['a']", "no member of itself"),
        ("[streams.b]\nmembers=['a']\n[streams.a]\nmembers=['b']", "no member of itself"),
        ("[streams.b]\nurl='kafka://h'", "no stream is called 'a'"),
        ("[streams.a]\nurl='kafka://h'\n[nodes.a]\nurl='http://h'", "streams.a and nodes.a"),
        (
            "streams.a-b = 'kafka://h'\nstreams.a_b = 'kafka://i'",
            "streams.a-b and streams.a_b have the same variables, CARDINAL_A_B_…, in FILE: call one of them otherwise",
        ),
        (
            "streams.a = 'kafka://h'\nnodes.A = 'http://h'",
            "streams.a and nodes.A have the same variables, CARDINAL_A_…",
        ),
        ("[streams.a.options]\n'x.y' = 1\nx = {y = 2}", "the option x.y of streams.a in FILE is given twice"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("said", "environ", "named"),
    [
        (f"user = 'alice'\npassword = '{SECRET}'", {}, "leave out user, password, and"),
        ("password_file = '/x'", {}, "leave out password_file, and"),
        ("options.linger.ms = 5", {}, "leave out options, and"),
        ("", {"USER": "alice", "PASSWORD": SECRET}, "leave out CARDINAL_A_USER, CARDINAL_A_PASSWORD, and"),
        ("", {"PASSWORD_FILE": "/x"}, "leave out CARDINAL_A_PASSWORD_FILE, and"),
    ],
)
@pytest.mark.parametrize("several", ["members = ['b']", "url = 'mux:kafka://h,kafka://i'"])
def test_what_is_said_of_several_streams_as_one_is_refused(
    tmp_path: Path, several: str, said: str, environ: dict[str, str], named: str
) -> None:
    (tmp_path / "cardinal.toml").write_text(f"streams.b = 'kafka://h'\n[streams.a]\n{several}\n{said}")
    with pytest.raises(ConfigurationError, match="the stream 'a' is several, and each has a user") as caught:
        find_url("a", tmp_path / "cardinal.toml", {f"CARDINAL_A_{what}": text for what, text in environ.items()})
    assert named in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_name_that_is_nearly_right_is_suggested(tmp_path: Path) -> None:
    text = "[streams.production]\nurl = 'kafka://h'\n[streams.copy]\nurl = 'null://'"
    said = refusal(tmp_path, text, name="prodution")
    assert said == "no stream is called 'prodution' in FILE: did you mean production?"
    assert refusal(tmp_path, text, name="x") == "no stream is called 'x' in FILE: use copy, production"


def test_a_name_without_a_file_says_where_it_could_be_given() -> None:
    with pytest.raises(ConfigurationError, match=r"CARDINAL_MY_STREAM_URL.*settings file"):
        find_url("my-stream", None, {})
    with pytest.raises(ConfigurationError, match=r"CARDINAL_MY_NODE_URL.*settings file"):
        find_node("my-node", None, {})


def test_a_missing_secret_is_named_by_its_file(tmp_path: Path) -> None:
    missing = tmp_path / "secret"
    said = refusal(tmp_path, f"[streams.a]\nurl = 'kafka://u@h'\npassword_file = '{missing}'")
    assert said == f"the file {missing} of password_file cannot be read: No such file or directory"


def test_a_missing_file_of_a_nodes_url_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cardinal.toml"
    path.write_text(f"[nodes.main]\nurl_file = '{tmp_path}/none'")
    with pytest.raises(ConfigurationError, match=rf"the file {tmp_path}/none of url_file cannot be read"):
        find_node("main", path, {})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.toml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(ConfigurationError, match=rf"the settings {path} cannot be read: .*{why}"):
            find_url("a", path, {})
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        find_url("a", tmp_path / "latin", {})


def test_a_file_that_is_given_is_looked_at_also_where_no_name_is_asked_of_it(tmp_path: Path) -> None:
    (tmp_path / "cardinal.toml").write_text("x = 1")
    with pytest.raises(ConfigurationError, match="no setting x"):
        find_url("kafka://host", tmp_path / "cardinal.toml", {})
