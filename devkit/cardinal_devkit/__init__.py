"""Developer kit: tools for tests of handlers, consumers, producers and feeds, and what a demonstration needs.

Handlers: `faultkit`. Chains: `testing.forks` (a script of heads), `testing.generator` (payloads). Kafka: `kafka` (a
real broker), `testing.faults` (message schedules), `testing.memory` (a broker in the process), `testing.proxy` (a bad
network), `testing.containers`. Nodes: `testing.node`, `testing.replay`, `devchain`. `testing.feeds` has the laws of a
feed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import faultkit
    from .testing.faults import Faults
    from .testing.generator import ChainGenerator
    from .testing.memory import MemoryBroker
    from .testing.proxy import TcpProxy

__all__ = ["ChainGenerator", "Faults", "MemoryBroker", "TcpProxy", "faultkit"]

_HOMES = {"ChainGenerator": "generator", "Faults": "faults", "MemoryBroker": "memory", "TcpProxy": "proxy"}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name == "faultkit":
        return import_module(f"{__name__}.faultkit")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
