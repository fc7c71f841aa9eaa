"""What changes under clients that are connected: the server's token, its topics."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from commands import fresh_chain_id

from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.errors import CardinalError, CursorExpiredError, RefusedError, TopicError, UnreachableError
from cardinal.protocols.streams.types import Routed
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.testing.proxy import TcpProxy
from cardinal.transports import list_topics, open_sink, open_source
from serving import DEADLINE, from_start, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.embedded import EmbeddedKafka
    from cardinal.transports import Source

APP = ChainGenerator().application
OLD, NEW = "correct-horse-battery", "staple-horse-battery"


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def _add(broker: MemoryBroker, count: int = 5) -> None:
    sink = broker.sink(APP, producer_id="a")
    sink.send([Routed(APP.default_topic, b"\x03" + n.to_bytes(32, "big"), b"x") for n in range(count)], None)
    sink.close()


def _poll(source: Source) -> None:
    """Until it raises."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        source.poll(10, 0.2)


def test_a_client_whose_token_is_taken_away_reads_on_until_it_has_to_come_again(broker: MemoryBroker) -> None:
    """Tokens are looked at when a connection is made. Then: one sentence, and no knocking again and again."""
    with serving(broker.url, APP, tokens=(OLD,)) as served, TcpProxy(f"127.0.0.1:{served.port}") as proxy:
        source = from_start(open_source(f"ws://{proxy.address}?token={OLD}", APP))
        read(source, len(broker.records()))
        port = served.port
        served.stop()
        with serving(broker.url, APP, tokens=(NEW,), port=port) as changed:
            with pytest.raises(RefusedError, match="does not accept the token: set the right one with") as caught:
                source.poll(1, DEADLINE)
            assert OLD not in str(caught.value)
            knocked = changed.status.unauthorized_total
            accepted = proxy.stats.accepted
            for attempt in (
                lambda: source.poll(1, 0.5),
                source.watermarks,
                lambda: source.assign({(APP.default_topic, 0): 0}),
            ):
                with pytest.raises(RefusedError, match="does not accept the token"):
                    attempt()  # the same sentence at once, and nobody is asked
            assert changed.status.unauthorized_total == knocked == 1
            assert proxy.stats.accepted == accepted
            source.close()


def test_a_consumer_ends_with_the_same_sentence(broker: MemoryBroker) -> None:
    with serving(broker.url, APP, tokens=(OLD,)) as served:
        port = served.port
        with Consumer(f"{served.url}?token={OLD}", APP, idle_timeout=DEADLINE) as consumer:
            served.stop()
            with (
                serving(broker.url, APP, tokens=(NEW,), port=port),
                pytest.raises(RefusedError, match="does not accept the token"),
            ):
                next(iter(consumer))


def test_a_token_that_is_right_again_is_taken_by_who_still_waits(broker: MemoryBroker) -> None:
    """While nobody answers, a client waits; what counts is the token when somebody does."""
    with serving(broker.url, APP, tokens=(OLD,)) as served:
        source = from_start(open_source(f"{served.url}?token={OLD}", APP))
        read(source, len(broker.records()))
        port = served.port
        served.stop()
        assert source.poll(1, 0.2) == []
        with serving(broker.url, APP, tokens=(NEW, OLD), port=port) as both:
            _add(broker)
            assert len(read(source, 5)) == 5
            assert both.status.unauthorized_total == 0
            source.close()


def test_a_client_reads_its_token_file_at_every_connection(broker: MemoryBroker, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{OLD}\n")
    with serving(broker.url, APP, tokens=(OLD,)) as served:
        source = from_start(open_source(f"{served.url}?token_file={file}", APP))
        read(source, len(broker.records()))
        port = served.port
    file.write_text(f"{NEW}\n")
    with serving(broker.url, APP, tokens=(NEW,), port=port) as changed:
        _add(broker)
        assert len(read(source, 5)) == 5
        assert changed.status.unauthorized_total == 0
        source.close()


def test_the_server_reads_its_token_file_at_every_connection(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who is connected stays; while the file cannot be used nobody is admitted, and that is temporary."""
    file = tmp_path / "tokens"
    file.write_text(f"{OLD}\n\n  {NEW} \n")
    with serving(broker.url, APP, token_file=file) as served:
        source = from_start(open_source(f"{served.url}?token={OLD}", APP))
        file.write_text(f"{NEW}\n")
        assert list_topics(f"{served.url}?token={NEW}")
        with pytest.raises(RefusedError, match="does not accept the token"):
            list_topics(f"{served.url}?token={OLD}")
        for spoil in (file.unlink, lambda: file.write_text("\n"), lambda: file.write_bytes(b"\xff")):
            spoil()
            with pytest.raises(UnreachableError, match="HTTP status 500"):
                list_topics(f"{served.url}?token={NEW}")
        assert len(read(source, len(broker.records()))) == len(broker.records())
        assert served.status.unauthorized_total == 1
        source.close()
    assert str(file) in caplog.text
    assert NEW not in caplog.text


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
    _add(broker, 20)
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
        _add(broker, 100)
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
        _add(broker)
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
