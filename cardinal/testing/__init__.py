"""Public fakes, generators and fault scripts for tests, ours and yours.

Read in this order: `forks` (a script of heads), `generator` (payloads of any chain), `faults` (what happens to their
messages), `memory` (a broker), `node` and `replay` (an Ethereum-like node), `feeds` (what a feed has to do); `model`,
`chain_model`, `scenario`, `laws`, `schedule` (the streams core beside a naive reference).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .faults import Faults
    from .generator import ChainGenerator
    from .memory import MemoryBroker
    from .model import Model
    from .schedule import Schedule, run_schedule

__all__ = ["ChainGenerator", "Faults", "MemoryBroker", "Model", "Schedule", "run_schedule"]

_HOMES = {
    "ChainGenerator": "generator",
    "Faults": "faults",
    "MemoryBroker": "memory",
    "Model": "model",
    "Schedule": "schedule",
    "run_schedule": "schedule",
}


def __getattr__(name: str) -> object:
    """What is named here is imported when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
