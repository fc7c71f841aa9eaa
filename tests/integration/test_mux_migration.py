"""A stream that moves from one Kafka to another, under consumers that read both as one."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from kafka_streams import DEADLINE, a_chain, small_stream

from cardinal import Consumer, Producer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.apps import Application
    from cardinal.protocols.streams import ChainUpdate, Payload
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

CHAIN = a_chain(" ".join(f"{number}a" for number in range(1, 61)))


def _publish(url: str, app: Application, payloads: list[Payload], name: str) -> None:
    with Producer(url, app, producer_id=name) as producer:
        for payload in payloads:
            producer.add(payload)
        producer.flush(DEADLINE)


def _until(updates: Iterator[ChainUpdate], number: int) -> list[ChainUpdate]:
    found: list[ChainUpdate] = []
    while not found or found[-1].added[-1].number < number:
        found.append(next(updates))
    return found


def _joined(parts: list[list[ChainUpdate]]) -> list[int]:
    """The numbers of the blocks; no update removes one, and each follows the one before it."""
    updates = [update for part in parts for update in part]
    assert not any(update.removed for update in updates)
    assert all(after.first_seq == before.seq + 1 for before, after in pairwise(updates))
    return [block.number for update in updates for block in update.added]


def test_nothing_is_missed_and_nothing_doubled_at_the_seams(
    cardinal_broker: EmbeddedKafka, cardinal_killable_broker: EmbeddedKafka
) -> None:
    """Old alone, written to both, new alone; the new cluster is killed meanwhile, and the old one gets late copies."""
    app = small_stream()
    old, new = f"kafka://{cardinal_broker.bootstrap}", f"kafka://{cardinal_killable_broker.bootstrap}"
    both = f"mux:{old},{new}"
    parts = []
    _publish(old, app, CHAIN[:20], "one")
    with Consumer(old, app, idle_timeout=DEADLINE) as consumer:
        parts.append(_until(iter(consumer), 20))
    _publish(both, app, CHAIN[15:35], "two")  # the other direction of a mux: a producer that writes both
    with Consumer(both, app, start=parts[-1][-1].cursor, idle_timeout=DEADLINE) as consumer:
        updates = iter(consumer)
        parts.append(_until(updates, 35))
        cardinal_killable_broker.kill()
        cardinal_killable_broker.start()
        _publish(new, app, CHAIN[30:50], "two")
        _publish(old, app, CHAIN[25:35], "late")
        parts.append(_until(updates, 50))
    with Consumer(f"mux:0={old},64={new}", app, start=parts[-1][-1].cursor, idle_timeout=DEADLINE) as consumer:
        _publish(new, app, CHAIN[50:], "two")
        parts.append(_until(iter(consumer), 60))
    assert _joined(parts) == list(range(1, 61))
    with Consumer(new, app, idle_timeout=DEADLINE) as consumer:
        alone = [block.hash for update in _until(iter(consumer), 60) for block in update.added]
    assert alone == [payload.hash for payload in CHAIN[15:]]
