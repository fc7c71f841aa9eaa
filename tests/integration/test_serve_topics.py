"""Topics that change under clients that are connected: added, trimmed, recreated, deleted."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from commands import fresh_chain_id

from cardinal import apps
from cardinal.errors import CardinalError, CursorExpiredError, TopicError
from cardinal.protocols.streams.types import Routed
from cardinal.testing import MemoryBroker
from cardinal.transports import open_sink, open_source
from serving import APP, DEADLINE, fill, from_start, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.apps import Application
    from cardinal.embedded import EmbeddedKafka
    from cardinal.transports import Source


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def _poll(source: Source) -> None:
    """Until it raises."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        source.poll(10, 0.2)


def _cut(broker: MemoryBroker, kept: int) -> None:
    """Every partition loses its newest records, as where a broker that lacked them leads, or topics are made anew."""
    with broker._changed:
        for log in broker._logs.values():
            del log.records[kept:]
        broker._changed.notify_all()


@pytest.mark.parametrize("kept", [0, 3])
def test_records_that_are_no_longer_there_end_a_reading_as_they_end_a_direct_one(
    broker: MemoryBroker, kept: int
) -> None:
    """Also that of a client which had paused, whose offsets are filled with other records by the time it goes on."""
    fill(broker, 20)
    with serving(broker.url, APP) as served:
        direct = from_start(open_source(broker.url, APP))
        source, paused = (from_start(open_source(served.url, APP)) for _ in range(2))
        for each in (direct, source, paused):
            read(each, len(broker.records()))
        paused.pause(paused.positions())
        stood = source.positions()
        _cut(broker, kept)
        for each in (direct, source):
            with pytest.raises(CursorExpiredError) as caught:
                _poll(each)
            assert all(stood[where] == at for where, (at, _) in caught.value.missing.items())
            assert caught.value.missing
        fill(broker, 100)
        paused.pause(())
        with pytest.raises(CursorExpiredError):
            _poll(paused)
        assert served.status.upstream_connected
        for each in (source, paused):  # and both may begin again
            assert sorted(read(from_start(each), len(broker.records()))) == broker.records()
            each.close()


def test_what_retention_removes_before_the_server_has_read_it_ends_nobody_who_does_not_need_it(
    broker: MemoryBroker,
) -> None:
    with serving(broker.url, APP) as served:
        source = open_source(served.url, APP)
        source.assign({where: high for where, (_, high) in source.watermarks().items()})
        with broker._changed:  # written and removed in one moment
            for topic, number in broker._logs:
                for _ in range(5):
                    broker._append(topic, number, b"k", b"v", ())
                broker.trim(topic, number, 3)
            broker._changed.notify_all()
        with pytest.raises(CursorExpiredError, match="retention"):  # it needs them: it has read 1 of each
            _poll(source)
        low = {where: marks[0] for where, marks in broker.marks(source.partitions()).items()}
        source.assign(low)
        read(source, len(broker.records()))
        fill(broker, 5)
        read(source, 5)
        assert served.status.upstream_connected
        source.close()


@pytest.mark.broker
def test_topics_that_are_made_anew_on_kafka_end_every_reading_and_are_served_from_their_new_start(
    cardinal_broker: EmbeddedKafka,
) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only these tests need it

    app = apps.get("evm", chain_id=fresh_chain_id())
    url = f"kafka://{cardinal_broker.bootstrap}"

    def fill(count: int) -> None:
        sink = open_sink(url, app, producer_id="a")
        keys = (b"\x03" + number.to_bytes(32, "big") for number in range(count))
        sink.send([Routed(app.default_topic, key, b"x") for key in keys], None).result(DEADLINE)
        sink.close()

    fill(50)
    with serving(url, app) as served:
        client = from_start(open_source(served.url, app))
        heartbeats = len(client.partitions())
        read(client, heartbeats + 50)
        admin = AdminClient({"bootstrap.servers": cardinal_broker.bootstrap})
        for done in admin.delete_topics(list(app.all_topics)).values():
            done.result(DEADLINE)
        until(lambda: _made(url, app))
        with pytest.raises(CursorExpiredError):
            _poll(client)
        client.close()
        fill(80)
        other = from_start(open_source(served.url, app))
        assert len(read(other, heartbeats + 80)) == heartbeats + 80
        assert served.status.upstream_connected
        other.close()


def _made(url: str, app: Application) -> bool:
    """Topics are made; where the old ones are still being deleted that fails."""
    try:
        open_sink(url, app, producer_id="a").close()
    except CardinalError:
        return False
    return True


@pytest.mark.broker
def test_a_topic_that_is_deleted_under_the_server_ends_the_reading_and_the_server(
    cardinal_broker: EmbeddedKafka,
) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only this test needs it

    app = apps.get("evm", chain_id=fresh_chain_id())
    url = f"kafka://{cardinal_broker.bootstrap}"
    sink = open_sink(url, app, producer_id="a")
    sink.close()
    with serving(url, app) as served:
        client = from_start(open_source(served.url, app))
        read(client, len(client.partitions()))  # a heartbeat in each
        admin = AdminClient({"bootstrap.servers": cardinal_broker.bootstrap})
        for done in admin.delete_topics([app.default_topic]).values():
            done.result(DEADLINE)
        with pytest.raises(TopicError) as caught:
            _poll(client)
        assert caught.value.topic == app.default_topic
        assert str(caught.value).count(". ") == 0
        with pytest.raises(TopicError, match=app.default_topic):  # and `cardinal serve` ends with it
            served.do(served.service.run())
        assert not served.status.upstream_connected
        client.close()
