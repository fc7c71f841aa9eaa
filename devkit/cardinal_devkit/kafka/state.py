"""Persistent state of a broker's data folder: cluster id and ports.

Rules:

1. A data folder keeps its cluster id and its port from its first start on, so clients find the broker after a restart.
2. Chosen ports are below the kernel's ephemeral range: an outgoing connection cannot take the port during a restart.
3. Every listener is on 127.0.0.1. This broker is for one machine.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import socket
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cardinal._directories import write_atomically
from cardinal.errors import PortInUseError
from cardinal_devkit.errors import EmbeddedBrokerError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

HOST = "127.0.0.1"
_FILE = "broker.json"
_PORTS = range(18000, 32000)
_turn = itertools.cycle(random.SystemRandom().sample(_PORTS, len(_PORTS)))
"""The ports in an order that no other process has, also where tests seed ``random``."""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Values that survive restarts.

    Attributes:
        cluster_id: 22 characters of URL-safe base64.
        port: port of the client listener.
        controller_port: port of the controller listener.
        internal_port: port of the plain-text listener for brokers and administrators; 0 before it is chosen.

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


def load_state(data: Path) -> BrokerState | None:
    """Load the state of a data folder; None if it never held a broker.

    Raises:
        EmbeddedBrokerError: the file cannot be read, or is not what :func:`save_state` wrote.

    """
    try:
        return BrokerState(**json.loads((data / _FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise EmbeddedBrokerError(f"{data / _FILE} cannot be read: restore it, or take another data folder") from error


def save_state(data: Path, state: BrokerState) -> None:
    """Save ``state`` in the data folder."""
    write_atomically(data / _FILE, json.dumps(asdict(state)) + "\n")


def new_cluster_id() -> str:
    """New cluster id. It never begins with a hyphen, which Kafka's tools would parse as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def next_state(old: BrokerState | None, port: int | None, *, member: bool = False) -> BrokerState:
    """State for the next start.

    Arguments:
        old: the saved state.
        port: the requested port for clients.
        member: true if other brokers know the controller port, so that it must not change.

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
        """The previous port if free, else another one: no client knows it."""
        if before == 0 or before in taken or not is_free(before):
            before = free_port(exclude=taken)
        taken.add(before)
        return before

    controller = old.controller_port if old and member else keep(old.controller_port if old else 0)
    internal = keep(old.internal_port if old else 0)
    return BrokerState(old.cluster_id if old else new_cluster_id(), chosen, controller, internal)


def free_port(*, exclude: Collection[int] = ()) -> int:
    """A free port of 127.0.0.1 that is not in ``exclude``.

    A process is given another port each time, so that ports that are chosen now and used later stay apart.

    Raises:
        EmbeddedBrokerError: no port is free.

    """
    for port in itertools.islice(_turn, len(_PORTS)):
        if port not in exclude and is_free(port):
            return port
    raise EmbeddedBrokerError(f"no port between {_PORTS.start} and {_PORTS.stop - 1} is free: stop what listens there")


def is_free(port: int) -> bool:
    """True if a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # As Java does: without it the connections of a broker that was just killed would block its port for a minute.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    # macOS lets a second server bind alongside one that listens on all addresses.
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) != 0
