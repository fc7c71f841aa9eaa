"""Production bugs of the reference (`publish.md`), each played against a real node by real gRPC clients.

A scenario of the vectors says when which message is sent, and what every publisher must receive and no more. No body is
durable before the scenario says so: an acknowledgement that came earlier would be noticed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ingest_stage import playable, stage
from test_ingest_node import ids, serving, until

from cardinal.protocols.publish import Acknowledgement, BehindPublisher, BlockEnd, BlockItemSet, SkipBlock
from cardinal.server.ingest.store import BodyStore
from publishers import header, proof, publisher
from publishing import load
from vectors import Case

CASES = {str(case["name"]): case for case in load("publish-arbiter.json", "scenarios")}
BUGS = {
    "an acknowledgement leaks past a resent block (2748)": "two_resends_and_no_leaked_acknowledgement",
    "a stale resend entry (2714)": "obeying_a_resend_and_losing_the_race",
    "a silent resender while the tip moves on (2934)": "silent_resender",
    "a resender is blamed for the earlier copy (3391, 3392)": "late_verdict_of_an_earlier_copy",
    "a reset in mid-block (2443, 2419)": "reset_in_mid_block",
    "a publisher killed in mid-block (2055, 21837)": "lost_winner",
    "a killed publisher comes back alone (2055)": "lost_winner_alone_comes_back",
    "a slower publisher in the window of 5 (1516)": "duplicate_window_boundary",
    "a slower publisher beyond the window (2531)": "far_duplicate_ends_the_stream",
    "two Behind in flight (23928, 23250)": "two_behind_answers_in_flight",
    "a burst of blocks (1563, 1447)": "burst_of_blocks",
    "a restarted block (1290)": "restart_in_mid_block",
    "verdicts out of order (638, 1478)": "verdicts_out_of_order",
    "a failed verification is not acknowledged (1718)": "verification_fails",
    "a resend after a bad proof (1631)": "failed_winner_is_not_selected_again",
    "a block that grows without end (26949)": "block_larger_than_the_limit",
    "a broken header": "malformed_item",
    "an early header": "behind_is_not_terminal",
    "a set without items": "empty_set",
    "a server error": "persistence_fails",
}
OTHERS = [name for name, case in CASES.items() if playable(case) and name not in BUGS.values()]


def play(case: Case, folder: Path) -> None:
    async def run() -> None:
        async with stage(case, folder):
            pass

    asyncio.run(run())


@pytest.mark.parametrize("bug", [bug for bug, name in BUGS.items() if name in CASES])
def test_a_node_does_not_have_the_bug(bug: str, tmp_path: Path) -> None:
    assert playable(CASES[BUGS[bug]])
    play(CASES[BUGS[bug]], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_node_answers_as_the_scenario_says(name: str, tmp_path: Path) -> None:
    play(CASES[name], tmp_path)


def test_a_publisher_restarts_with_unacknowledged_blocks_25389(tmp_path: Path) -> None:
    """Its blocks are complete and not durable: they are skipped, and acknowledged when they are durable."""
    block = [{"header": 5}, {"other": 5, "bytes": 3}, {"proof": 5}]
    second = [{"header": 6}, {"proof": 6}]
    steps = [
        {"connect": "alice"},
        {"from": "alice", "send": {"block_items": block}},
        {"from": "alice", "send": {"end_of_block": 5}},
        {"from": "alice", "send": {"block_items": second}},
        {"from": "alice", "send": {"end_of_block": 6}},
        {"disconnect": "alice"},
        {"connect": "alice#2"},
        {"from": "alice#2", "send": {"block_items": block}},
        {"from": "alice#2", "send": {"end_of_block": 5}},
        {"from": "alice#2", "send": {"block_items": second}},
        *({verdict: number} for number in (6, 5) for verdict in ("verified", "persisted")),
    ]
    sent = [
        (2, "node", {"complete": {"block": 5, "attempt": 1}}),
        (4, "node", {"complete": {"block": 6, "attempt": 1}}),
    ]
    sent += [(step - 1, "node", {"start": {"block": 4 + step // 2, "attempt": 1}}) for step in (2, 4)]
    sent += [(7, "alice#2", {"skip_block": 5}), (9, "alice#2", {"skip_block": 6})]
    sent += [(13, "alice#2", {"acknowledgement": 6})]
    expect = [{"step": step, "to": to, "send": send} for step, to, send in sent]
    play({"config": {"last_stored": 4}, "steps": steps, "expect": expect}, tmp_path)


def test_blocks_that_are_stored_ahead_and_live_ones_interleave_2470(tmp_path: Path) -> None:
    store = BodyStore(tmp_path, "items:1")
    for number in (1, 3, 4, 6):
        store.add(number, b"", b"", b"", 1).result(30)
    store.close()

    async def run() -> None:
        async with serving(tmp_path) as served, publisher(served.port) as one:
            assert served.promoted == ids(1)
            await one.block(2)
            assert await one.next() == Acknowledgement(4)
            await one.send(BlockItemSet((header(6),)))
            assert await one.next() == SkipBlock(6)
            await one.block(5)
            while await one.next() != Acknowledgement(6):
                pass
            assert served.promoted == ids(1, 2, 3, 4, 5, 6)

    asyncio.run(run())


def test_a_burst_of_200_blocks_is_acknowledged_though_nobody_waits_1931(tmp_path: Path) -> None:
    """A node that is full answers Behind to the rest, and the publisher continues when the node has caught up."""

    async def run() -> None:
        async with serving(tmp_path) as served, publisher(served.port) as one:
            node, sent = served.node, 0
            while node.last != 200:
                numbers = range(0 if node.last is None else node.last + 1, 201)
                for number in numbers:
                    await one.block(number)
                sent += len(numbers)
                await until(lambda count=sent: node.responses["behind"] + node.acknowledged == count)
            while (response := await one.next()) != Acknowledgement(200):
                assert isinstance(response, Acknowledgement | BehindPublisher)
            assert served.promoted == ids(*range(201))

    asyncio.run(run())


def test_a_block_of_many_small_sets_is_acknowledged_2931(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as served, publisher(served.port) as one:
            await one.send(BlockItemSet((header(1),)))
            for _ in range(3_000):
                await one.send(BlockItemSet((b"\x12\x01a",)))
            await one.send(BlockItemSet((proof(1),)), BlockEnd(1))
            assert await one.next() == Acknowledgement(1)
            assert served.node.ignored == 0

    asyncio.run(run())
