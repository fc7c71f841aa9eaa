"""Links that take longer for what is on its way than a ping may take on a quiet one."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from cardinal.protocols.streams.types import Routed
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.testing.proxy import Link, TcpProxy
from cardinal.transports import open_source
from cardinal.transports.websocket.protocol import SUBPROTOCOL, decode_frame
from scripted_server import begin, grant
from serving import DEADLINE, from_start, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = ChainGenerator().application
PING_SECONDS = 0.4


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def _fill(broker: MemoryBroker, count: int, size: int) -> None:
    sink = broker.sink(APP, producer_id="a")
    block = [Routed(APP.default_topic, b"\x03" + index.to_bytes(32, "big"), bytes(size)) for index in range(count)]
    sink.send(block, None).result(DEADLINE)
    sink.close()


@pytest.mark.parametrize(("count", "size"), [(1, 3_000_000), (2_500, 1_000)])
def test_a_client_behind_a_slow_link_is_sent_everything_on_one_connection(
    broker: MemoryBroker, count: int, size: int
) -> None:
    _fill(broker, count, size)
    with (
        serving(broker.url, APP, ping_interval=PING_SECONDS, compression="none") as served,
        TcpProxy(f"127.0.0.1:{served.port}") as proxy,
    ):
        # Five times as long as either side waits for a sign of life, which a busy machine may keep back for a moment.
        proxy.impair(Link(), Link(bytes_per_second=750_000))
        source = from_start(open_source(f"ws://{proxy.address}?ping.interval.ms={PING_SECONDS * 1000:.0f}", APP))
        assert sorted(read(source, len(broker.records()))) == broker.records()
        assert proxy.stats.accepted == 1
        source.close()


def test_a_large_frame_comes_in_fragments_between_which_pings_get_through(broker: MemoryBroker) -> None:
    _fill(broker, 1, 1_000_000)
    with (
        serving(broker.url, APP, compression="none") as served,
        connect(served.url, subprotocols=[Subprotocol(SUBPROTOCOL)], proxy=None) as socket,
    ):
        begin(socket, APP.default_topic, 0)
        grant(socket, 10_000_000)
        size = 0
        while size < 1_000_000:
            fragments = list(socket.recv_streaming())
            assert max(map(len, fragments)) <= 64 << 10
            _, chunks = decode_frame(b"".join(part for part in fragments if isinstance(part, bytes)))
            size += sum(len(chunk.content) for chunk in chunks)


def test_a_client_that_takes_nothing_holds_nothing_up_when_the_server_stops(broker: MemoryBroker) -> None:
    _fill(broker, 1_500, 10_000)
    with (
        serving(broker.url, APP, compression="none") as served,
        connect(
            served.url,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            proxy=None,
            max_queue=1,
            close_timeout=0.1,
        ) as socket,
    ):
        begin(socket, APP.default_topic, 0)
        grant(socket, 100_000_000)
        until(lambda: served.status.unsent_bytes)
        served.stop()
        until(lambda: not [one for one in threading.enumerate() if one.name.startswith("cardinal-serve")])
        assert served.status.clients == 0
