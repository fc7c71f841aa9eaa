"""Container settings of a broker. Without an engine, only the reason is tested."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import ConfigurationError
from cardinal_devkit.errors import EmbeddedBrokerError
from cardinal_devkit.testing.containers import ContainerKafka, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Engine(BaseHTTPRequestHandler):
    """The part of the client that is used before a container is made."""

    def do_GET(self) -> None:
        answers = {"_ping": "OK", "version": {"ApiVersion": "1.45"}, "networks": []}
        body = json.dumps(answers[self.path.partition("?")[0].rpartition("/")[2]]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with HTTPServer(("127.0.0.1", 0), Engine) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        serving.join()


@pytest.mark.usefixtures("engine")
def test_the_container_has_one_port_that_stays_and_settings_that_one_node_can_keep() -> None:
    assert why_not() is None
    broker = ContainerKafka()
    container = broker._container
    container.configure()
    assert {int(inside): outside for inside, outside in container.ports.items()} == {9093: broker._port}
    environment = container.env
    assert environment["KAFKA_PROCESS_ROLES"] == "broker,controller"
    assert environment["KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR"] == "1"
    assert environment["KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR"] == "1"
    assert environment["KAFKA_MESSAGE_MAX_BYTES"] == "8388608"
    with pytest.raises(EmbeddedBrokerError, match=r"call start\(\)"):
        broker.client_config()
    container.get_docker_client().client.close()


def test_a_missing_engine_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(ConfigurationError, match="no Docker engine answers"):
        ContainerKafka()
