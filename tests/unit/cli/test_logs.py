"""The log of the commands: one sentence as text, the sentence and its fields as JSON."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from cardinal import plugins
from cardinal.cli.logs import report_error, set_up
from cardinal.errors import TransportError
from cardinal.server.log_fields import SENTENCE, LoggedHash

if TYPE_CHECKING:
    from collections.abc import Iterator

HASH = bytes(range(32))
LOG = logging.getLogger("cardinal.produce")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers = list(root.handlers)
    names = ("cardinal", *plugins.packages())
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def logged(capsys: pytest.CaptureFixture[str], text: str, fields: object) -> dict[str, Any]:
    """One line of the JSON log."""
    set_up("info", "json")
    LOG.info(text, fields)
    line: dict[str, Any] = json.loads(capsys.readouterr().err)
    return line


def test_a_hash_is_short_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "text")
    LOG.info("block %(block)d is now %(hash)s", {"kind": "reorg", "block": 7, "hash": LoggedHash(HASH)})
    assert capsys.readouterr().err.endswith("Z info    block 7 is now 0x0001020304…\n")


def test_json_lines_have_every_value_under_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    error = TransportError("the broker is away")
    values = {"block": 7, "hash": LoggedHash(HASH), "seconds": 1.5, "error": error, "peer": None, "last": True}
    line = logged(capsys, "block %(block)d %(hash)s: %(error)s", {"kind": "retry", **values})
    assert list(line)[:4] == ["time", "level", "logger", "message"]
    assert line["message"] == "block 7 0x0001020304…: the broker is away"
    expected = {**values, "kind": "retry", "hash": f"0x{HASH.hex()}", "error": "the broker is away"}
    assert {name: line[name] for name in expected} == expected


def test_a_field_replaces_nothing_that_every_line_has(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged(capsys, f"{SENTENCE}!", {"message": "100 % done", "level": "high", "time": 0, "logger": "x"})
    assert (line["message"], line["level"], line["logger"]) == ("100 % done!", "info", "cardinal.produce")
    assert str(line["time"]).startswith("20")


def test_the_final_error_has_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "json")
    report_error("start a broker", "UnreachableError")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["kind"], line["message"]) == ("error", "UnreachableError", "start a broker")
    set_up("info", "text")
    report_error("start a broker", "UnreachableError")
    assert capsys.readouterr().err == "error: start a broker\n"
