"""What a broker's data folder remembers, and the configuration that Kafka reads.

Rules:

1. A data folder keeps its cluster id and its port from its first start on, so that clients find the same broker again.
2. Ports that we choose lie below the kernel's ephemeral range: a restart on the same port cannot lose it to an
   outgoing connection (facts, kafka.md, Semantics seen).
3. Every listener is on 127.0.0.1. This broker is for one machine.
"""

from __future__ import annotations

import base64
import json
import random
import socket
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cardinal.errors import EmbeddedBrokerError

from .folders import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOST = "127.0.0.1"
NODE_ID = 1
LOGS = "logs"
"""Kafka's own folder within the data folder."""
_FILE = "broker.json"
_PORTS = range(18000, 32000)
_LARGEST_MESSAGE = 8 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """What stays the same over restarts. ``cluster_id`` is 22 characters of URL-safe base64."""

    cluster_id: str
    port: int
    controller_port: int

    @property
    def bootstrap(self) -> str:
        """The address that clients connect to."""
        return f"{HOST}:{self.port}"


def load(data: Path) -> Settings | None:
    """What the data folder remembers; None where it never held a broker.

    Raises:
        EmbeddedBrokerError: the file cannot be read, or is not what :func:`save` wrote.

    """
    try:
        return Settings(**json.loads((data / _FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise EmbeddedBrokerError(f"{data / _FILE} cannot be read: restore it, or take another data folder") from error


def save(data: Path, settings: Settings) -> None:
    """Remember ``settings`` in the data folder."""
    write_atomically(data / _FILE, json.dumps(asdict(settings)) + "\n")


def new_cluster_id() -> str:
    """A fresh cluster id. Kafka's tools take one that begins with a hyphen for an option, so none does."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def free_port(*, beside: int | None = None) -> int:
    """A port of 127.0.0.1 that nobody listens on, other than ``beside``.

    Raises:
        EmbeddedBrokerError: there is none.

    """
    for port in random.sample(_PORTS, len(_PORTS)):
        if port != beside and is_free(port):
            return port
    raise EmbeddedBrokerError(f"no port between {_PORTS.start} and {_PORTS.stop - 1} is free: stop what listens there")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # As Java does: without it the connections of a broker that was just killed would keep its port for a minute.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    # macOS lets a second server bind beside one that listens on all addresses.
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) != 0


def properties(settings: Settings, extra: Mapping[str, str]) -> str:
    """Kafka's ``server.properties`` for one node that is broker and controller (facts, kafka.md, Start).

    Arguments:
        settings: its ports.
        extra: properties that replace or join these.

    """
    values = {
        "process.roles": "broker,controller",
        "node.id": NODE_ID,
        "controller.quorum.voters": f"{NODE_ID}@{HOST}:{settings.controller_port}",
        "listeners": f"CLIENT://{settings.bootstrap},CONTROLLER://{HOST}:{settings.controller_port}",
        "advertised.listeners": f"CLIENT://{settings.bootstrap}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        # Relative to the process's working folder, the data folder: its path may hold what Kafka takes for a separator.
        "log.dirs": LOGS,
        # A topic that was never made is an error of the program that names it, not a topic with chance settings.
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        # After SIGKILL the old registration must expire before the new one is taken: 9 s by default.
        "broker.session.timeout.ms": 1500,
        "broker.heartbeat.interval.ms": 300,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "num.recovery.threads.per.data.dir": 2,
        "log.segment.bytes": 64 << 20,
        "log.cleaner.dedupe.buffer.size": 8 << 20,
        "message.max.bytes": _LARGEST_MESSAGE,
        "replica.fetch.max.bytes": _LARGEST_MESSAGE,
        **extra,
    }
    return "".join(f"{name}={_escaped(str(value))}\n" for name, value in values.items())


def _escaped(value: str) -> str:
    """A value for a Java properties file: Latin-1 by definition, and a backslash begins an escape."""
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)  # noqa: PLR2004 - printable ASCII
