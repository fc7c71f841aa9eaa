"""The source on a real broker that is killed under it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from cardinal import apps
from cardinal.errors import UnreachableError
from cardinal.producer import Producer
from cardinal_devkit.devchain import DevChain, DevSettings
from cardinal_ethereum import payload_from_rpc
from cardinal_spark.rows import AppSpec
from cardinal_spark.source.options import SourceOptions, StreamSpec
from cardinal_spark.source.planner import Limit, Planner
from cardinal_spark.source.tasks import read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from cardinal_devkit.devchain.chain import Step
    from cardinal_devkit.kafka import EmbeddedKafka
    from cardinal_spark.source.offsets import PlannedRow

pytestmark = pytest.mark.broker

CHAIN_ID = 7_900_001


def publish(url: str, steps: Iterator[Step]) -> int:
    """Publish these steps; returns the number of the chain's head."""
    number = 0
    producer = Producer(url, apps.get("evm", chain_id=CHAIN_ID), producer_id="a")
    for step in steps:
        for block in step.mined:
            payload = payload_from_rpc(block.block, block.receipts, chain_id=CHAIN_ID)
            producer.add(payload)
            number = payload.number
    producer.flush()
    producer.close()
    return number


@pytest.mark.slow
def test_a_broker_that_is_killed_is_waited_for(cardinal_killable_broker: EmbeddedKafka) -> None:
    """A planner that is under way goes on when there is more, and a task reads when the broker is back."""
    written = f"kafka://{cardinal_killable_broker.bootstrap}"
    url = f"{written}?cardinal.connect.timeout.ms=3000"
    steps = iter(DevChain(DevSettings(seed=3, blocks=40, transactions=2, chain_id=CHAIN_ID)))
    head = publish(written, islice(steps, 25))
    stream = StreamSpec(url, AppSpec("evm", {"chain_id": CHAIN_ID, "reorg_threshold": 8}).text(), 0.0)
    planner = Planner(stream, SourceOptions.of({"url": url}))
    rows, end = until(planner, planner.first(), head)

    cardinal_killable_broker.kill()
    with pytest.raises(UnreachableError):
        Planner(stream, SourceOptions.of({"url": url})).next_offset(end, Limit())
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: list(read_blocks(stream, rows)))
        cardinal_killable_broker.start()
        assert len(reading.result(60)) == len(rows)
    head = publish(written, steps)
    more, _ = until(planner, end, head)
    assert more
    rows += more
    assert [row.seq for row, *_ in rows] == list(range(1, len(rows) + 1))
    planner.close()


def until(planner: Planner, start: dict[str, Any], number: int) -> tuple[list[PlannedRow], dict[str, Any]]:
    """The rows up to a block of this number, and where they end."""
    rows: list[PlannedRow] = []
    deadline = time.monotonic() + 60
    while not rows or rows[-1].row.number < number:
        assert time.monotonic() < deadline
        end = planner.next_offset(start, Limit(blocks=10))
        rows += planner.plan(start, end)
        start = end
    return rows, start
