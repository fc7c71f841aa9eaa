"""Topics that are deleted or recreated under a reading consumer: every poll raises the error."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from blocks import DEADLINE, Blocks, line, publish, until
from cardinal.consumer import Consumer
from cardinal.errors import CardinalError, CursorExpiredError, TopicError, UnreachableError
from cardinal.transports.kafka.admin import Cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.embedded import EmbeddedKafka
    from cardinal.protocols.streams.types import Partition

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def _delete(broker: EmbeddedKafka, app: Blocks) -> None:
    admin = AdminClient(broker.client_config())
    for done in admin.delete_topics(list(app.all_topics)).values():
        done.result(DEADLINE)
    deadline = time.monotonic() + DEADLINE
    while set(app.all_topics) & set(admin.list_topics(timeout=DEADLINE).topics):
        assert time.monotonic() < deadline


def _fresh() -> Blocks:
    name = uuid.uuid4().hex
    return Blocks(default_topic=f"{name}-block", topics={"a/": f"{name}-a", "b/": f"{name}-b"})


def _ends(consumer: Consumer) -> CardinalError:
    with pytest.raises((CursorExpiredError, TopicError)) as caught:
        list(consumer)
    return caught.value


@pytest.mark.parametrize("again", ["made anew", "gone"])
def test_a_consumer_says_at_every_iteration_that_its_topics_are_gone(
    cardinal_broker: EmbeddedKafka, again: str
) -> None:
    app, url = _fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 30), app=app)
    with Consumer(url, app, idle_timeout=2 * DEADLINE) as consumer:
        until(consumer, "30a")
        _delete(cardinal_broker, app)
        if again == "made anew":
            publish(url, line(1, 3), app=app)
        first = _ends(consumer)
        for _ in range(3):
            repeated = _ends(consumer)
            assert type(repeated) is type(first)
            assert str(repeated) == str(first)
    if again == "made anew":
        with Consumer(url, app, idle_timeout=DEADLINE) as anew:
            until(anew, "3a")


def test_a_broker_that_is_away_while_it_is_asked_what_it_has_is_asked_again(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is fetched of such a partition: whoever was told that the broker is away would wait in vain."""
    starts, away = Cluster.starts, [2]

    def asked(self: Cluster, partitions: Sequence[Partition]) -> dict[Partition, int]:
        if len(partitions) == 1 and away[0]:  # of one partition: why the broker has nothing at its position
            away[0] -= 1
            raise UnreachableError("the broker starts again", address="here")
        return starts(self, partitions)

    monkeypatch.setattr(Cluster, "starts", asked)
    app, url = _fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 30), app=app)
    with Consumer(url, app, idle_timeout=2 * DEADLINE) as consumer:
        until(consumer, "30a")
        _delete(cardinal_broker, app)
        publish(url, line(1, 3), app=app)
        for _ in range(2):
            with pytest.raises(UnreachableError):
                list(consumer)
        assert isinstance(_ends(consumer), CursorExpiredError)
