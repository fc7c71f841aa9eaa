"""Reader of a server: how it ends, and what it polls at once."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from cardinal.consuming import watermarks
from cardinal.errors import CardinalError, ConfigurationError, RemoteProtocolError, TransportError
from cardinal.transports.base import OpenTransaction
from cardinal_devkit import ChainGenerator, MemoryBroker
from cardinal_devkit.testing._memory_source import MemorySource
from cardinal_relay.server import upstream as upstreams
from cardinal_relay.server.upstream import POLL_BYTES, Upstream
from waiting import until_async

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams.types import Partition, Record

APP = ChainGenerator().application
TOPICS = (APP.default_topic,)
DEADLINE = 60.0


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


class Failing(MemorySource):
    """Has nothing to give but an error."""

    def __init__(self, broker: MemoryBroker, error: Exception) -> None:
        super().__init__(broker, TOPICS)
        self._error = error

    def poll(self, _limit: int, _timeout: float) -> list[Record]:
        raise self._error


@pytest.mark.parametrize(
    ("error", "mapped"),
    [
        (RemoteProtocolError("a server that does not know the protocol"), RemoteProtocolError),
        (ConfigurationError("two members have the same numbers"), ConfigurationError),
        (KeyError("of ours"), TransportError),
    ],
)
def test_whatever_ends_the_reading_is_the_upstreams_error(
    broker: MemoryBroker, error: Exception, mapped: type[CardinalError]
) -> None:
    async def run() -> Upstream:
        upstream = Upstream(TOPICS, lambda _: Failing(broker, error), ring_bytes=1)
        await upstream.open()
        try:
            await until_async(lambda: upstream.error is not None)
        finally:
            await asyncio.wrap_future(upstream.close())
        return upstream

    upstream = asyncio.run(run())
    assert isinstance(upstream.error, mapped)
    assert upstream.waits_for == str(upstream.error)


class Weighing(MemorySource):
    """Knows the bytes of its largest poll."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, TOPICS)
        self.most = 0

    def poll(self, limit: int, timeout: float) -> list[Record]:
        records = super().poll(limit, timeout)
        self.most = max(self.most, sum(len(record.value) for record in records))
        return records


@pytest.mark.parametrize(("count", "size"), [(40, 1 << 20), (3, 6 << 20), (20_000, 100)])
def test_a_poll_is_bounded_by_the_size_of_records_from_the_first_one_on(
    broker: MemoryBroker, count: int, size: int
) -> None:
    """How large they are is not known before the first has come; small ones are soon read by the thousand."""
    value = bytes(size)
    with broker._changed:
        for _ in range(count):
            broker._append(APP.default_topic, 0, b"k", value, ())

    async def run() -> list[Weighing]:
        made: list[Weighing] = []

        def make(_: tuple[str, ...]) -> Weighing:
            made.append(Weighing(broker))
            return made[-1]

        upstream = Upstream(TOPICS, make, ring_bytes=1, from_start=True)
        await upstream.open()
        try:
            await until_async(lambda: upstream.records >= count)
        finally:
            await asyncio.wrap_future(upstream.close())
        return made

    (source,) = asyncio.run(run())
    assert source.most <= POLL_BYTES + 2 * size
    assert source.most > POLL_BYTES // 8


class Hiding(MemorySource):
    """Has a record behind an open transaction, as long as the test says so."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, TOPICS)
        self.hides = True

    def uncommitted_ends(self) -> dict[Partition, int]:
        return {tp: high + self.hides for tp, (_, high) in self.watermarks().items()}

    def open_transactions(self) -> list[OpenTransaction]:
        return [OpenTransaction(*tp, end - 1, 1) for tp, end in self.uncommitted_ends().items()] if self.hides else []


def test_a_transaction_that_hides_records_from_all_clients_is_named_until_it_ends(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstreams, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watermarks, "_TRANSACTION_SECONDS", 0.0)
    source = Hiding(broker)

    async def run() -> str:
        upstream = Upstream(TOPICS, lambda _: source, ring_bytes=1)
        await upstream.open()
        try:
            await until_async(lambda: "behind an open transaction" in upstream.waits_for)
            waits = upstream.waits_for
            source.hides = False
            await until_async(lambda: not upstream.waits_for)
        finally:
            await asyncio.wrap_future(upstream.close())
        return waits

    assert f"1 record of {APP.default_topic}:0 from offset " in asyncio.run(run())
