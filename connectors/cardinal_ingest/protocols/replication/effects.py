"""Results of a step: rows to commit, then actions to perform, as values, in their order.

The service commits the rows of a step in one transaction before it performs any of its actions. A replica is restored
from the rows that are stored, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from .claims import Position
from .types import Block, Header, Message, Ref, Refusal

# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutBlock:
    """Store a block; its body is the one that was admitted."""

    block: Block


@dataclass(frozen=True, slots=True)
class DeleteBlock:
    """Delete a block and its body."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class PutCandidate:
    """Store a candidate by batch hash, in place of its former row; the signature is this node's, empty if none."""

    header: Header
    signature: bytes


@dataclass(frozen=True, slots=True)
class DeleteCandidates:
    """Delete all candidates below this number."""

    below: int


@dataclass(frozen=True, slots=True)
class PutWinner:
    """Store an agreed batch by number."""

    header: Header


@dataclass(frozen=True, slots=True)
class DeleteWinner:
    """Delete an agreed batch; all of it is promoted."""

    num: int


@dataclass(frozen=True, slots=True)
class PutPosition:
    """Store the place in the claim log, with the state; one row."""

    position: Position


@dataclass(frozen=True, slots=True)
class PutPromoted:
    """Store the position of the last marker; one row."""

    num: int
    index: int


Row: TypeAlias = (
    PutBlock | DeleteBlock | PutCandidate | DeleteCandidates | PutWinner | DeleteWinner | PutPosition | PutPromoted
)
Stored: TypeAlias = PutBlock | PutCandidate | PutWinner | PutPosition | PutPromoted


# --- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer, if a session to it is open."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send a message to every peer to which a session is open."""

    message: Message


@dataclass(frozen=True, slots=True)
class Append:
    """Append a record to the claim log; nothing is assumed of its delivery."""

    record: bytes


@dataclass(frozen=True, slots=True)
class Want:
    """Fetch these bodies of the peers; their batches wait for them."""

    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Blocks that a majority stored with all before them, parents first. Those of an earlier step may come again."""

    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Agreed:
    """A batch won its number."""

    header: Header


class Denial(StrEnum):
    """Reasons why a block is not stored."""

    NOT_OPEN = "the claim log has no state yet"
    FORK_TOO_DEEP = "below the window"
    POOL_FULL = "no capacity"
    OTHER_CONTENT = "another content is stored or agreed under this hash"


@dataclass(frozen=True, slots=True)
class Denied:
    """A verified block is not stored."""

    ref: Ref
    reason: Denial


@dataclass(frozen=True, slots=True)
class Divergence:
    """Two members hold different content under one hash. ``by`` names the other side: a peer, or none for a batch."""

    ref: Ref
    ours: bytes
    theirs: bytes
    by: str = ""


@dataclass(frozen=True, slots=True)
class StateDivergence:
    """A peer names another predecessor or state of the next batch. The next claim proves one of the two wrong."""

    peer: str
    num: int


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """A record of the claim log counts for nothing."""

    offset: int
    reason: Refusal


@dataclass(frozen=True, slots=True)
class CheckpointRead:
    """A reader may begin at this offset: the log below may be trimmed when ``num`` is promoted."""

    offset: int
    num: int


@dataclass(frozen=True, slots=True)
class EpochClosed:
    """The last record of the epoch was read: nothing more is agreed under it."""

    num: int


Action: TypeAlias = (
    Send
    | Broadcast
    | Append
    | Want
    | Acknowledged
    | Agreed
    | Denied
    | Divergence
    | StateDivergence
    | ClaimRefused
    | CheckpointRead
    | EpochClosed
)


@dataclass(frozen=True, slots=True)
class Step:
    """Everything that came of one input."""

    rows: tuple[Row, ...]
    actions: tuple[Action, ...]
