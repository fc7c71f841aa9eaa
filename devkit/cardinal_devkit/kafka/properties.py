"""Kafka's ``server.properties`` of an embedded broker.

A broker has three listeners on 127.0.0.1: ``CLIENT`` with the configured security, ``INTERNAL`` in plain text for
brokers and administrators, ``CONTROLLER`` for the cluster's metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .security import PLAIN_TEXT, Security
from .state import HOST, BrokerState

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGS = "logs"
"""Kafka's own folder within the data folder."""

_LARGEST_MESSAGE = 8 << 20


@dataclass(frozen=True, slots=True)
class Membership:
    """A broker's node in its cluster.

    Attributes:
        node: its number, from 1 on.
        controllers: the controller ports of all nodes, by number; empty for a single node.

    """

    node: int = 1
    controllers: tuple[int, ...] = ()

    @property
    def brokers(self) -> int:
        """Number of brokers in the cluster."""
        return len(self.controllers) or 1

    def voters(self, own: int) -> str:
        """Kafka's ``controller.quorum.voters``; ``own`` is this node's controller port."""
        ports = dict(enumerate(self.controllers, 1)) or {self.node: own}
        return ",".join(f"{node}@{HOST}:{port}" for node, port in ports.items())


def properties(
    state: BrokerState,
    extra: Mapping[str, str],
    *,
    membership: Membership | None = None,
    security: Security = PLAIN_TEXT,
    advertised: str | None = None,
) -> str:
    """Text of the file for one node that is broker and controller.

    Arguments:
        state: its ports.
        extra: properties that override or extend these.
        membership: the node in its cluster.
        security: security of the client listener.
        advertised: the address advertised to clients, if not the listener's.

    """
    membership = membership or Membership()
    copies, in_sync = min(membership.brokers, 3), max(1, min(membership.brokers, 3) - 1)
    listeners = {"CLIENT": state.bootstrap, "INTERNAL": state.internal}
    public = {**listeners, "CLIENT": advertised or state.bootstrap}
    values = {
        "process.roles": "broker,controller",
        "node.id": membership.node,
        "controller.quorum.voters": membership.voters(state.controller_port),
        "listeners": _addresses({**listeners, "CONTROLLER": f"{HOST}:{state.controller_port}"}),
        "advertised.listeners": _addresses(public),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": f"CLIENT:{security.protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        # Relative to the process's working folder, the data folder: its path may hold what Kafka takes for a separator.
        "log.dirs": LOGS,
        # A missing topic is an error of the program that names it, not a topic with default settings.
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
        # After SIGKILL the old registration must expire before the new one is accepted: 9 s by default. Several nodes
        # on a busy machine slow each other down, which must not count as a failure.
        "broker.session.timeout.ms": 1500 if membership.brokers == 1 else 3000,
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
    """Escape a value for a Java properties file, which is Latin-1 with backslash escapes."""
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)  # noqa: PLR2004 - printable ASCII
