"""A consumer's health while its broker is killed, hangs, and comes back."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import pytest

from blocks import Blocks, line, publish
from cardinal.consumer import Consumer
from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker

SOON = 10.0
LATER = 60.0


def wait_for(what: Callable[[], bool], seconds: float) -> float:
    """Seconds until it is so."""
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < seconds
        time.sleep(0.05)
    return time.monotonic() - begun


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_consumer_is_not_ready_while_its_broker_is_away(cardinal_killable_broker: EmbeddedKafka, how: str) -> None:
    """The stream is at rest: nothing but the consumer's own requests says whether the broker is there."""
    name = f"health{uuid.uuid4().hex[:8]}"
    app = Blocks(default_topic=name, topics={"a/": f"{name}-a", "b/": f"{name}-b"})
    url = f"kafka://{cardinal_killable_broker.bootstrap}"
    publish(url, line(1, 3), app=app)
    with Consumer(url, app) as consumer:
        reading = threading.Thread(target=lambda: [None for _ in consumer])
        reading.start()
        try:
            wait_for(lambda: consumer.ready, SOON)
            assert consumer.lag == 0
            seen = consumer.last_read_at
            wait_for(lambda: consumer.last_read_at > seen, SOON)
            if how == "kill":
                cardinal_killable_broker.kill()
            else:
                cardinal_killable_broker.pause()
            wait_for(lambda: not consumer.connected, SOON)
            assert not consumer.ready
            assert consumer.caught_up
            away = consumer.last_read_at
            if how == "kill":
                cardinal_killable_broker.start()
            else:
                cardinal_killable_broker.resume()
            wait_for(lambda: consumer.ready, LATER)
            assert consumer.connected
            wait_for(lambda: consumer.last_read_at > away, SOON)
        finally:
            if how == "pause":
                cardinal_killable_broker.resume()
            consumer.close()
            reading.join(SOON)
