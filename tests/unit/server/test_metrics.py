"""Metrics endpoint of a command."""

from __future__ import annotations

import logging
import socket
import struct
from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest
from prometheus_client import Gauge

from cardinal.errors import ConfigurationError
from cardinal.metrics import Collector, Endpoint, new_registry
from cardinal_spark.metrics import LakeMetrics
from cardinal_spark.pipeline import BatchStatus
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardinal.metrics import Metric

READING = {
    "number": 41,
    "lag_records": 7,
    "connected": True,
    "waits_for": ["block 42 (0xab) lacks 2 messages"],
    "withheld": 3,
    "reports": {"Incomplete": 2},
}


def page_of(endpoint: Endpoint, path: str) -> tuple[int, str]:
    connection = HTTPConnection(endpoint.address, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_process_reports_liveness_readiness_and_metrics() -> None:
    registry, waits = new_registry(), [""]
    Gauge("blocks_here", "How many.", registry=registry).set(5)
    with closing(Endpoint("127.0.0.1:0", registry, lambda: waits[0])) as endpoint:
        status, text = page_of(endpoint, "/metrics")
        assert status == 200
        assert "blocks_here 5.0" in text
        assert "process_resident_memory_bytes" in text
        assert page_of(endpoint, "/healthz") == page_of(endpoint, "/readyz") == (200, "ok\n")
        waits[0] = "the broker does not answer"
        assert page_of(endpoint, "/readyz") == (503, "the broker does not answer\n")
        assert page_of(endpoint, "/healthz") == (200, "ok\n")
        with socket.create_connection(endpoint.address.rsplit(":", 1)):  # it says nothing, and holds nobody up
            assert page_of(endpoint, "/healthz") == (200, "ok\n")
        assert page_of(endpoint, "/") == (404, "there are /metrics, /healthz and /readyz\n")
        with pytest.raises(ConfigurationError, match=f"cannot be served at {endpoint.address}: .*in use"):
            Endpoint(endpoint.address, registry, str)


def test_a_disconnecting_client_is_logged_at_debug_level(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "cardinal.metrics")
    with closing(Endpoint("127.0.0.1:0", new_registry(), str)) as endpoint:
        host, port = endpoint.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing it resets it
            client.send(b"GE")
        until(lambda: caplog.records)
        assert page_of(endpoint, "/healthz") == (200, "ok\n")
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "Exception occurred during processing" not in capfd.readouterr().err


class Broken(Collector):
    """Its metrics cannot be collected."""

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        raise TimeoutError("the service does not answer")


def test_metrics_that_cannot_be_collected_are_an_error_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    registry = new_registry()
    registry.register(Broken())
    with closing(Endpoint("127.0.0.1:0", registry, str)) as endpoint:
        assert page_of(endpoint, "/metrics") == (500, "the metrics cannot be collected: see the log\n")
    assert [record.getMessage() for record in caplog.records] == ["the metrics cannot be collected"]


@pytest.mark.parametrize("address", ["9090", ":9090", "localhost:", "localhost:99999", "localhost:http"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="--metrics takes host:port"):
        Endpoint(address, new_registry(), str)


def test_a_lake_reports_its_position_and_what_it_waits_for() -> None:
    numbers = LakeMetrics()
    value = numbers.registry.get_sample_value
    assert numbers.waits_for() == "the query has not read anything yet"
    numbers.progress({"sources": [{"latestOffset": None}]})
    assert numbers.waits_for() == "the query has not read anything yet"
    numbers.set_head(39, 43)
    assert value("cardinal_lake_head") == 39
    numbers.batch(BatchStatus(0, 40, 0.7, 44, 40, "0xaa"))
    numbers.batch(BatchStatus(1, 2, 0.3, 46, 40, "0xab", 2))
    assert value("cardinal_lake_unfit_blocks_total") == 2
    numbers.progress({"sources": [{"latestOffset": READING}]})
    assert {name: value(f"cardinal_lake_{name}") for name in ("head", "seq", "blocks_total", "batch_seconds_sum")} == {
        "head": 40,
        "seq": 46,
        "blocks_total": 42,
        "batch_seconds_sum": 1.0,
    }
    names = ("read_head", "lag_records", "connected", "awaited_blocks", "withheld_blocks")
    assert [value(f"cardinal_lake_{name}") for name in names] == [41, 7, 1, 1, 3]
    assert value("cardinal_lake_reports", {"kind": "Incomplete"}) == 2
    assert numbers.waits_for() == "block 42 (0xab) lacks 2 messages"
    numbers.progress({"sources": [{"latestOffset": {**READING, "waits_for": [], "connected": False}}]})
    assert numbers.waits_for() == "the stream's server does not answer"
    numbers.progress({"sources": [{"latestOffset": {**READING, "waits_for": []}}]})
    assert not numbers.waits_for()
