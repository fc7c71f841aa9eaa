"""State delta of a block as paths and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class StateDelta:
    """What a block did to the state, as paths and values.

    Attributes:
        updates: accounts and code, by path.
        deletes: the paths of accounts that are gone.
        storage: slots by path, for the sub batch.

    """

    updates: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    deletes: frozenset[str] = frozenset()
    storage: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
