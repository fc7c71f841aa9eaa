"""Metrics and readiness of `cardinal serve`."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from cardinal.metrics import Endpoint, new_registry
from cardinal.protocols.streams.types import Routed
from cardinal.transports import open_source
from cardinal_devkit import MemoryBroker
from cardinal_relay.server.status import StatusCollector
from compose import services
from scripted_server import begin, join
from serving import APP, DEADLINE, Served, fill, from_start, metrics, page, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def scraped(served: Served) -> Endpoint:
    registry = new_registry()
    registry.register(StatusCollector(lambda: served.status))
    return Endpoint("127.0.0.1:0", registry, lambda: served.service.waits_for)


def _seal(broker: MemoryBroker) -> None:
    sink = broker.sink(APP, producer_id="a")
    sink.send([], Routed(APP.default_topic, b"\x00" + bytes(32), b"")).result(DEADLINE)
    sink.close()


def test_a_client_that_lags_is_seen_in_records_and_seconds(broker: MemoryBroker) -> None:
    with serving(broker.url, APP, buffer_bytes=5_000, compression="none") as served:
        endpoint = scraped(served)
        before = metrics(endpoint.address)
        assert "head_age_seconds" not in before
        assert (before["clients"], before["sent_bytes_total"], before["upstream_connected"]) == (0, 0, 1)
        source = from_start(open_source(served.url, APP))
        with join(served.url) as client:
            begin(client, APP.default_topic, 1)
            fill(broker, 100, 1_000)
            until(lambda: metrics(endpoint.address)["read_records_total"] == 100)
            _seal(broker)
            read(source, len(broker.records()))
            until(lambda: metrics(endpoint.address)["lag_records"] == 101)
            now = metrics(endpoint.address)
            assert (now["clients"], now["clients_without_credit"], now["unsent_bytes"]) == (2, 1, 0)
            assert (now["read_records_total"], now["sent_records_total"]) == (101, len(broker.records()))
            assert now["sent_bytes_total"] > 100 * 1_000
            assert 0 < now["ring_bytes"] <= 5_000
            assert now["catch_ups_total"] >= 1
            assert 0 < now["head_age_seconds"] <= now["ring_oldest_record_age_seconds"] + 1 < 60
            until(lambda: metrics(endpoint.address)["lag_seconds"] > now["lag_seconds"] > 0)
        source.close()
        until(lambda: metrics(endpoint.address)["clients"] == 0)
        assert metrics(endpoint.address)["lag_records"] == 0
        endpoint.close()


def test_a_server_is_ready_when_its_stream_is_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cardinal.serve")
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker, serving(broker.url, APP) as served:
        endpoint = scraped(served)
        assert page(endpoint.address, "/readyz")[0] == 503
        until(lambda: "start a producer" in page(endpoint.address, "/readyz")[1])
        assert metrics(endpoint.address)["upstream_connected"] == 0
        broker.sink(APP, producer_id="a").close()
        until(lambda: page(endpoint.address, "/readyz") == (200, "ok\n"))
        endpoint.close()
    kinds = [getattr(record.args, "get", {}.get)("kind") for record in caplog.records]
    assert kinds == ["down", "up"], "that it waits, and that it is read"


@pytest.mark.process
def test_the_probe_of_the_compose_file_reports_readiness_by_its_exit_status() -> None:
    program, option, text = services()["serve"]["healthcheck"]["test"][1:]
    assert (program, option) == ("python", "-c")
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker, serving(broker.url, APP) as served:
        endpoint = scraped(served)
        command = [sys.executable, "-c", text.replace("127.0.0.1:9090", endpoint.address)]

        def fails() -> bool:
            return subprocess.run(command, capture_output=True, check=False, timeout=DEADLINE).returncode != 0

        assert fails()
        broker.sink(APP, producer_id="a").close()
        until(lambda: not fails())
        endpoint.close()
