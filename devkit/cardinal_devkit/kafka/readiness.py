"""Readiness of a broker: a client gets metadata with it, and its internal topics exist.

Without the internal topics the first consumer group would wait 3.2 s and the first transaction 1.0 s for Kafka to
create them (seen with 4.3.1).
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cardinal.errors import PortInUseError
from cardinal_devkit.errors import EmbeddedBrokerError

from .state import HOST, BrokerState

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from .properties import Membership

_POLL_SECONDS = 0.02
_INTERNAL = {"__consumer_offsets": "producer", "__transaction_state": "uncompressed"}
"""Kafka's internal topics with their compression."""


def wait_until_ready(
    state: BrokerState, membership: Membership, process: subprocess.Popen[bytes], log: Path, deadline: float
) -> None:
    """Return when the broker serves clients.

    Arguments:
        state: its ports.
        membership: its node in the cluster; internal topics need all brokers of the cluster.
        process: its process.
        log: its log.
        deadline: monotonic time in seconds.

    Raises:
        PortInUseError: it stopped because another process listens on its port.
        EmbeddedBrokerError: it stopped, or the deadline passed.

    """
    while not _listens(state.port):  # first the bare port: cheap, and librdkafka has nothing to back off from
        _check(state, process, log, deadline)
    admin = AdminClient(
        {
            "bootstrap.servers": state.internal,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )
    while True:
        with suppress(KafkaException):
            metadata = admin.list_topics(timeout=1)
            if membership.node in metadata.brokers:
                break
        _check(state, process, log, deadline)
    missing = [name for name in _INTERNAL if name not in metadata.topics]
    while missing:
        missing = _create(admin, missing, min(membership.brokers, 3))
        _check(state, process, log, deadline)


def _create(admin: AdminClient, names: list[str], copies: int) -> list[str]:
    """Create internal topics; returns those that could not be created yet."""
    topics = [
        NewTopic(name, 4, copies, config={"cleanup.policy": "compact", "compression.type": _INTERNAL[name]})
        for name in names
    ]
    failed = []
    for name, future in admin.create_topics(topics, operation_timeout=5).items():
        try:
            future.result(10)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                failed.append(name)
    return failed


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 0.2).close()
    except OSError:
        return False
    return True


def _check(state: BrokerState, process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    """Raise if the broker has stopped or the deadline passed; else wait briefly."""
    status = process.poll()
    if status is not None:
        if "Address already in use" in _tail(log):
            raise PortInUseError(
                f"port {state.port} is in use by another process: stop it, or take another port", port=state.port
            )
        raise EmbeddedBrokerError(f"Kafka stopped while it was starting (exit status {status}): see {log}")
    if time.monotonic() > deadline:
        raise EmbeddedBrokerError(f"Kafka was not ready in time: see {log}")
    time.sleep(_POLL_SECONDS)


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        return file.read().decode(errors="replace")
