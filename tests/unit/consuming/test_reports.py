"""Reports: each has a sentence in the log, and a line in the table of the documentation with the level of that log."""

from __future__ import annotations

import logging
import re
import typing
from pathlib import Path

import pytest

from cardinal.consuming.healing import HealingFailed
from cardinal.consuming.reports import sentence
from cardinal.protocols.streams import events
from cardinal.protocols.streams.events import Completed, Event, Explanation
from cardinal.protocols.streams.types import BlockRef, FinalityViolated
from cardinal.protocols.streams.wire.messages import Ping

PAGE = Path(__file__).parents[3] / "docs/consuming.md"
HASH = bytes(range(32))
REF = BlockRef(7, HASH)
AT = ("topic", 0, 5)
REPORTS = [
    events.BeganAbove(REF, 3),
    events.Divergence(HASH, b"key", b"one", b"two", (None, AT)),
    events.ForkBelowStart(REF, REF),
    events.Incomplete(Explanation(HASH, 7, "open", missing_counts={"b/": 2})),
    events.Overflow(HASH, 7, {}, "memory is full"),
    events.PingSeen(Ping(bytes(16), 1_700_000_000), AT),
    events.Quarantined(HASH, 7, "it is refused"),
    events.Rejected(AT, b"key", "it does not decode"),
    events.ReorgAbandoned(REF, "it made no progress"),
    events.ReorgBegan(REF, AT),
    events.ReorgEnded(REF, AT),
    events.Stale(REF, "it is below the window"),
    events.Superseded(HASH, 7, AT, AT),
    events.Surplus(HASH, b"key", AT),
    events.Untrusted("stranger", AT),
    FinalityViolated(REF, 6),
    HealingFailed(HASH, "OSError: no archive"),
]


def name(report: Event | HealingFailed) -> str:
    return type(report).__name__


def documented() -> dict[str, str]:
    """Name and level of every report in the table of the page."""
    rows = re.findall(r"^\| ((?:`[A-Z]\w+`(?:, )?)+) \| (\w+)[^|]*\|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {report: level for names, level in rows for report in re.findall(r"`(\w+)`", names)}


def test_the_table_has_every_report_and_no_other() -> None:
    kinds = {*typing.get_args(Event), HealingFailed} - {Completed}  # a follower orders it: no handler receives it
    assert {name(report) for report in REPORTS} == {kind.__name__ for kind in kinds}
    assert documented().keys() == {kind.__name__ for kind in kinds}


@pytest.mark.parametrize("report", REPORTS, ids=name)
def test_a_report_is_logged_as_a_sentence_at_the_level_of_the_table(report: Event | HealingFailed) -> None:
    level, text = sentence(report)
    assert logging.getLevelName(level).lower() == documented()[name(report)]
    assert f"{name(report)}(" not in text  # its repr, of a report without a sentence


def test_an_incomplete_block_without_a_batch_is_logged_for_debugging_only() -> None:
    assert sentence(events.Incomplete(Explanation(HASH, None, "open", missing_batch=True)))[0] == logging.DEBUG
