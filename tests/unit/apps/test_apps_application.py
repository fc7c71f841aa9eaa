from __future__ import annotations

import re
from pathlib import Path

import pytest

from cardinal import apps
from cardinal.apps import Application
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Finality

NOTHING = Payload(1, bytes(32), bytes(32), 1)


def test_the_topics_are_listed_default_first_then_sorted() -> None:
    app = apps.get("evm")
    assert app.all_topics == (
        "cardinal-1",
        "cardinal-1-block",
        "cardinal-1-code",
        "cardinal-1-logs",
        "cardinal-1-receipt",
        "cardinal-1-state",
        "cardinal-1-tx",
    )
    assert (app.name, app.chain, app.reorg_threshold) == ("evm", "evm:1", 128)


def test_paths_carry_the_chain_id_in_hex_and_topics_in_decimal() -> None:
    app = apps.get("evm", chain_id=137)
    assert app.default_topic == "cardinal-137"
    assert app.topics["c/89/n/"] == "cardinal-137-block"


def test_another_topic_name_begins_every_topic() -> None:
    app = apps.get("evm", chain_id=5, topic="mine")
    assert app.default_topic == "mine"
    assert set(app.all_topics[1:]) == {f"mine-{kind}" for kind in ("block", "code", "logs", "receipt", "state", "tx")}


def test_every_path_of_a_block_matches_exactly_one_expression() -> None:
    app, block = apps.get("evm"), "c/1/b/" + "ab" * 32
    paths = [f"{block}/{end}" for end in ("h", "d", "w", "u/0", "t/1f", "r/1f", "l/1f/a0")]
    paths += ["c/1/n/d59f80", "c/1/n/safe", "c/1/n/finalized", "c/1/s", "c/1/c/" + "00" * 32, f"c/1/a/{'00' * 32}/d"]
    for path in paths:
        assert len([expression for expression in app.topics if re.match(expression, path)]) == 1, path


def test_the_error_of_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(ConfigurationError, match="choose one of: blob, evm") as caught:
        apps.get("bitcoin")
    assert caught.value.setting == "app"


def test_an_unknown_preset_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="colour"):
        apps.get("evm", colour="red")


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({"topics": {"c/(": "t"}}, "topics"),
        ({"topics": {"c/": "no spaces"}}, "topics"),
        ({"default_topic": ""}, "topics"),
        ({"default_topic": ".."}, "topics"),
        ({"prefixes": ("[",)}, "prefixes"),
        ({"volatile_paths": ("*",)}, "volatile_paths"),
        ({"reorg_threshold": 0}, "reorg_threshold"),
        ({"name": ""}, "name"),
        ({"finality_paths": ("one",)}, "finality_paths.1"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_invalid_input_is_refused_by_name(change: dict[str, object], setting: str) -> None:
    good: dict[str, object] = {"name": "blob", "chain": "blob:1", "default_topic": "blob"}
    with pytest.raises(ConfigurationError) as caught:
        Application.model_validate(good | change)
    assert caught.value.setting == setting


def test_a_chain_id_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="chain id"):
        apps.get("evm", chain_id=0)


def test_the_prefixes_default_to_the_expressions_of_the_topics() -> None:
    app = Application(name="blob", chain="blob:1", default_topic="blob", topics={"b/": "blob-data"})
    assert app.prefixes == ("b/",)
    narrower = Application(name="blob", chain="blob:1", default_topic="blob", topics={"b/": "x"}, prefixes=("b/1",))
    assert narrower.prefixes == ("b/1",)


def test_an_application_is_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "app.toml"
    file.write_text('name = "blob"\nchain = "blob:1"\ndefault_topic = "blob"\n[topics]\n"b/[0-9]+/" = "blob-data"\n')
    app = Application.load(file)
    assert app.topics == {"b/[0-9]+/": "blob-data"}
    assert app.finality(NOTHING) is None


@pytest.mark.parametrize(
    ("content", "name", "topic"),
    [
        ('app = "evm"\nchain = "sepolia"\ntopic = "ours"\nreorg_threshold = 9\n', "evm", "ours"),
        ('app = "blob"\nchain_id = 3\nreorg_threshold = 9\n', "blob", "blob-3"),
        ('name = "own"\nchain = "own:1"\ndefault_topic = "own"\nreorg_threshold = 9\n', "own", "own"),
    ],
)
def test_a_file_names_an_application_with_its_presets_or_defines_everything(
    tmp_path: Path, content: str, name: str, topic: str
) -> None:
    file = tmp_path / "app.toml"
    file.write_text(content)
    app = apps.load(file)
    assert (app.name, app.default_topic, app.reorg_threshold) == (name, topic, 9)


def test_a_layout_of_ones_own_has_the_times_and_checks_of_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "app.toml"
    file.write_text('name = "evm"\nchain = "evm:1"\ndefault_topic = "ours"\n')
    app = apps.load(file)
    assert app.default_topic == "ours"
    assert app.counted == ("transactions",)
    assert app.verifier() is not None, "a node would accept what nobody has checked"
    file.write_text('name = "ours"\nchain = "ours:1"\ndefault_topic = "ours"\n')
    assert apps.load(file).verifier() is None


@pytest.mark.parametrize(
    "content",
    ["app = 5", 'app = "moon"', 'app = "evm"\nchain_id = "one"', 'app = "evm"\ncolour = 1', "app =", "name = 'x'"],
)
def test_a_file_that_cannot_work_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "app.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError):
        apps.load(file)


@pytest.mark.parametrize("content", ["name = ", 'name = "blob"'])
def test_a_broken_application_file_is_a_configuration_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "app.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError):
        Application.load(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Application.load(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ({}, None),
        ({"c/1/n/safe": b"", "c/1/n/finalized": b""}, Finality()),
        ({"c/1/n/safe": b"\x13\xcc", "c/1/n/finalized": b"\x13\xac"}, Finality(5068, 5036)),
        ({"c/1/n/finalized": b"\x01"}, Finality(None, 1)),
    ],
)
def test_finality_marks_are_read_from_a_payload(updates: dict[str, bytes], expected: Finality | None) -> None:
    payload = Payload(1, bytes(32), bytes(32), 1, updates)
    assert apps.get("evm").finality(payload) == expected
