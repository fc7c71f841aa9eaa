"""Public tools for tests of handlers, consumers, producers and feeds: fakes, generators, faults.

Handlers: `faultkit`. Chains: `forks` (a script of heads), `generator` (payloads). Kafka: `faults` (message schedules),
`memory` (a broker in the process), `proxy` (a bad network), `containers`. Nodes: `node` and `replay`; `feeds` has the
laws of a feed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cardinal_devkit import faultkit
    from .faults import Faults
    from .generator import ChainGenerator
    from .memory import MemoryBroker
    from .proxy import TcpProxy

__all__ = ["ChainGenerator", "Faults", "MemoryBroker", "TcpProxy", "faultkit"]

_HOMES = {"ChainGenerator": "generator", "Faults": "faults", "MemoryBroker": "memory", "TcpProxy": "proxy"}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name == "faultkit":
        return import_module(f"{__name__}.faultkit")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
