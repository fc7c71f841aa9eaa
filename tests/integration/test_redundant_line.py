"""Two producers with transactions and one backlog: who is not the lowest steps back from what stands in its line."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from kafka_streams import DEADLINE, a_chain, everything_on, small_stream

from cardinal.producer import Producer
from cardinal.protocols.streams.types import PRODUCER_HEADER
from cardinal.protocols.streams.wire.messages import BATCH

if TYPE_CHECKING:
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.broker

CHAIN = a_chain(" ".join(f"{number}a" for number in range(1, 501)))


@pytest.mark.slow
def test_a_queued_backlog_is_left_to_the_lowest(cardinal_broker: EmbeddedKafka) -> None:
    app, stream = small_stream(), f"kafka://{cardinal_broker.bootstrap}"
    one, two = (f"{app.default_topic}-{name}" for name in ("one", "two"))

    def producer(name: str) -> Producer:
        url = f"{stream}?transactional=update"
        return Producer(url, app, producer_id=name, redundancy="standby", standby_step=2.0)

    with producer(one) as first, producer(two) as second:
        deadline = time.monotonic() + DEADLINE
        while second.producer_count is None or second.producer_count.live != (one, two):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        # The first one's node is late. After a step the second one takes over, with all that it has.
        waiting = [second.add(payload) for payload in CHAIN]
        waiting[9].result(DEADLINE)
        waiting += [first.add(payload) for payload in CHAIN]
        for future in waiting:
            future.result(DEADLINE)
        assert first.stats.blocks + first.stats.skipped == len(CHAIN)
        assert second.stats.blocks + second.stats.skipped == len(CHAIN)
    batches = [record for record in everything_on(stream, app) if record.key[0] == BATCH]
    assert {record.key[1:] for record in batches} == {payload.hash for payload in CHAIN}
    sent = Counter(dict(record.headers)[PRODUCER_HEADER].decode() for record in batches)
    assert min(sent[one], sent[two]) > 0
    assert len(batches) < 1.1 * len(CHAIN), sent
