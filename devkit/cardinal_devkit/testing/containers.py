"""Kafka broker in a Docker container, an alternative to a child process.

Needs the library ``testcontainers``. The container keeps its port on this machine when it is killed and restarted, like
an embedded broker.
"""

from __future__ import annotations

import gc
import importlib
import socket
import time
import warnings
from typing import Any, Final, Self

from cardinal.errors import ConfigurationError
from cardinal_devkit.errors import EmbeddedBrokerError

IMAGE: Final = "confluentinc/cp-kafka:8.0.0"
_PORT: Final = 9093
_START_SECONDS: Final = 120
_POLL_SECONDS: Final = 0.05
_ENVIRONMENT: Final = {
    # One node: what Kafka keeps three times by itself could never be written.
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    # As an embedded broker has it.
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    "KAFKA_MESSAGE_MAX_BYTES": "8388608",
    "KAFKA_REPLICA_FETCH_MAX_BYTES": "8388608",
}
_HOMES: Final = ("testcontainers.community.kafka", "testcontainers.kafka")


def why_not() -> str | None:
    """The reason why no broker can run in a container here; None where one can."""
    try:
        docker = importlib.import_module("docker")
    except ImportError:
        return "testcontainers is not installed"
    reason = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # docker leaves the socket open that it could not connect
        try:
            client = docker.from_env()
            try:
                client.ping()
            finally:
                client.close()
        except docker.errors.DockerException:
            reason = "no Docker engine answers"
        gc.collect()  # with warnings suppressed
    return reason


class ContainerKafka:
    """A broker like :class:`~cardinal_devkit.kafka.EmbeddedKafka`, in a container.

    Arguments:
        image: Confluent's Kafka, 7.0.0 or newer.

    Raises:
        ConfigurationError: no engine or no testcontainers.

    """

    def __init__(self, image: str = IMAGE) -> None:
        if reason := why_not():
            raise ConfigurationError(f"a broker cannot run in a container: {reason}", setting="image")
        from cardinal_devkit.kafka import free_port  # noqa: PLC0415 - a base install has no embedded broker

        self._port = free_port()
        self._container: Any = _container_class()(image, port=_PORT).with_kraft().with_bind_ports(_PORT, self._port)
        for name, value in _ENVIRONMENT.items():
            self._container.with_env(name, value)
        self._made = False

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients.

        Raises:
            EmbeddedBrokerError: it was not started yet.

        """
        if not self._made:  # the way to a container may lead by its own address
            raise EmbeddedBrokerError("the broker has no address before its first start: call start()")
        return f"{self._container.get_container_host_ip()}:{self._port}"

    def client_config(self) -> dict[str, str]:
        """Settings of a confluent-kafka client."""
        return {"bootstrap.servers": self.bootstrap}

    def start(self) -> Self:
        """Start it, with the same data and address as before.

        Raises:
            EmbeddedBrokerError: it does not serve clients after two minutes.

        """
        if not self._made:
            self._container.start(timeout=_START_SECONDS)
            self._made = True
        else:
            self._container.get_wrapped_container().start()
        self._wait()
        return self

    def stop(self) -> None:
        """End it and its data."""
        if self._made:
            self._made = False
            self._container.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self._container.get_wrapped_container().kill()

    def pause(self) -> None:
        """Pause it: connections stay open without responses."""
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        """Resume after :meth:`pause`."""
        self._container.get_wrapped_container().unpause()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait(self) -> None:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - loaded when a broker is requested
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - the same

        deadline = time.monotonic() + _START_SECONDS
        while not _listens(self._container.get_container_host_ip(), self._port):
            _check(deadline)
        admin = AdminClient({**self.client_config(), "log_level": 0})
        while True:
            try:
                if admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                pass
            _check(deadline)


def _container_class() -> Any:  # noqa: ANN401 - testcontainers has no stubs
    for home in _HOMES:
        try:
            return importlib.import_module(home).KafkaContainer
        except ImportError:
            continue
    raise ConfigurationError("a broker cannot run in a container: testcontainers is not installed", setting="image")


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 0.2).close()
    except OSError:
        return False
    return True


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise EmbeddedBrokerError(f"the container's broker does not serve clients after {_START_SECONDS} s")
    time.sleep(_POLL_SECONDS)
