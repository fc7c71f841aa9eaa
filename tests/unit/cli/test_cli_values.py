"""Values of the command line: positions, the log's lines, ages and hashes as they are printed."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

import click
import pytest

from cardinal import plugins
from cardinal.cli import blocks, logs
from cardinal.cli.positions import NODE, NUMBER, STREAM, position

HASH = "ab" * 32


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        ("earliest", STREAM, "earliest"),
        ("latest", NODE, "latest"),
        ("17", NUMBER, 17),
        ("2026-01-13", STREAM, datetime(2026, 1, 13, tzinfo=UTC)),
        ("2026-01-13T22:00:00+00:00", NODE, datetime(2026, 1, 13, 22, tzinfo=UTC)),
        (HASH.upper(), NODE, f"0x{HASH}"),
        (f"0x{HASH}", NODE, f"0x{HASH}"),
    ],
)
def test_a_position_is_a_word_a_number_a_time_or_a_hash(text: str, kinds: tuple[str, ...], value: object) -> None:
    assert position(text, kinds) == value


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        *((text, STREAM) for text in ("start", "tail", "NUMBER", "-5", "5.5", "", HASH, "c1:cut", "٣")),
        *((text, NODE) for text in ("c1:AAAA", "ab" * 31)),
        *((text, NUMBER) for text in ("latest", "2026-01-13")),
    ],
)
def test_another_text_is_refused_with_those_that_there_are(text: str, kinds: tuple[str, ...]) -> None:
    with pytest.raises(click.BadParameter, match=r"write .*a(nother)? (block number|position)"):
        position(text, kinds)


def test_ages_and_hashes_are_short() -> None:
    seconds = (0.04, 59.9, 61, 7_100, 7_300, 200_000, None)
    assert [blocks.age(one) for one in seconds] == ["0.0 s", "59.9 s", "1 min", "118 min", "2 h", "2 d", "-"]
    assert blocks.short_hash(bytes.fromhex(HASH)) == "0xababababab…"
    assert [blocks.clock(one) for one in (0, None, 10**15)] == ["1970-01-01 00:00:00", "-", "-"]


@pytest.fixture
def log() -> logging.Logger:
    return logging.getLogger("cardinal.tests")


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_has_a_line_a_record_with_its_time(
    log: logging.Logger, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    try:
        logs.set_up("info", form)  # type: ignore[arg-type] # one of the two
        log.debug("not this")
        log.warning("block %d is missing", 5)
        logs.report_error("it ends", "TransportError")
    finally:
        _reset()
    out, err = capsys.readouterr()
    first, last = err.splitlines()
    assert not out
    if form == "text":
        moment, level, *words = first.split()
        assert (level, " ".join(words), last) == ("warning", "block 5 is missing", "error: it ends")
    else:
        line = json.loads(first)
        moment = line["time"]
        assert (line["level"], line["logger"], line["message"]) == ("warning", "cardinal.tests", "block 5 is missing")
        assert json.loads(last)["message"] == "it ends"
    assert datetime.fromisoformat(moment).tzinfo == UTC


def test_the_level_is_of_our_loggers_alone(log: logging.Logger) -> None:
    try:
        logs.set_up("debug", "text")
        assert log.isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("websockets.client").isEnabledFor(logging.DEBUG)
    finally:
        _reset()


def _reset() -> None:
    root = logging.getLogger()
    for handler in [one for one in root.handlers if type(one).__module__ == logs.__name__]:
        root.removeHandler(handler)
    for name in ("cardinal", *plugins.packages()):
        logging.getLogger(name).setLevel(logging.NOTSET)
