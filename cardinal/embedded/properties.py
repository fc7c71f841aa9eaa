"""The ``server.properties`` that Kafka reads (facts, kafka.md, Start).

A broker has three listeners on 127.0.0.1: ``CLIENT`` with the security that was asked for, ``INTERNAL`` in the clear
for brokers among themselves and for administrators, ``CONTROLLER`` for the cluster's metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .security import PLAIN_TEXT, Security
from .settings import HOST, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGS = "logs"
"""Kafka's own folder within the data folder."""

_LARGEST_MESSAGE = 8 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """A broker's place in its cluster.

    Attributes:
        node: its number, from 1 on.
        controllers: the controller ports of all nodes, by number; empty where the node is alone.

    """

    node: int = 1
    controllers: tuple[int, ...] = ()

    @property
    def brokers(self) -> int:
        """How many there are."""
        return len(self.controllers) or 1

    def voters(self, own: int) -> str:
        """Kafka's ``controller.quorum.voters``; ``own`` is this node's controller port."""
        ports = dict(enumerate(self.controllers, 1)) or {self.node: own}
        return ",".join(f"{node}@{HOST}:{port}" for node, port in ports.items())


def properties(
    settings: Settings,
    extra: Mapping[str, str],
    *,
    place: Place | None = None,
    security: Security = PLAIN_TEXT,
    advertised: str | None = None,
) -> str:
    """The file's text for one node that is broker and controller.

    Arguments:
        settings: its ports.
        extra: properties that replace or join these.
        place: the node's place among others.
        security: what clients have to show.
        advertised: the address that clients are told, where that is another one than the listener's.

    """
    place = place or Place()
    copies, in_sync = min(place.brokers, 3), max(1, min(place.brokers, 3) - 1)
    listeners = {"CLIENT": settings.bootstrap, "INTERNAL": settings.internal}
    told = {**listeners, "CLIENT": advertised or settings.bootstrap}
    values = {
        "process.roles": "broker,controller",
        "node.id": place.node,
        "controller.quorum.voters": place.voters(settings.controller_port),
        "listeners": _addresses({**listeners, "CONTROLLER": f"{HOST}:{settings.controller_port}"}),
        "advertised.listeners": _addresses(told),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": f"CLIENT:{security.protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        # Relative to the process's working folder, the data folder: its path may hold what Kafka takes for a separator.
        "log.dirs": LOGS,
        # A topic that was never made is an error of the program that names it, not a topic with chance settings.
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        # After SIGKILL the old registration must expire before the new one is taken: 9 s by default. Several nodes on
        # a busy machine hold each other up, and must not take that for a death.
        "broker.session.timeout.ms": 1500 if place.brokers == 1 else 3000,
        "broker.heartbeat.interval.ms": 300,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "num.recovery.threads.per.data.dir": 2,
        "log.segment.bytes": 64 << 20,
        "log.cleaner.dedupe.buffer.size": 8 << 20,
        "message.max.bytes": _LARGEST_MESSAGE,
        "replica.fetch.max.bytes": _LARGEST_MESSAGE,
        **security.properties(),
        **extra,
    }
    return "".join(f"{name}={_escaped(str(value))}\n" for name, value in values.items())


def _addresses(listeners: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in listeners.items())


def _escaped(value: str) -> str:
    """A value for a Java properties file: Latin-1 by definition, and a backslash begins an escape."""
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)  # noqa: PLR2004 - printable ASCII
