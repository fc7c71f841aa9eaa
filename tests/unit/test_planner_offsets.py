from __future__ import annotations

import json
import os

import pytest

from cardinal.errors import CursorInvalidError, CursorMismatchError
from cardinal.protocols.streams.types import BlockRef, Finality
from cardinal_spark.source.offsets import (
    DoneBlock,
    PlanOffset,
    lineage,
    lineage_origin,
    need_options,
    option_digests,
    parse_offset,
)
from cardinal_spark.source.planner import DONE_MAX

VALUES = {
    "app": "evm",
    "chain": "evm:1",
    "tracked": ["a"],
    "prefixes": ["a"],
    "reorg_threshold": 128,
    "whitelist": [],
    "on_finality_violation": "halt",
}


def full_offset() -> PlanOffset:
    """42 partitions of an application of 14 topics, far into a long chain, and as many finished blocks as are kept."""
    partitions = [
        (f"cardinal-11155111-some-longer-topic-{topic:02}", number) for topic in range(14) for number in range(3)
    ]
    pos = {where: 9_000_000_000 + index for index, where in enumerate(partitions)}
    top = 23_000_000
    return PlanOffset(
        option_digests(VALUES),
        pos,
        {where: at - 150_000 for where, at in pos.items()},
        tuple(DoneBlock(top - 100 - index // 2, os.urandom(8)) for index in range(DONE_MAX)),
        24_000_000,
        top,
        BlockRef(top, os.urandom(32)),
        BlockRef(1_000_000, os.urandom(32)),
        os.urandom(8),
        finality=Finality(top - 32, top - 64),
    )


def test_an_offset_comes_back_from_its_text() -> None:
    offset = full_offset()
    text = json.dumps(offset.json())
    assert parse_offset(json.loads(text)) == offset
    assert json.dumps(parse_offset(json.loads(text)).json()) == text
    empty = PlanOffset(option_digests(VALUES), {("t", 1): 0}, {("t", 1): 0})
    assert parse_offset(empty.json()) == empty


def test_the_fullest_offset_stays_below_8_kb() -> None:
    assert len(json.dumps(full_offset().json())) < 8_000


def test_what_is_no_offset_is_refused() -> None:
    stored = full_offset().json()
    with pytest.raises(CursorInvalidError, match="version 2"):
        parse_offset({**stored, "v": 2})
    for state in (stored["state"][:200], "!!", "", 7):
        with pytest.raises(CursorInvalidError, match="restore the checkpoint"):
            parse_offset({**stored, "state": state})


@pytest.mark.parametrize(("name", "value"), [("reorg_threshold", 64), ("tracked", ["a", "b"]), ("chain", "evm:5")])
def test_an_option_that_changed_is_refused_by_name(name: str, value: object) -> None:
    offset = full_offset()
    need_options(offset, option_digests(VALUES))
    with pytest.raises(CursorMismatchError, match=name):
        need_options(offset, option_digests({**VALUES, name: value}))


def test_a_lineage_stands_for_the_options_and_the_first_block() -> None:
    options, other = option_digests(VALUES), option_digests({**VALUES, "chain": "evm:5"})
    lines = {lineage(options, b"a" * 8), lineage(other, b"a" * 8), lineage(options, b"b" * 8)}
    assert len(lines) == 3
    assert lineage_origin(lineage(options, b"b" * 8), options) == b"b" * 8
    for line in (lineage(other, b"a" * 8), "", "x" * 32):
        with pytest.raises(CursorMismatchError, match="start a new lake"):
            lineage_origin(line, options)
