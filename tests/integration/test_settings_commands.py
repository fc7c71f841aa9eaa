"""Commands with streams and nodes by name: a settings file, the environment, secrets from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import fresh_chain_id, replayed, run_here

from cardinal.cli.main import cardinal
from cardinal.errors import CardinalError, ConfigurationError

SECRET = "s3cr3t-Pa$$"  # noqa: S105 - made up, to look for it in what is printed


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A chain to produce from, a folder to produce to, and a copy of it."""
    path = tmp_path / "cardinal.toml"
    path.write_text(
        f"""
        [nodes]
        chain = "dev://?seed=5&blocks=12&chain-id={fresh_chain_id()}"

        [streams.main]
        url = "file://{tmp_path}/main"
        options = {{ fsync = "never", segment.bytes = 10_000 }}

        [streams]
        copy = "file://{tmp_path}/copy"
        """
    )
    return path


def test_blocks_go_from_a_named_node_to_a_named_stream_and_from_there_to_others(
    config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = ("--config", str(config))
    status, _, said = run_here(capfd, "produce", "--from", "chain", "--to", "main", "--stop", "12", *name)
    assert status == 0, said
    assert "begins with the feed's first block" in said
    status, lines, said = run_here(capfd, "tail", "main", "--format", "json", "--stop", "12", *name)
    assert status == 0, said
    assert len(replayed(map(json.loads, lines.splitlines()))) == 13
    status, _, said = run_here(capfd, "record", "--from", "main", "--to", "copy", "--exit-at", "end", *name)
    assert status == 0, said
    status, copied, said = run_here(capfd, "replay", "--from", "copy", *name)
    assert status == 0, said
    assert sum("  Batch  " in line for line in copied.splitlines()) >= 13
    assert len(list((tmp_path / "main").glob("*.avro"))) > 1  # the file's options counted


def test_the_environment_names_the_file_and_goes_before_it(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARDINAL_CONFIG", str(config))
    monkeypatch.setenv("CARDINAL_MAIN_URL", f"file://{tmp_path}/elsewhere")
    status, _, said = run_here(capfd, "produce", "--from", "chain", "--to", "main", "--stop", "3")
    assert status == 0, said
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "main").exists()


COMMANDS = (
    ("produce", "--from", "dev://", "--to", "{}"),
    ("repair", "--from", "dev://", "--to", "{}", "--start", "0", "--stop", "1"),
    ("tail", "{}"),
    ("serve", "--from", "{}", "--chain-id", "1"),
    ("record", "--from", "{}", "--to", "file:///nowhere", "--chain-id", "1"),
    ("replay", "--from", "{}", "--chain-id", "1"),
)


def _refusal(*args: str) -> str:
    done = CliRunner().invoke(cardinal, args)
    assert isinstance(done.exception, CardinalError), done.output
    assert SECRET not in f"{done.exception!r} {done.output}"
    return str(done.exception)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_says_what_is_wrong_with_a_setting_before_it_does_anything(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "cardinal.toml"

    def said(text: str, name: str = "main") -> str:
        path.write_text(text)
        return _refusal(*(part.format(name) for part in command), "--config", str(path))

    assert f"streams.main.pasword in {path}: did you mean password?" in said(f"streams.main.pasword = '{SECRET}'")
    assert f"streams.main.url in {path}: input should be a valid string" in said(f"streams.main.url = ['{SECRET}']")
    assert f"{path} are not TOML: correct them at line 1, column 16" in said(f"streams.main = {SECRET}")
    assert "did you mean main?" in said("streams.main = 'null://'", "mian")
    absent = "[streams.main]\nurl = 'kafka://u@h'\npassword_file = '/nowhere'"
    assert said(absent) == "the file /nowhere of password_file cannot be read: No such file or directory"
    path.unlink()
    assert "cannot be read: No such file" in _refusal(*(part.format("main") for part in command), "--config", str(path))
    assert "CARDINAL_MAIN_URL" in _refusal(*(part.format("main") for part in command))


def test_a_nodes_secret_comes_from_its_file_and_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "node").write_text(f"http://127.0.0.1:1/v3/{SECRET}")
    path = tmp_path / "cardinal.toml"
    path.write_text(f"[nodes.main]\nurl_file = '{tmp_path}/node'\n[streams]\nout = 'null://'")
    span = ("--start", "1", "--stop", "2")
    said = _refusal("repair", "--from", "main", "--to", "out", *span, "--config", str(path))
    assert "127.0.0.1:1" in said


def test_where_to_begin_is_a_number_unless_the_feed_finds_more(tmp_path: Path) -> None:
    for feed, start, says in (
        ("dev://?blocks=3", "yesterday", "write earliest, latest, a block number, a time such as"),
        ("dev://?blocks=3", "2030-01-01", "this feed locates blocks by number only: start with `earliest`"),
        ("dev://?blocks=3", "latest", "this feed has no head to begin at: start with `earliest`"),
        ("http://127.0.0.1:1", "5x", "write earliest, latest, a block number, a time such as"),
    ):
        command = ["produce", "--from", feed, "--to", f"file://{tmp_path}/log", "--start", start]
        done = CliRunner().invoke(cardinal, command)
        assert (done.exit_code, says in done.output) == (2, True), done.output
    assert not (tmp_path / "log").exists(), "a stream without a block would be in the others' way"


def test_archive_that_is_not_there_begins_no_stream(tmp_path: Path) -> None:
    said = _refusal("produce", "--from", f"archive://{tmp_path}/no?chain-id=7", "--to", f"file://{tmp_path}/log")
    assert said == f"the archive {tmp_path}/no cannot be read: No such file or directory"
    assert not (tmp_path / "log").exists()


def test_options_of_the_feed_are_put_behind_the_nodes_url(tmp_path: Path) -> None:
    """A development chain has none, and says so; the feed of nodes has its own tests."""
    log = f"file://{tmp_path}/log"
    with pytest.raises(ConfigurationError, match="no option lag of dev:"):
        CliRunner().invoke(cardinal, ["produce", "--from", "dev://", "--to", log, "--lag", "2"], catch_exceptions=False)
