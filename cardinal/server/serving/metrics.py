"""What a server does, as numbers, and as the text that Prometheus reads.

Names carry their units; nothing is told of single clients, of whom there may be any number, nor of what is served.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

_PREFIX: Final = "cardinal_serve_"
_COUNTERS: Final = frozenset({"records", "bytes", "frames", "slow", "refused", "unauthorized"})
_NAMES: Final = MappingProxyType(
    {
        "clients": ("clients", "Clients that are connected."),
        "catching_up": ("clients_catching_up", "Of these, the ones with a source of their own or waiting for one."),
        "waiting": ("clients_waiting", "Of these, the ones that wait for a source of their own."),
        "stalled": ("clients_without_credit", "Clients that take nothing now: they have given no leave for more."),
        "records": ("read_records_total", "Records read of what is served."),
        "bytes": ("sent_bytes_total", "Bytes of records sent, before compression."),
        "frames": ("sent_frames_total", "Frames of records sent."),
        "slow": ("slow_clients_closed_total", "Clients closed because they took nothing for too long."),
        "refused": ("protocol_errors_total", "Clients closed because they broke the protocol."),
        "unauthorized": ("unauthorized_total", "Connections refused for want of the right token."),
        "ring_bytes": ("ring_bytes", "Recent records kept in memory, once for all clients."),
        "unsent_bytes": ("unsent_bytes", "Bytes handed to the sockets of all clients that have not left yet."),
        "lag_records": ("lag_records_max", "Records that the client which is farthest behind has to take yet."),
        "reading": ("up", "Whether what is served is being read."),
    }
)


@dataclass(frozen=True, slots=True)
class ServeProgress:
    """What the service does.

    Attributes:
        clients: connected now; ``catching_up``: of these, the ones with a source of their own or waiting for one;
            ``waiting``: of these, the ones that wait; ``stalled``: the ones that have given no leave for more.
        records: read since the beginning.
        bytes, frames: sent since the beginning, to all.
        slow: clients that were closed because they took nothing; ``refused``: that broke the protocol;
            ``unauthorized``: that had no right token.
        ring_bytes: kept in memory now.
        unsent_bytes: handed to the sockets of all clients, and not taken by the network yet.
        lag_records: what the client that is farthest behind has to take yet.
        reading: whether what is served is being read; not before it is there, and not after it failed for good.

    """

    clients: int
    catching_up: int
    waiting: int
    stalled: int
    records: int
    bytes: int
    frames: int
    slow: int
    refused: int
    unauthorized: int
    ring_bytes: int
    unsent_bytes: int
    lag_records: int
    reading: bool


def exposition(progress: ServeProgress) -> str:
    """The text that Prometheus reads: a help line, a type line and a value for each number."""
    lines: list[str] = []
    for each in fields(progress):
        name, text = _NAMES[each.name]
        kind = "counter" if each.name in _COUNTERS else "gauge"
        value = int(getattr(progress, each.name))
        lines += [f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} {kind}", f"{_PREFIX}{name} {value}"]
    return "\n".join([*lines, ""])
