"""Sharing inside a server: slots of catch-up reads, and reorg channels that several clients read."""

from __future__ import annotations

import socket
import threading
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from websockets.sync.client import connect

from cardinal.errors import TopicError
from cardinal.protocols.streams.types import Routed
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.transports import open_source
from cardinal.transports.websocket.protocol import SUBPROTOCOL
from scripted_server import begin, grant
from serving import DEADLINE, from_start, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cardinal.protocols.streams import Record
    from cardinal.protocols.streams.types import Partition

APP = ChainGenerator().application
CHANNEL = f"{APP.default_topic}-re-ab"


class Broker(MemoryBroker):
    """A broker in memory, one of whose topics may be deleted for a while."""

    deleted = ""

    def read(self, positions: Mapping[Partition, int], limit: int, timeout: float) -> list[Record]:
        if any(topic == self.deleted for topic, _ in positions):
            raise TopicError(f"the topic {self.deleted} is gone", topic=self.deleted)
        return super().read(positions, limit, timeout)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(uuid.uuid4().hex, partitions=1) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system buffers all of it for the slow one")
def test_a_catch_up_read_of_a_slow_client_that_has_credit_ends_while_others_wait(broker: Broker) -> None:
    sink = broker.sink(APP, producer_id="a")
    sink.send([Routed(APP.default_topic, b"\x03%032d" % n, bytes(10_000)) for n in range(2_000)], None).result(DEADLINE)
    with ExitStack() as stack:
        served = stack.enter_context(serving(broker.url, APP, buffer_bytes=50_000, catch_up_max=1, compression="none"))
        plain = stack.enter_context(socket.socket())
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        plain.connect(("127.0.0.1", served.port))
        slow = stack.enter_context(
            connect(
                served.url,
                sock=plain,
                subprotocols=[SUBPROTOCOL],
                compression=None,
                proxy=None,
                max_queue=1,
                close_timeout=0.1,
            )
        )
        begin(slow, APP.default_topic, 0)
        grant(slow, 2**32 - 1)
        until(lambda: served.status.unsent_bytes and served.status.catch_up_clients)
        other = from_start(open_source(served.url, APP, topics=[APP.default_topic]))
        stack.callback(other.close)
        total = len(broker.records(APP.default_topic))
        assert len(read(other, total)) == total
        assert served.status.slow_clients_closed_total == 0
        assert served.status.sent_records_total < 2 * total, "the slow one has everything too"
        plain.shutdown(socket.SHUT_RDWR)
    sink.close()


def test_a_client_that_leaves_a_deleted_channel_leaves_the_recreated_one_to_the_others(broker: Broker) -> None:
    sink = broker.sink(APP, producer_id="a")
    sink.open_channel(CHANNEL)
    sink.close()
    with serving(broker.url, APP) as served, ExitStack() as stack:
        old, new, late = (
            stack.enter_context(connect(served.url, subprotocols=[SUBPROTOCOL], proxy=None)) for _ in range(3)
        )
        begin(old, CHANNEL, 0)
        broker.deleted = CHANNEL
        assert "topic" in str(old.recv(DEADLINE)).lower()
        broker.deleted = ""
        begin(new, CHANNEL, 0)
        old.close()
        until(lambda: served.status.clients == 2 and _readers() == 2)  # of the application's topics, and of the channel
        begin(late, CHANNEL, 0)
        assert _readers() == 2, "the channel is read twice"


def _readers() -> int:
    return sum(thread.name == "cardinal-serve-read" for thread in threading.enumerate())
