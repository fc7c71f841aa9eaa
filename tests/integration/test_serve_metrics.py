"""What a server says of itself over plain HTTP."""

from __future__ import annotations

import http.client
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from cardinal.protocols.streams.types import Routed
from cardinal.server.serve import ServeProgress
from cardinal.server.serving.metrics import exposition
from cardinal.server.serving.taking import Taking
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.transports import open_sink, open_source
from cardinal.transports.websocket.frames import SUBPROTOCOL, MarkList, Open, Read
from cardinal.transports.websocket.wire import decode_answer, encode_request
from compose import services
from serving import DEADLINE, from_start, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.embedded import EmbeddedKafka

APP = ChainGenerator().application
TOKEN = "correct-horse-battery"  # noqa: S105 - made up


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def ask(port: int, path: str, token: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def metrics(port: int) -> dict[str, int]:
    status, text = ask(port, "/metrics")
    assert status == 200
    pairs = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("cardinal_serve_"): int(value) for name, value in pairs}


def _send(broker: MemoryBroker, count: int, size: int = 100) -> None:
    sink = broker.sink(APP, producer_id="a")
    sink.send([Routed(APP.default_topic, b"\x03" + n.to_bytes(32, "big"), bytes(size)) for n in range(count)], None)
    sink.close()


def test_clients_bytes_and_records_are_counted(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served:
        until(lambda: metrics(served.port)["up"] == 1)
        before = metrics(served.port)
        assert before["clients"] == before["sent_bytes_total"] == 0
        source = from_start(open_source(served.url, APP))
        _send(broker, 50)
        count = len(read(source, len(broker.records())))
        until(lambda: metrics(served.port)["lag_records_max"] == 0)
        now = metrics(served.port)
        assert (now["clients"], now["clients_catching_up"]) == (1, 0)
        assert now["read_records_total"] == 50
        assert now["sent_bytes_total"] > 50 * 100
        assert now["sent_frames_total"] >= 1
        assert now["ring_bytes"] > 50 * 100
        assert count > 50
        source.close()
        until(lambda: metrics(served.port)["clients"] == 0)


def test_a_client_that_takes_nothing_is_seen_to_fall_behind_and_counted_when_it_is_closed(
    broker: MemoryBroker,
) -> None:
    with serving(broker.url, APP, ring_bytes=5_000, slow_seconds=0.3) as served:
        with connect(served.url, subprotocols=[Subprotocol(SUBPROTOCOL)], proxy=None) as client:
            client.send(encode_request(Open(1, (APP.default_topic,))))
            marks = decode_answer(client.recv(DEADLINE))
            assert isinstance(marks, MarkList)
            client.send(encode_request(Read(2, {where: high for where, (_, high) in marks.marks.items()})))
            client.recv(DEADLINE)
            _send(broker, 100, 1_000)
            until(lambda: metrics(served.port)["lag_records_max"] == 100)
            now = metrics(served.port)
            assert (now["clients"], now["clients_without_credit"]) == (1, 1)
            assert now["unsent_bytes"] == 0  # nothing is kept for it
            with pytest.raises(ConnectionClosed):
                client.recv(DEADLINE)
        until(lambda: metrics(served.port)["slow_clients_closed_total"] == 1)
        assert metrics(served.port)["clients"] == 0


def test_metrics_want_the_token_and_health_does_not(broker: MemoryBroker) -> None:
    with serving(broker.url, APP, tokens=(TOKEN,)) as served:
        until(lambda: ask(served.port, "/health") == (200, "serves\n"))
        assert ask(served.port, "/metrics")[0] == 401
        assert ask(served.port, "/metrics", "wrong")[0] == 401
        status, text = ask(served.port, "/metrics", TOKEN)
        assert status == 200
        assert "cardinal_serve_unauthorized_total 2\n" in text
        assert TOKEN not in text


def test_who_asks_for_health_costs_nothing_that_grows_with_the_clients(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody may ask, as often as they like: no client is looked at for the answer."""
    looked: list[Taking] = []
    monkeypatch.setattr(Taking, "lag", lambda taking: looked.append(taking) or 0)
    with serving(broker.url, APP) as served:
        source = from_start(open_source(served.url, APP))
        until(lambda: ask(served.port, "/health")[0] == 200)
        assert not looked
        assert metrics(served.port)["clients"] == len(looked) == 1
        source.close()


def test_the_question_of_the_compose_file_is_answered_by_its_exit_status() -> None:
    program, option, text = services()["serve"]["healthcheck"]["test"][1:]
    assert (program, option) == ("python", "-c")

    def asked(port: int) -> int:
        return subprocess.run(
            [sys.executable, "-c", text.replace("8765", str(port))], capture_output=True, check=False, timeout=DEADLINE
        ).returncode

    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker, serving(broker.url, APP) as served:
        assert asked(served.port) != 0
        broker.sink(APP, producer_id="a").close()
        until(lambda: asked(served.port) == 0)


def test_a_server_that_waits_for_its_stream_says_that_it_is_not_well() -> None:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker, serving(broker.url, APP) as served:
        assert ask(served.port, "/health")[0] == 503
        assert metrics(served.port)["up"] == 0
        broker.sink(APP, producer_id="a").close()
        until(lambda: ask(served.port, "/health")[0] == 200)


@pytest.mark.slow
@pytest.mark.broker
def test_a_server_whose_broker_is_killed_is_not_well_until_it_is_back(
    cardinal_killable_broker: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"kafka://{cardinal_killable_broker.bootstrap}"
    open_sink(url, APP, producer_id="a").close()
    with serving(url, APP) as served:
        until(lambda: ask(served.port, "/health")[0] == 200)
        cardinal_killable_broker.kill()
        until(lambda: ask(served.port, "/health")[0] == 503, 2 * DEADLINE)
        assert metrics(served.port)["up"] == 0
        cardinal_killable_broker.start()
        until(lambda: ask(served.port, "/health")[0] == 200, 2 * DEADLINE)
    said = [record for record in caplog.records if "cannot be read now" in record.getMessage()]
    assert len(said) == 1  # once, however long it takes


def test_another_path_is_no_page_of_ours(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served:
        assert ask(served.port, "/nothing")[0] in (400, 404, 426)


def test_every_number_has_its_help_and_type() -> None:
    text = exposition(ServeProgress(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, reading=True))
    lines = text.splitlines()
    assert text.endswith("\n")
    for about, kind, value in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name = value.split()[0]
        assert about.startswith(f"# HELP {name} ")
        assert kind == f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
    assert [int(line.split()[1]) for line in lines[2::3]] == [*range(1, 14), 1]
