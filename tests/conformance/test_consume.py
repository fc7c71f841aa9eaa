"""Sequences of messages in the reference's consumer and in ours, message by message.

Compared one to one: the blocks that a message completes (every value and delete), the updates (what is removed and
added, in order), what is reported, and why a block is not ready at the end. Where Cardinal differs the case says so
(`cardinal`: a reason with its number in the table of `schemas/SPEC.md`, and what Cardinal does instead). Resume
positions differ by rule (D13); that ours are right is proven by resuming from every one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import ChainUpdate, Cursor, Follower, Record
from cardinal.protocols.streams.following.follower import OnIncomplete
from cardinal.protocols.streams.wire.keys import HASH_END
from examples import FULL, examples
from vectors import (
    Case,
    Partition,
    Parts,
    Reader,
    Step,
    fold,
    identity,
    load,
    raw,
    records,
    report_of,
    settings,
    start,
    stripped,
    update_of,
)

STRIDE = FULL // examples(FULL)
"""Of the positions after a message one in so many is resumed from; all of them in the profile ``full``."""

CASES = load("consume.json.gz")
FED = [case for case in CASES if case["messages"]]
DEAD = [case for case in CASES if any({"panic", "hang"} & step.keys() for step in case["steps"])]
FORKED = [case for case in CASES if case["name"].startswith("fuzz-tree-")]

WHAT_IS_MISSING = {"Pending prefix": "missing_counts", "Pending batches": "missing_headers", "ready": "missing_parts"}
"""The reference's reason for a block that is not ready; it calls one ready that lacks a sub batch's part (D19)."""

FORGOTTEN = ("unknown", "complete", "quarantined", "dropped")
"""States of blocks that no later message can bring back."""


def replay(case: Case) -> list[Step]:
    """One step for every message; the start of a stream from nothing is chosen after the last one."""
    return _replayed(identity(case))


@cache
def _replayed(name: str) -> list[Step]:
    case = next(case for case in CASES if case["name"] == name)
    parts = Parts(case)
    steps = [parts.feed(record) for record in records(case)]
    last = parts.caught_up()
    steps[-1].updates += last.updates
    steps[-1].reports += last.reports
    return steps


def said(steps: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The entries of a vector, by message."""
    return {step["i"]: outcome for step in steps if (outcome := stripped(step))}


def expected(case: Case) -> list[dict[int, dict[str, Any]]]:
    """The allowed results of a consumer: one, but where the reference leaves it to chance."""
    ours = case.get("cardinal")
    return [said(steps) for steps in ([ours["steps"]] if ours else [case["steps"], *case.get("alternatives", ())])]


# --- blocks, updates, reports --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FED, ids=identity)
def test_every_message_has_the_results_of_the_vector(case: Case) -> None:
    steps = replay(case)
    assert {i: outcome for i, step in enumerate(steps) if (outcome := step.outcome())} in expected(case)


@pytest.mark.parametrize("case", FED, ids=identity)
def test_every_report_is_the_one_that_the_vector_names(case: Case) -> None:
    reports = [{"i": i} | report_of(event) for i, step in enumerate(replay(case)) for event in step.reports]
    assert reports == case.get("reports", [])
    told = {(report["i"], report["event"]) for report in reports}
    for step in case["steps"]:
        assert "error" not in step or (step["i"], "Rejected") in told
        assert "reorgs" not in step or (step["i"], "ReorgBegan") in told


@pytest.mark.parametrize("case", FED, ids=identity)
def test_a_follower_gives_the_same_updates_as_its_parts(case: Case) -> None:
    log = records(case)
    patient = replace(settings(case), on_incomplete=OnIncomplete.HALT)  # the vectors know no giving up
    steps = Reader(Follower(patient), log).read(log)
    assert [[update_of(update) for update in step.updates] for step in steps] == [
        [update_of(update) for update in step.updates] for step in replay(case)
    ]


@pytest.mark.parametrize("case", [case for case in CASES if not case["messages"]], ids=identity)
def test_a_configuration_that_cannot_work_is_refused(case: Case) -> None:
    assert case["cardinal"]["refused"]
    with pytest.raises(ConfigurationError):
        Parts(case)
    with pytest.raises(ConfigurationError):
        Follower(settings(case))


def test_cases_that_stop_the_reference_describe_cardinal() -> None:
    assert len(DEAD) == 5
    assert all("cardinal" in case for case in DEAD)


def test_annotations_exist_only_where_outcomes_differ() -> None:
    for case in FED:
        if "cardinal" in case and case not in DEAD:
            assert said(case["cardinal"]["steps"]) != said(case["steps"]) or not case["deterministic"]


@pytest.mark.parametrize("case", [case for case in FED if case["final"]], ids=identity)
def test_a_block_that_is_not_ready_is_explained(case: Case) -> None:
    parts = Parts(case)
    for record in records(case):
        parts.feed(record)
    for block, reason in {**case["final"], **case.get("cardinal", {}).get("final", {})}.items():
        explanation = parts.reassembler.explain(raw(block))
        if lacking := WHAT_IS_MISSING.get(reason):
            assert getattr(explanation, lacking)
        else:
            assert explanation.state != "open" or (reason == "not found" and explanation.missing_batch)


@pytest.mark.parametrize("case", FORKED, ids=identity)
def test_the_chain_that_is_delivered_is_a_heaviest_one(case: Case) -> None:
    steps = replay(case)
    blocks = {event.payload.hash: event.payload for step in steps for event in step.completed}
    root = start(case)
    assert root is not None

    def linked(block: bytes) -> bool:
        while block != root.hash and block in blocks:
            block = blocks[block].parent
        return block == root.hash

    chain = fold([update for step in steps for update in step.updates])
    assert blocks[chain[-1]].weight == max(block.weight for block in blocks.values() if linked(block.hash))


# --- resume positions ----------------------------------------------------------------------------------------


def log_of(case: Case) -> list[Record]:
    """The case's messages as a log holds them: each offset once."""
    return list({record[:3]: record for record in records(case)}.values())


@pytest.mark.parametrize("case", FED, ids=identity)
def test_resuming_after_any_message_continues_the_chain_exactly(case: Case) -> None:
    log = log_of(case)
    follower = Follower(settings(case))
    updates: list[ChainUpdate] = []
    stands: list[tuple[int, str]] = []
    for step in Reader(follower, log).read(log):
        updates += step.updates
        stands += [
            (len(updates), str(cursor)) for cursor in (follower.cursor(), *(u.cursor for u in step.updates[-1:]))
        ]
    whole = fold(updates)
    for given, text in list(dict.fromkeys(stands))[::STRIDE]:
        cursor = Cursor.parse(text)
        before = fold(updates[:given])
        assert cursor.seq == (updates[given - 1].seq if given else 0)
        rest = [record for record in log if record.offset >= cursor.floor.get((record.topic, record.partition), 0)]
        reader = Reader(Follower(settings(case), cursor), log)
        reader.positions |= cursor.floor
        more = [update for step in reader.read(rest) for update in step.updates]
        assert fold(more, before, cursor.seq) == whole


@pytest.mark.parametrize("case", FED, ids=identity)
def test_resuming_reads_nothing_again_that_no_longer_matters(case: Case) -> None:
    log = log_of(case)
    follower = Follower(settings(case))
    reader = Reader(follower, log)
    seen: dict[bytes, list[Record]] = {}
    for record, _ in zip(log, reader.read(log), strict=True):
        seen.setdefault(record.key[1:HASH_END], []).append(record)
        cursor = follower.cursor()
        ring = {ref.hash for ref in cursor.ring}
        matter = [block for block in seen if block in ring or follower.explain(block).state not in FORGOTTEN]
        lowest = lowest_offsets(old for block in matter for old in seen[block])
        for place, floor in cursor.floor.items():
            position = reader.positions[place]
            assert lowest.get(place, position) <= floor <= position


@pytest.mark.parametrize("case", FED, ids=identity)
def test_a_completed_blocks_positions_are_where_its_messages_begin(case: Case) -> None:
    theirs = {(step["i"], one["hash"]): one["resumption"] for step in case["steps"] for one in step.get("batches", ())}
    seen: dict[bytes, list[Record]] = {}
    good: dict[bytes, list[Record]] = {}
    for i, (record, step) in enumerate(zip(records(case), replay(case), strict=True)):
        block = record.key[1:HASH_END]
        seen.setdefault(block, []).append(record)
        if not any(report_of(event)["event"] == "Rejected" for event in step.reports):
            good.setdefault(block, []).append(record)
        for event in step.completed:
            lowest, counted = lowest_offsets(seen[block]), lowest_offsets(good[block])
            for place, offset in event.positions.items():
                assert offset >= lowest[place]
                if case["config"]["tracked_prefixes"] == [".*"]:
                    assert offset <= counted[place]
                    # The reference passes over copies that it does not count, and not over what has no type.
                    token = theirs.get((i, block.hex()), {}).get(f"{place[0]}:{place[1]}", offset)
                    assert offset <= token or case["name"] == "unknown-type"


def lowest_offsets(log: Iterable[Record]) -> dict[Partition, int]:
    lowest: dict[Partition, int] = {}
    for record in log:
        place = (record.topic, record.partition)
        lowest[place] = min(lowest.get(place, record.offset), record.offset)
    return lowest
