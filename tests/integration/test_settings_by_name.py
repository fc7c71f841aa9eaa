"""Commands and SDK with streams and nodes by name: a settings file, the environment, secrets from files."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from commands import fresh_chain_id, replayed, run_here

from cardinal import Consumer, Producer
from cardinal.cli.main import cardinal
from cardinal.errors import CardinalError, ConfigurationError
from cardinal.transports import list_topics, open_sink, open_source, parse_url
from cardinal_devkit import ChainGenerator, MemoryBroker
from serving import DEADLINE, serving

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
def test_every_command_reports_a_wrong_setting_before_it_does_anything(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "cardinal.toml"

    path.write_text(f"streams.main.pasword = '{SECRET}'")
    named = [part.format("main") for part in command]
    assert f"streams.main.pasword in {path}: did you mean password?" in _refusal(*named, "--config", str(path))
    path.unlink()
    assert "cannot be read: No such file" in _refusal(*named, "--config", str(path))
    assert "CARDINAL_MAIN_URL" in _refusal(*named)


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


MAKER = ChainGenerator(seed=3)


APP = MAKER.application


@pytest.mark.slow
def test_a_stream_is_written_and_read_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = MAKER.payloads(10)
    (tmp_path / "token").write_text(f"{SECRET}\n")
    with MemoryBroker(uuid.uuid4().hex) as broker:
        broker.sink(APP, producer_id="a").close()
        with serving(broker.url, APP, tokens=(SECRET,)) as served:
            config = tmp_path / "cardinal.toml"
            config.write_text(
                f"""
                streams.main = "{broker.url}"
                [streams.served]
                url = "{served.url}"
                options.token_file = "{tmp_path}/token"
                """
            )
            with Producer("main", APP, producer_id="a", config=config) as producer:
                for payload in payloads:
                    producer.add(payload)
                producer.flush(DEADLINE)
            heads = []
            monkeypatch.setenv("CARDINAL_ALONE_URL", broker.url)
            for name, file in (("main", config), ("served", str(config)), ("alone", None)):
                with Consumer(name, APP, config=file, idle_timeout=1.0) as consumer:
                    assert [block for update in consumer for block in update.added]
                    heads.append(consumer.head)
            assert heads[0] == heads[1] == heads[2] is not None
            monkeypatch.setenv("CARDINAL_CONFIG", str(config))
            assert list_topics("served") == list_topics("main") == set(APP.all_topics)
            open_source("served", APP).close()
            open_sink("main", APP, producer_id="b").close()


@pytest.mark.parametrize("sdk", [Producer, Consumer])
def test_an_error_of_the_settings_is_one_sentence(sdk: type, tmp_path: Path) -> None:
    path = tmp_path / "cardinal.toml"
    path.write_text(f"streams.main.pasword = '{SECRET}'")
    options = {"producer_id": "a"} if sdk is Producer else {}
    with pytest.raises(ConfigurationError, match=r"did you mean password\?") as caught:
        sdk("main", APP, config=path, **options)
    assert SECRET not in str(caught.value)
    with pytest.raises(CardinalError, match="CARDINAL_MAIN_URL"):
        sdk("main", APP, **options)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (Path("/log"), "a URL is text, not a path: write f'file://{path}'"),
        (b"kafka://host", "a URL, or a name of the settings, is text, not bytes"),
        (None, "a URL, or a name of the settings, is text, not NoneType"),
    ],
)
def test_stream_that_is_named_by_no_text_is_refused(url: Any, says: str) -> None:  # noqa: ANN401 - anything
    for call in (
        lambda: Consumer(url, APP),
        lambda: Producer(url, APP, producer_id="a"),
        lambda: open_source(url, APP),
        lambda: list_topics(url),
        lambda: parse_url(url),
    ):
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert str(caught.value) == says


def test_name_of_an_application_is_not_enough_to_write_a_stream() -> None:
    evm: Any = "evm"
    for call in (
        lambda: Producer("null://", evm, producer_id="a"),
        lambda: open_sink("null://", evm, producer_id="a"),
        lambda: open_source("null://", evm),
    ):
        with pytest.raises(ConfigurationError, match=r"write cardinal\.apps\.get\('evm', chain_id=…\)") as caught:
            call()
        assert caught.value.setting == "app"
    with pytest.raises(ConfigurationError, match="app must be an application, not <class 'dict'>"):
        Producer("null://", {}, producer_id="a")  # type: ignore[arg-type]
