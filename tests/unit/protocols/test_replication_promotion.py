"""Promotion: whose turn it is, the blocks that come next, the marker."""

from __future__ import annotations

import pytest

from cardinal.errors import ForeignMarkerError
from cardinal.protocols.replication import Block, Marker, Placed, Promotion, PutPromoted, Replica, Run, Step
from replicating import MEMBERS, batch, chain, claimed, replica

BLOCKS = chain("99a", "100a", "101a", "102a", "103a")


def agreed(node: str = "a", *, bodies: list[Block] | None = None, **settings: float) -> Replica:
    """A replica with two batches: 100a and 101a, 102a and 103a."""
    it = replica(node, promote_wait=1.0, promote_wait_most=10.0, **settings)
    it.admit(BLOCKS if bodies is None else bodies, 0.0)
    for offset, run in enumerate((BLOCKS[:2], BLOCKS[2:]), 1):
        assert it.state is not None
        it.read(offset, claimed(batch(it.state, run)), 0.0)
    return it


def marker(it: Replica, num: int, index: int, writer: str = "c", **changes: object) -> Marker:
    fields = {"cluster": MEMBERS.cluster, "stream": MEMBERS.stream, "batch": it.winners[num].hash} | changes
    return Marker(num=num, index=index, writer=writer, **fields)  # type: ignore[arg-type]


def placed(run: Run | None) -> list[tuple[int, int, int]]:
    return [] if run is None else [(one.num, one.index, one.item.number) for one in run.blocks]


def test_blocks_in_order_and_the_marker_after_them() -> None:
    it = agreed()
    run = Promotion(it).next_run()
    assert placed(run) == [(1, 0, 100), (1, 1, 101), (2, 0, 102), (2, 1, 103)]
    assert run is not None
    assert run.marker == marker(it, 2, 2, "a")
    assert run.blocks[0] == Placed(1, 0, BLOCKS[0].item)


def test_a_transaction_ends_at_its_size_and_at_a_missing_body() -> None:
    assert placed(Promotion(agreed(transaction_bytes=35)).next_run()) == [(1, 0, 100), (1, 1, 101), (2, 0, 102)]
    assert placed(Promotion(agreed(transaction_bytes=1)).next_run()) == [(1, 0, 100)]
    assert placed(Promotion(agreed(bodies=BLOCKS[:3])).next_run()) == [(1, 0, 100), (1, 1, 101), (2, 0, 102)]
    assert placed(Promotion(agreed(bodies=BLOCKS[1:])).next_run()) == []


def test_blocks_resume_after_the_marker() -> None:
    it = agreed()
    rule = Promotion(it)
    for position, left in (((1, 1), 3), ((1, 2), 2), ((2, 1), 1), ((2, 2), 0)):
        step = rule.read(marker(it, *position), 0.0)
        assert step.rows[0] == PutPromoted(*position)
        assert len(placed(rule.next_run())) == left
    assert rule.read(marker(it, 2, 1), 0.0) == Step((), ())


def test_nothing_is_written_before_the_own_reader_has_passed_the_marker() -> None:
    behind = replica("b")
    rule = Promotion(behind)
    rule.read(marker(agreed(), 1, 1), 0.0)
    assert rule.next_run() is None
    behind.read(1, claimed(batch(behind.state, BLOCKS[:2])) if behind.state else b"", 0.0)
    assert rule.next_run() is None
    behind.admit(BLOCKS, 0.0)
    assert placed(rule.next_run()) == [(1, 1, 101)]
    assert Promotion(replica(opened=False)).next_run() is None


@pytest.mark.parametrize(("node", "wait"), [("a", 1.0), ("b", 2.0), ("c", 3.0)])
def test_ranks_begin_at_the_first_member(node: str, wait: float) -> None:
    rule = Promotion(agreed(node))
    assert not rule.due(10.0)
    assert rule.deadline == 10.0 + wait
    assert not rule.due(9.9 + wait)
    assert rule.due(10.0 + wait)


def test_ranks_begin_at_the_writer_of_the_last_marker() -> None:
    it = agreed("b")
    rule = Promotion(it)
    rule.read(marker(it, 1, 1, "c"), 5.0)
    assert not rule.due(7.9)
    assert rule.due(8.0)
    rule.read(marker(it, 1, 2, "b"), 9.0)
    assert rule.due(10.0)
    rule.read(marker(it, 2, 1, "stranger"), 11.0)
    assert rule.due(12.0)


def test_nobody_is_due_while_nothing_is_to_be_written() -> None:
    it = agreed()
    rule = Promotion(it)
    rule.read(marker(it, 2, 2), 0.0)
    assert not rule.due(99.0)
    assert rule.deadline == float("inf")


def test_the_wait_doubles_until_a_commit() -> None:
    it = agreed()
    rule, now = Promotion(it), 0.0
    for wait in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        assert not rule.due(now)
        assert rule.deadline == now + wait
        now += wait
        assert rule.due(now)
        rule.begin()
        assert not rule.due(now + 100)
        rule.failed(now)
    rule.begin()
    rule.committed(marker(it, 1, 1, "a"), now)
    rule.failed(now)
    assert not rule.due(now)
    assert rule.deadline == now + 1.0


def test_markers_of_other_clusters() -> None:
    it = agreed()
    rule = Promotion(it, previous=b"\x01" * 32)
    assert rule.read(marker(it, 2, 2, cluster=b"\x01" * 32), 0.0) == Step((), ())
    for changes in ({"cluster": b"\x02" * 32}, {"stream": "btc"}):
        with pytest.raises(ForeignMarkerError) as refused:
            rule.read(marker(it, 2, 2, **changes), 0.0)
        assert refused.value.cluster == changes.get("cluster", MEMBERS.cluster)
