"""The source's driver side on a real broker that is killed under it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from cardinal import apps
from cardinal.apps.evm import payload_from_rpc
from cardinal.producer import Producer
from cardinal_connectors.dev import DevChain, DevSettings
from cardinal_spark.rows import AppSpec
from cardinal_spark.source.driver import Driver, Limit
from cardinal_spark.source.options import Stream
from cardinal_spark.source.starting import Starting
from cardinal_spark.source.tasks import read_blocks, wanted
from cardinal_spark.source.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from cardinal.embedded import EmbeddedKafka
    from cardinal.transports import Source
    from cardinal_connectors.dev.chain import Step
    from cardinal_spark.source.state import PlannedBlock

pytestmark = pytest.mark.broker

CHAIN_ID = 7_900_001


def publish(url: str, steps: Iterator[Step]) -> None:
    producer = Producer(url, apps.get("evm", chain_id=CHAIN_ID), producer_id="a")
    for step in steps:
        for block in step.mined:
            producer.add(payload_from_rpc(block.block, block.receipts, chain_id=CHAIN_ID))
    producer.flush()
    producer.close()


def test_a_broker_that_is_killed_is_waited_for(cardinal_killable_broker: EmbeddedKafka) -> None:
    """One driver meets nobody when it opens; another one had its connection broken, and goes on when there is more."""
    written = f"kafka://{cardinal_killable_broker.bootstrap}"
    url = f"{written}?cardinal.connect.timeout.ms=3000"
    steps = iter(DevChain(DevSettings(seed=3, blocks=40, transactions=2, chain_id=CHAIN_ID)))
    publish(written, islice(steps, 25))
    stream = Stream(url, AppSpec("evm", {"chain_id": CHAIN_ID, "reorg_threshold": 8}).text(), 0.0)
    old = Window(stream.open, stream.digester())
    driver = Driver(stream.settings, old)
    start = Starting(stream.settings, old, stream.app.default_topic).earliest().json()
    first = driver.next_offset(start, Limit(blocks=3))
    rows = list(driver.plan(start, first).rows)

    asked = threading.Event()

    def open_source() -> Source:
        asked.set()
        return stream.open()

    cardinal_killable_broker.kill()
    with ThreadPoolExecutor(1) as pool:
        fresh = Driver(stream.settings, Window(open_source, stream.digester()))
        following = pool.submit(rest, fresh, first)
        assert asked.wait(20)
        cardinal_killable_broker.start()
        more, end = following.result(60)
    publish(written, steps)
    last, _ = rest(driver, end)
    rows += [*more, *last]
    assert more
    assert last
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1].block.header.number == 40
    assert sum(1 for _ in read_blocks(stream, [wanted(row) for row in rows])) == len(rows)
    driver.close()
    fresh.close()


def rest(driver: Driver, start: dict[str, Any]) -> tuple[list[PlannedBlock], dict[str, Any]]:
    """The rows of everything that is there, and where they end."""
    rows: list[PlannedBlock] = []
    driver.freeze()
    while (end := driver.next_offset(start, Limit(blocks=10))) != start:
        rows += driver.plan(start, end).rows
        start = end
    return rows, start
