"""permessage-deflate: less on the wire, the same records, and a switch for it on either side."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from cardinal.protocols.streams.types import Routed
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.testing.proxy import TcpProxy
from cardinal.transports import open_source
from serving import from_start, read, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams import Record

APP = ChainGenerator().application


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        sink = broker.sink(APP, producer_id="a")
        sink.send(
            [Routed(APP.default_topic, b"\x03" + n.to_bytes(32, "big"), b"block %d " % n * 50) for n in range(300)],
            None,
        )
        sink.close()
        yield broker


def _read(port: int, options: str, count: int) -> tuple[list[Record], int]:
    """All records, and the bytes on the wire."""
    with TcpProxy(f"127.0.0.1:{port}") as proxy:
        source = from_start(open_source(f"ws://{proxy.address}{options}", APP))
        records = sorted(read(source, count))
        source.close()
        return records, proxy.stats.down


def test_who_asks_for_it_is_sent_less_and_gets_the_same(broker: MemoryBroker) -> None:
    expected = broker.records()
    size = sum(len(record.key) + len(record.value) for record in expected)
    with serving(broker.url, APP) as served:
        plain, much = _read(served.port, "", len(expected))
        packed, little = _read(served.port, "?compression=deflate", len(expected))
    assert plain == packed == expected
    assert much > size > 4 * little


def test_a_server_that_is_told_not_to_does_not(broker: MemoryBroker) -> None:
    expected = broker.records()
    with serving(broker.url, APP, compression="none") as served:
        records, much = _read(served.port, "?compression=deflate", len(expected))
    assert records == expected
    assert much > sum(len(record.value) for record in expected)
