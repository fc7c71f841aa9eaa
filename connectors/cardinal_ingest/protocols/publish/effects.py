"""Effects: what the service around an arbiter or a session has to do, as values, in their order."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from .types import BlockId, Request, Response

# --- of an arbiter -------------------------------------------------------------------------------------------------


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
class Acknowledged:
    """A block and all before it are verified and durable: it may be promoted, parents first, each once."""

    block: BlockId
    parent: BlockId


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
    Send
    | Acknowledged
    | Start
    | Items
    | Complete
    | Discard
    | CatchUp
    | CatchUpStuck
    | BranchRefused
    | SourceError
    | NodeError
)


# --- of a session --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """Open a stream to a node; report it with ``opened`` or ``closed``."""

    node: str
    stream: int


@dataclass(frozen=True, slots=True)
class Push:
    """Send a request on a stream."""

    stream: int
    request: Request


@dataclass(frozen=True, slots=True)
class Close:
    """Close a stream after what was sent; nothing of it is reported any more."""

    stream: int


@dataclass(frozen=True, slots=True)
class Released:
    """Blocks up to this one are acknowledged: the host need not keep them."""

    block_number: int


@dataclass(frozen=True, slots=True)
class Saturated:
    """The buffer is full: finish the block in hand, and begin no other."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The buffer has capacity again."""


SessionEffect: TypeAlias = Open | Push | Close | Released | Saturated | Drained
