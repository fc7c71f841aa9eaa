"""When a broker counts as started: a client gets metadata that names it, and its internal topics are there.

Without the internal topics the first consumer group would wait 3.2 s and the first transaction 1.0 s for Kafka to make
them (facts, kafka.md, Start).
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cardinal.errors import EmbeddedBrokerError, PortInUseError

from .settings import HOST, Settings

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from .properties import Place

_POLL_SECONDS = 0.02
_INTERNAL = {"__consumer_offsets": "producer", "__transaction_state": "uncompressed"}
"""Kafka's own topics and the compression that it makes them with."""


def wait_until_ready(
    settings: Settings, place: Place, process: subprocess.Popen[bytes], log: Path, deadline: float
) -> None:
    """Return when the broker serves clients.

    Arguments:
        settings: where it listens.
        place: its place in its cluster; a cluster's internal topics wait until all of its brokers are there.
        process: its process.
        log: its log.
        deadline: the monotonic time in seconds at which it is given up.

    Raises:
        PortInUseError: it stopped because somebody else has its port.
        EmbeddedBrokerError: it stopped, or the deadline passed.

    """
    while not _listens(settings.port):  # first the bare port: cheap, and librdkafka has nothing to back off from
        _check(settings, process, log, deadline)
    admin = AdminClient(
        {
            "bootstrap.servers": settings.internal,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )
    while True:
        with suppress(KafkaException):
            metadata = admin.list_topics(timeout=1)
            if place.node in metadata.brokers:
                break
        _check(settings, process, log, deadline)
    missing = [name for name in _INTERNAL if name not in metadata.topics]
    while missing:
        missing = _create(admin, missing, min(place.brokers, 3))
        _check(settings, process, log, deadline)


def _create(admin: AdminClient, names: list[str], copies: int) -> list[str]:
    """Make these internal topics; returns those that could not be made yet."""
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


def _check(settings: Settings, process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    """Raise where waiting on makes no sense; else wait a moment."""
    status = process.poll()
    if status is not None:
        if "Address already in use" in _tail(log):
            raise PortInUseError(
                f"port {settings.port} is in use by another process: stop it, or take another port", port=settings.port
            )
        raise EmbeddedBrokerError(f"Kafka stopped while it was starting (exit status {status}): see {log}")
    if time.monotonic() > deadline:
        raise EmbeddedBrokerError(f"Kafka was not ready in time: see {log}")
    time.sleep(_POLL_SECONDS)


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        return file.read().decode(errors="replace")
