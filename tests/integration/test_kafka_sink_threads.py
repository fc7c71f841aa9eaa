"""Blocks that several threads add, or that are added from inside of a seal's callback."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial

import pytest
from kafka_streams import DEADLINE, a_chain, everything_on, small_stream

from cardinal.embedded import EmbeddedKafka
from cardinal.producer import Producer
from cardinal.protocols.streams import Completed, Payload, Reassembler
from cardinal.protocols.streams.types import SEALED_HEADER, Record

pytestmark = pytest.mark.broker
SMALL = "?queue.buffering.max.messages=100&queue.buffering.max.kbytes=32"
"""Room for so little that everybody waits for everybody."""


def _chains(letters: str, length: int) -> list[list[Payload]]:
    return [a_chain(" ".join(f"{number}{letter}" for number in range(1, length + 1))) for letter in letters]


def _sealed_when_complete(records: list[Record]) -> int:
    """The sealed Batches, each of which stands after all the rest of its block by the broker's clock."""
    newest: dict[bytes, int] = {}
    for record in records:
        if record.key[0] not in (0, 0xFF):
            newest[record.key[1:33]] = max(record.timestamp_ms, newest.get(record.key[1:33], 0))
    sealed = [record for record in records if SEALED_HEADER in dict(record.headers)]
    assert all(record.timestamp_ms >= newest[record.key[1:]] for record in sealed)
    return len(sealed)


def _whole(records: list[Record]) -> set[bytes]:
    events = Reassembler().receive(sorted(records, key=lambda record: record.timestamp_ms))
    return {event.payload.hash for event in events if isinstance(event, Completed)}


@pytest.mark.parametrize("options", ["", SMALL])
def test_several_threads_add_at_once_and_every_block_is_sealed_when_it_is_complete(
    cardinal_broker: EmbeddedKafka, options: str
) -> None:
    app, url = small_stream(threshold=512), f"kafka://{cardinal_broker.bootstrap}{options}"
    chains = _chains("abcd", 150)
    with Producer(url, app, producer_id="one", max_blocks=64) as producer:

        def add(chain: list[Payload]) -> None:
            for payload in chain:
                producer.add(payload)

        threads = [threading.Thread(target=add, args=(chain,)) for chain in chains]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        producer.flush(DEADLINE)
        assert producer.stats[:2] == (600, 600 * 6)
    records = everything_on(url, app)
    assert _sealed_when_complete(records) == 600
    assert _whole(records) == {payload.hash for chain in chains for payload in chain}


def test_a_block_may_be_added_when_its_parent_is_told_to_be_sealed(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(threshold=512), f"kafka://{cardinal_broker.bootstrap}{SMALL}"
    (chain,) = _chains("a", 200)
    ended = threading.Event()
    with Producer(url, app, producer_id="one", max_blocks=2) as producer:

        def go_on(left: list[Payload], done: Future[None]) -> None:
            assert done.exception() is None
            if left:
                producer.add(left[0]).add_done_callback(partial(go_on, left[1:]))
            else:
                ended.set()

        producer.add(chain[0]).add_done_callback(partial(go_on, chain[1:]))
        assert ended.wait(DEADLINE)
        assert producer.stats.blocks == 200
    records = everything_on(url, app)
    assert _whole(records) == {payload.hash for payload in chain}


def test_what_is_told_while_a_block_is_added_reaches_whoever_waits(cardinal_broker: EmbeddedKafka) -> None:
    """Futures end while one thread does nothing but add, and also when nobody adds any more."""
    app, url = small_stream(threshold=512), f"kafka://{cardinal_broker.bootstrap}"
    (chain,) = _chains("a", 400)
    told: list[int] = []
    with Producer(url, app, producer_id="one", max_blocks=32) as producer:
        for payload in chain:
            future = producer.add(payload)
            future.add_done_callback(lambda _, number=payload.number: told.append(number))  # type: ignore[misc] # of lambdas
        future.result(DEADLINE)  # without any call of ours: the sink's own thread takes the last ones in
        deadline = time.monotonic() + DEADLINE
        while len(told) < len(chain):  # a future ends a moment before it tells
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert sorted(told) == list(range(1, 401))
