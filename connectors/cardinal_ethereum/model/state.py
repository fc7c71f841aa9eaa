"""State delta of a block: changed accounts, code and storage as paths and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cardinal.texts import Readable


@dataclass(frozen=True, slots=True, repr=False)
class StateDelta(Readable):
    """State delta of a block.

    Attributes:
        updates: changed accounts and code by path.
        deletes: paths of deleted accounts.
        storage: changed slots by path, sent as a sub batch.

    """

    updates: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    deletes: frozenset[str] = frozenset()
    storage: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
