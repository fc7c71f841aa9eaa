"""Cardinal's consumer in cases without a vector of the reference: `schemas/vectors/own.json`, in their format.

Each case names the rules of `schemas/SPEC.md` that it witnesses. Blocks are what a reassembler completes, one for the
main topics and one for each reorg channel; updates and reports are a follower's.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import pytest

from cardinal.protocols.streams import ChainUpdate, Completed, Cursor, Follower, Record
from cardinal.protocols.streams.following.follower import assembler_of
from vectors import Case, Reader, Step, fold, identity, load, records, report_of, settings, stripped

CASES = load("own.json")
CHANNEL = "-re-"


def there(case: Case) -> list[Record]:
    """The records on the topics when the reader began."""
    return records(case)[: case["config"].get("there_at_start")]


def replay(case: Case) -> list[Step]:
    """One step for every message."""
    log = records(case)
    follower = Follower(settings(case))
    rooms = defaultdict(partial(assembler_of, settings(case)))
    steps = []
    for record, step in zip(log, Reader(follower, there(case)).read(log), strict=True):
        room = rooms[record.topic if CHANNEL in record.topic else ""]
        step.completed = [event for event in room.receive([record]) if isinstance(event, Completed)]
        steps.append(step)
    return steps


@pytest.mark.parametrize("case", CASES, ids=identity)
def test_every_message_has_the_results_of_the_case(case: Case) -> None:
    found = {i: outcome for i, step in enumerate(replay(case)) if (outcome := step.outcome())}
    assert found == {step["i"]: stripped(step) for step in case["steps"]}


@pytest.mark.parametrize("case", CASES, ids=identity)
def test_every_report_is_the_one_that_the_case_names(case: Case) -> None:
    reports = [{"i": i} | report_of(event) for i, step in enumerate(replay(case)) for event in step.reports]
    assert reports == case.get("reports", [])


@pytest.mark.parametrize("case", CASES, ids=identity)
def test_resuming_after_any_message_ends_at_the_same_chain(case: Case) -> None:
    log = records(case)
    follower = Follower(settings(case))
    reader = Reader(follower, there(case))
    stands: list[tuple[int, str]] = []
    updates: list[ChainUpdate] = []
    for step in reader.read(log):
        updates += step.updates
        stands.append((len(updates), str(follower.cursor())))
    whole = fold(updates)
    for given, text in stands:
        cursor = Cursor.parse(text)
        again = Reader(Follower(settings(case), cursor), log)
        again.positions |= cursor.floor
        rest = [record for record in log if record.offset >= cursor.floor.get((record.topic, record.partition), 0)]
        more = [update for step in again.read(rest) for update in step.updates]
        assert fold(more, fold(updates[:given]), cursor.seq) == whole


def test_every_case_names_what_it_witnesses() -> None:
    names = [case["name"] for case in CASES]
    assert len(set(names)) == len(names)
    assert all(case["witness"] and case["rule"] for case in CASES)
