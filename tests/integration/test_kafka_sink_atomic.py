"""`transactional=update`: whatever one call publishes appears as a whole, seen from after each of its steps."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from kafka_streams import DEADLINE, a_block, a_chain, everything_on, named, small_stream

from cardinal.producer import Producer
from cardinal.protocols.streams import reorg_topic
from cardinal.protocols.streams.types import BlockRef
from cardinal.transports.kafka import TransactionalKafkaSink
from cardinal.transports.registry import list_topics

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from cardinal.apps import Application
    from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker


def _block(producer: Producer) -> Future[None]:
    return producer.add(a_block("4a", "3a", values=20))


def _branch(producer: Producer) -> Future[None]:
    return producer.reorg(BlockRef(1, named("1a")), a_chain("2b 3b 4b", root="1a", values=20))


@pytest.mark.parametrize(
    ("publish", "names", "threshold"),
    [
        pytest.param(_block, "4a", 16, id="block"),
        pytest.param(_branch, "2b 3b 4b", 16, id="branch"),
        pytest.param(_branch, "1a 2b 3b 4b", 1, id="deep branch: its announcement and its end name the ancestor"),
    ],
)
def test_nothing_is_visible_before_everything_is(
    cardinal_broker: EmbeddedKafka,
    monkeypatch: pytest.MonkeyPatch,
    publish: Callable[[Producer], Future[None]],
    names: str,
    threshold: int,
) -> None:
    """A transaction is sent in steps, what carries the content first: after each, a reader looks what it can see."""
    app, url = small_stream(threshold=threshold), f"kafka://{cardinal_broker.bootstrap}?transactional=update"
    published = {named(name) for name in names.split()}
    views: list[Counter[bytes]] = []
    with Producer(url, app, producer_id=app.default_topic) as producer:
        for payload in a_chain("1a 2a 3a"):
            producer.add(payload).result(DEADLINE)
        before = _seen(url, app)
        sink = producer._sink
        assert isinstance(sink, TransactionalKafkaSink)
        send = sink._send

        def send_and_look(stage: object) -> None:
            send(stage)
            views.append(_seen(url, app))

        monkeypatch.setattr(sink, "_send", send_and_look)
        publish(producer).result(DEADLINE)
    after = _seen(url, app)
    assert len(views) > 1, "it is sent in one step, and there is nothing to see here"
    assert all(after[block] > before[block] for block in published)
    for view in views:
        assert view == before, "it was visible in part"


def _seen(url: str, app: Application) -> Counter[bytes]:
    """How many records of each block a reader of committed records can see, the channel's included."""
    channel = reorg_topic(app.default_topic, named("1a"))
    topics = [*app.all_topics, *({channel} & list_topics(url))]
    return Counter(record.key[1:33] for record in everything_on(url, app, topics))
