"""Variables of the environment that are misspelt: told with the name that was meant, and nobody else's are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import cardinal.errors
from cardinal.cli.main import cardinal as command
from cardinal.transports.misspelt import unknown, unused

if TYPE_CHECKING:
    from collections.abc import Iterable

SECRET = "s3cr3t-Pa$$"  # noqa: S105 - made up, to look for it in what is printed
STREAMS = ("stream", "copy-2")
NODES = ("chain",)
NOT_USED = "is set and not used"
ALONE = "names a stream or node that is not in the settings"


def _said(*names: str) -> list[str]:
    """What is told of these variables, each set to a secret, where a settings file has the names above."""
    environ = {f"CARDINAL_{name}": SECRET for name in names}
    return [*unknown(environ), *unused(environ, STREAMS, NODES)]


def _meant(sentences: Iterable[str]) -> dict[str, str]:
    found = (
        re.fullmatch(rf"CARDINAL_(\w+) (?:{NOT_USED}|{ALONE}): did you mean CARDINAL_(\w+)\?", one) for one in sentences
    )
    return {one[1]: one[2] for one in found if one}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("CONFG", "CONFIG"),
        ("TOKN", "TOKEN"),
        ("SERV_TOKEN", "SERVE_TOKEN"),
        ("CAHCE", "CACHE"),
        ("URL", "NAME_URL"),
        ("TOKEN_FILE", "NAME_TOKEN_FILE"),
        ("STREM_URL", "STREAM_URL"),
        ("STREM_PASSWORD", "STREAM_PASSWORD"),
        ("STREAM_PASWORD", "STREAM_PASSWORD"),
        ("STREAM_PASWORD_FILE", "STREAM_PASSWORD_FILE"),
        ("STREAM_URI", "STREAM_URL"),
        ("COPY2_URL", "COPY_2_URL"),
        ("CHIAN_TOKEN_FILE", "CHAIN_TOKEN_FILE"),
        ("OTHER_HEADERS", "OTHER_HEADER"),
    ],
)
def test_a_misspelt_variable_is_told_once_with_the_name_that_was_meant(written: str, meant: str) -> None:
    said = _said(written)
    assert _meant(said) == {written: meant}
    assert len(said) == 1
    assert SECRET not in said[0]


def test_the_name_that_the_environment_gives_is_one_to_be_meant() -> None:
    assert _meant(_said("OTHER_URL", "OHTER_PASSWORD")) == {"OHTER_PASSWORD": "OTHER_PASSWORD"}


@pytest.mark.parametrize(
    "names",
    [
        *(("CONFIG",), ("TOKEN",), ("SERVE_TOKEN",), ("CACHE",), ("TEST_BROKER",), ("TESTS",), ()),
        ("STREAM_URL", "STREAM_USER", "STREAM_PASSWORD", "STREAM_PASSWORD_FILE", "COPY_2_URL"),
        ("CHAIN_URL", "CHAIN_URL_FILE", "CHAIN_TOKEN", "CHAIN_TOKEN_FILE", "CHAIN_HEADER"),
        ("OTHER_URL", "OTHER_USER", "OTHER_PASSWORD"),  # of another command
        ("OWN_URL_FILE", "OWN_HEADER"),
        ("STREAM_URL", "STREAM2_URL", "STREAM2_PASSWORD"),  # both are meant
        ("KAFKA_PASSWORD",),
        ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT"),  # what an orchestrator makes of a service
        tuple(f"PORT_8765_TCP{part}" for part in ("", "_PROTO", "_PORT", "_ADDR")),
        tuple(f"SERVE_{part}" for part in ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_8765_TCP_ADDR")),
        tuple(f"STREAM_SERVER_{part}" for part in ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_80_TCP_PROTO")),
        ("HOME", "VERSION", "IMAGE", "LOG_LEVEL"),
    ],
)
def test_what_is_known_or_anybodys_is_not_told(names: tuple[str, ...]) -> None:
    assert _said(*names) == []


def test_a_nodes_setting_of_a_stream_is_told_with_those_that_streams_have() -> None:
    there = ", ".join(f"CARDINAL_STREAM_{setting}" for setting in ("URL", "USER", "PASSWORD", "PASSWORD_FILE"))
    assert _said("STREAM_TOKEN") == [f"CARDINAL_STREAM_TOKEN is set and not used: there are {there}"]


def test_a_misspelt_variable_that_is_set_to_nothing_is_not_set() -> None:
    environ = {"CARDINAL_CONFG": "", "CARDINAL_STREM_URL": ""}
    assert [*unknown(environ), *unused(environ, STREAMS, NODES)] == []


def test_every_variable_that_the_product_reads_is_known() -> None:
    root = Path(cardinal.errors.__file__).parents[1]
    sources = [file for room in ("cardinal", "connectors", "spark") for file in (root / room).rglob("*.py")]
    names = {name for file in sources for name in re.findall(r'"(CARDINAL_[A-Z_]*[A-Z])"', file.read_text())}
    assert {"CARDINAL_CONFIG", "CARDINAL_SERVE_TOKEN"} <= names
    environ = dict.fromkeys(names, SECRET)
    assert [*unknown(environ), *unused(environ, (), ())] == []


def test_commands_tell_it_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text("nodes.chain = 'dev://?blocks=3'\nstreams.stream = 'null://'")
    for name in ("CONFG", "STREM_URL"):
        monkeypatch.setenv(f"CARDINAL_{name}", SECRET)
    arguments = [
        "produce",
        "--from",
        "chain",
        "--to",
        "stream",
        "--producer-id",
        "a",
        "--config",
        str(tmp_path / "c.toml"),
    ]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [line for line in done.stderr.splitlines() if line.startswith("warning: ")] == [
        "warning: CARDINAL_CONFG is set and not used: did you mean CARDINAL_CONFIG?",
        f"warning: CARDINAL_STREM_URL {ALONE}: did you mean CARDINAL_STREAM_URL?",
    ]
    monkeypatch.setenv("CARDINAL_CONFIG", str(tmp_path / "c.toml"))
    done = CliRunner().invoke(command, [*arguments[:-2]], catch_exceptions=False)
    assert "did you mean CARDINAL_STREAM_URL?" in done.stderr
    assert SECRET not in done.output
