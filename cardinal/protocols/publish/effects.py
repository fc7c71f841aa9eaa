"""Effects of the arbiter: what its service has to do, as values, in their order."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from .types import BlockId, Response


@dataclass(frozen=True, slots=True)
class Send:
    """Send a response; the connection is closed after an EndOfStream."""

    connection: Hashable
    response: Response


@dataclass(frozen=True, slots=True)
class Start:
    """A copy of a block begins. ``attempt`` names it in everything that concerns it."""

    block: BlockId
    attempt: int
    connection: Hashable
    parent: BlockId


@dataclass(frozen=True, slots=True)
class Items:
    """More items of a copy, header and proofs included."""

    block: BlockId
    attempt: int
    items: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """All of a copy is here: verify and persist it."""

    block: BlockId
    attempt: int
    connection: Hashable


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop what came of a copy; verdicts on it are ignored."""

    block: BlockId
    attempt: int


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Fetch these blocks, both included, from other nodes."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class CatchUpStuck:
    """Publishers are no closer to this node after three more connections."""

    target: int


@dataclass(frozen=True, slots=True)
class BranchRefused:
    """A branch that leaves the acknowledged blocks below the floor was refused."""

    block: BlockId
    connection: Hashable


@dataclass(frozen=True, slots=True)
class SourceError:
    """Notify subscribers: there is no publisher."""


@dataclass(frozen=True, slots=True)
class NodeError:
    """Notify subscribers: this node failed to persist a block."""


Effect: TypeAlias = (
    Send | Start | Items | Complete | Discard | CatchUp | CatchUpStuck | BranchRefused | SourceError | NodeError
)
