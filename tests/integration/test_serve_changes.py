"""What changes under clients that are connected: the server's token, its topics."""

from __future__ import annotations

import socket
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from commands import fresh_chain_id

from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.errors import RefusedError, TopicError
from cardinal.protocols.streams.types import Routed
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.testing.proxy import TcpProxy
from cardinal.transports import open_sink, open_source
from serving import DEADLINE, from_start, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
            with pytest.raises(RefusedError, match="does not accept the token: give the right one by") as caught:
                source.poll(1, DEADLINE)
            assert OLD not in str(caught.value)
            knocked = changed.progress.unauthorized
            accepted = proxy.stats.accepted
            for attempt in (
                lambda: source.poll(1, 0.5),
                source.watermarks,
                lambda: source.assign({(APP.default_topic, 0): 0}),
            ):
                with pytest.raises(RefusedError, match="does not accept the token"):
                    attempt()  # the same sentence at once, and nobody is asked
            until(lambda: not source._link._thread.is_alive())  # nobody is left who could knock
            assert changed.progress.unauthorized == knocked == 1
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
            assert both.progress.unauthorized == 0
            source.close()


def test_a_token_file_that_was_changed_is_read_again_by_who_comes_again(broker: MemoryBroker, tmp_path: Path) -> None:
    """Changed while the client is connected, and while nobody answers; the consumer goes on as if nothing was."""
    file = tmp_path / "token"
    file.write_text(f"{OLD}\n")
    with serving(broker.url, APP, tokens=(OLD,)) as served, TcpProxy(f"127.0.0.1:{served.port}") as proxy:
        source = from_start(open_source(f"ws://{proxy.address}?token_file={file}", APP))
        read(source, len(broker.records()))
        file.write_text(f"{NEW}\n")
        proxy.reset()
        port = served.port
        served.stop()
        with serving(broker.url, APP, tokens=(NEW,), port=port) as changed:
            _add(broker)
            assert len(read(source, 5)) == 5
            assert changed.progress.unauthorized == 0
            assert NEW not in repr(vars(source)) + repr(vars(source._link))
            source.close()


def test_a_token_file_that_is_away_or_empty_while_it_is_changed_counts_as_it_was(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(OLD)
    with serving(broker.url, APP, tokens=(OLD,)) as served, TcpProxy(f"127.0.0.1:{served.port}") as proxy:
        source = from_start(open_source(f"ws://{proxy.address}?token_file={file}", APP))
        expected = len(broker.records())
        read(source, expected)
        for spoil in (file.unlink, lambda: file.write_text(""), lambda: file.write_bytes(b"\xff horse-battery")):
            spoil()
            accepted = proxy.stats.accepted
            proxy.reset()
            until(lambda accepted=accepted: proxy.stats.accepted > accepted)
            _add(broker)
            assert len(read(source, 5)) == 5
        assert served.progress.unauthorized == 0
        source.close()


def test_a_token_file_that_is_changed_only_when_the_server_has_refused_the_old_one(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """What was shown is compared with what the file says after the refusal: another one is tried at once."""
    file = tmp_path / "token"
    file.write_text(OLD)

    with serving(broker.url, APP, tokens=(OLD,)) as served:
        source = from_start(open_source(f"{served.url}?token_file={file}", APP))
        read(source, len(broker.records()))
        port = served.port
        served.stop()
        with socket.create_server(("127.0.0.1", port)) as refusing:
            client, _ = refusing.accept()
            assert OLD.encode() in client.recv(10_000)
            file.write_text(NEW)
            client.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
            client.close()
        with serving(broker.url, APP, tokens=(NEW,), port=port) as changed:
            _add(broker)
            assert len(read(source, 5)) == 5
            assert changed.progress.unauthorized == 0
            source.close()


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
        assert not served.progress.reading
        client.close()
