"""What a broker's data folder remembers: its cluster and its ports.

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

from cardinal.errors import EmbeddedBrokerError, PortInUseError

from .folders import write_atomically

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

HOST = "127.0.0.1"
_FILE = "broker.json"
_PORTS = range(18000, 32000)


@dataclass(frozen=True, slots=True)
class Settings:
    """What stays the same over restarts.

    Attributes:
        cluster_id: 22 characters of URL-safe base64.
        port: where clients are served.
        controller_port: where the brokers of a cluster keep its metadata.
        internal_port: where brokers reach each other and administrators reach them, in the clear, whatever clients
            need; 0 where it was not chosen yet.

    """

    cluster_id: str
    port: int
    controller_port: int
    internal_port: int = 0

    @property
    def bootstrap(self) -> str:
        """The address that clients connect to."""
        return f"{HOST}:{self.port}"

    @property
    def internal(self) -> str:
        """The address for administrators."""
        return f"{HOST}:{self.internal_port}"

    @property
    def ports(self) -> frozenset[int]:
        """All ports that were chosen."""
        return frozenset({self.port, self.controller_port, self.internal_port} - {0})


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


def settle(old: Settings | None, port: int | None, *, member: bool = False) -> Settings:
    """The settings of a start: the old ones, with what was asked for or has to change.

    Arguments:
        old: what the data folder remembers.
        port: the port for clients that was asked for.
        member: whether other brokers know the controller's port, so that it must not change.

    Raises:
        PortInUseError: another process listens on a port that must not change.

    """
    chosen = port or (old.port if old else 0) or free_port()
    fixed = (chosen, old.controller_port) if old and member else (chosen,)
    for one in fixed:
        if not is_free(one):
            raise PortInUseError(f"port {one} is in use by another process: stop it, or take another port", port=one)
    taken = {*fixed}

    def keep(before: int) -> int:
        """A port that nobody but us has to know."""
        if before == 0 or before in taken or not is_free(before):
            before = free_port(beside=taken)
        taken.add(before)
        return before

    controller = old.controller_port if old and member else keep(old.controller_port if old else 0)
    internal = keep(old.internal_port if old else 0)
    return Settings(old.cluster_id if old else new_cluster_id(), chosen, controller, internal)


def free_port(*, beside: Collection[int] = ()) -> int:
    """A port of 127.0.0.1 that nobody listens on, none of ``beside``.

    Raises:
        EmbeddedBrokerError: there is none.

    """
    for port in random.sample(_PORTS, len(_PORTS)):
        if port not in beside and is_free(port):
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
