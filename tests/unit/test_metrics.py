"""What a command says of itself over HTTP."""

from __future__ import annotations

import socket
from contextlib import closing
from http.client import HTTPConnection

import pytest
from prometheus_client import Gauge

from cardinal.errors import ConfigurationError
from cardinal.metrics import Endpoint, new_registry
from cardinal_spark.metrics import LakeMetrics
from cardinal_spark.pipeline import BatchStatus

READING = {
    "number": 41,
    "lag_records": 7,
    "connected": True,
    "waits_for": ["block 42 (0xab) lacks 2 messages"],
    "withheld": 3,
    "reports": {"Incomplete": 2},
}


def asked(endpoint: Endpoint, path: str) -> tuple[int, str]:
    connection = HTTPConnection(endpoint.address, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_process_says_whether_it_lives_whether_it_works_and_how_much() -> None:
    registry, waits = new_registry(), [""]
    Gauge("blocks_here", "How many.", registry=registry).set(5)
    with closing(Endpoint("127.0.0.1:0", registry, lambda: waits[0])) as endpoint:
        status, text = asked(endpoint, "/metrics")
        assert status == 200
        assert "blocks_here 5.0" in text
        assert "process_resident_memory_bytes" in text
        assert asked(endpoint, "/healthz") == asked(endpoint, "/readyz") == (200, "ok\n")
        waits[0] = "the broker does not answer"
        assert asked(endpoint, "/readyz") == (503, "the broker does not answer\n")
        assert asked(endpoint, "/healthz") == (200, "ok\n")
        with socket.create_connection(endpoint.address.rsplit(":", 1)):  # it says nothing, and holds nobody up
            assert asked(endpoint, "/healthz") == (200, "ok\n")
        assert asked(endpoint, "/") == (404, "there are /metrics, /healthz and /readyz\n")
        with pytest.raises(ConfigurationError, match=f"cannot be served at {endpoint.address}: .*in use"):
            Endpoint(endpoint.address, registry, str)


@pytest.mark.parametrize("address", ["9090", ":9090", "localhost:", "localhost:99999", "localhost:http"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="--metrics takes host:port"):
        Endpoint(address, new_registry(), str)


def test_a_lake_says_where_it_stands_and_what_it_waits_for() -> None:
    numbers = LakeMetrics()
    value = numbers.registry.get_sample_value
    assert numbers.waits_for() == "the query has not read anything yet"
    numbers.progress({"sources": [{"latestOffset": None}]})
    assert numbers.waits_for() == "the query has not read anything yet"
    numbers.set_head(39, 43)
    assert value("cardinal_lake_head") == 39
    numbers.batch(BatchStatus(0, 40, 0.7, 44, 40, "0xaa"))
    numbers.batch(BatchStatus(1, 2, 0.3, 46, 40, "0xab"))
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
