"""Replication, the protocol: blocks, messages between members, records of the claim log, the marker.

| message | to | when |
|---|---|---|
| Observed | all | blocks were committed here |
| Propose | all | a leader opens a round |
| Proposal | the leader | the answer: the suffix that this member votes for |
| Candidate | all | the leader combined the votes to a batch |
| Saved | all | this member committed the candidate, and holds all its bodies |

A record of the claim log is an Epoch, a Claim, a Checkpoint or a Close. A batch is agreed when the first valid claim of
its number is read. Stream names and member ids are text, hashes 32 bytes, weights integers of any size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

HASH_SIZE: Final = 32
SIGNATURE_SIZE: Final = 64
NO_HASH: Final = bytes(HASH_SIZE)
"""Predecessor of the first batch."""

Sign: TypeAlias = Callable[[bytes], bytes]
"""Bytes to this node's signature."""
Verify: TypeAlias = Callable[[bytes, bytes, bytes], bool]
"""Key, bytes and signature to the verdict."""


def digest(data: bytes) -> bytes:
    """SHA-256, the hash of every layout here."""
    return hashlib.sha256(data).digest()


class Ref(NamedTuple):
    """Name of a block: votes are on these."""

    number: int
    hash: bytes


class Item(NamedTuple):
    """A block of a batch, and the digest of the content that every promoter writes."""

    number: int
    hash: bytes
    content: bytes

    @property
    def ref(self) -> Ref:
        """Its name."""
        return Ref(self.number, self.hash)


class Block(NamedTuple):
    """Facts of a verified block whose body is stored; ``size`` are the body's bytes."""

    number: int
    hash: bytes
    parent: bytes
    weight: int
    content: bytes
    size: int

    @property
    def ref(self) -> Ref:
        """Its name."""
        return Ref(self.number, self.hash)

    @property
    def item(self) -> Item:
        """Its entry in a batch."""
        return Item(self.number, self.hash, self.content)


@dataclass(frozen=True, slots=True)
class Membership:
    """The cluster as one stream sees it.

    Attributes:
        cluster: identity of name, epoch, application and members (32 bytes).
        stream: name of the stream.
        members: id to public key; their order is that of the ids.

    """

    cluster: bytes
    stream: str
    members: dict[str, bytes]
    ids: tuple[str, ...] = field(init=False)
    quorum: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(sorted(self.members)))
        object.__setattr__(self, "quorum", len(self.members) // 2 + 1)

    def leader(self, clock: int) -> str:
        """The member whose turn a clock value is."""
        return self.ids[clock % len(self.ids)]


# --- batches and state ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    """Content of a batch. Two leaders with equal content build one batch: it names neither time nor leader.

    ``raw`` is its encoding, ``hash`` the batch hash; both follow from the other fields.
    """

    cluster: bytes
    stream: str
    num: int
    prev: bytes
    state: bytes
    parent: bytes
    weight: int
    items: tuple[Item, ...]
    raw: bytes = field(repr=False)
    hash: bytes


class Head(NamedTuple):
    """The head of a consumer that has read all agreed blocks."""

    number: int
    hash: bytes
    weight: int


# --- messages -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observed:
    """Blocks that the sender has committed."""

    stream: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """A leader opens round ``round`` of batch ``num``, whose predecessor is ``prev``."""

    stream: str
    num: int
    prev: bytes
    round: int
    skips: int


class Answer(StrEnum):
    """Status of a Proposal."""

    VOTE = "vote"
    BEHIND = "behind"
    """The leader's number is decided: it reads the log."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The sender's vote in a round."""

    stream: str
    num: int
    round: int
    answer: Answer
    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A batch to sign."""

    stream: str
    header: Header


@dataclass(frozen=True, slots=True)
class Saved:
    """The sender holds every body of the batch, and signed it."""

    stream: str
    num: int
    batch: bytes
    signature: bytes


Message: TypeAlias = Observed | Propose | Proposal | Candidate | Saved


# --- records --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Epoch:
    """First record of a claim log. ``start``, ``window`` and ``max_blocks`` decide the validity of claims."""

    name: str
    epoch: int
    previous: bytes
    app: bytes
    members: tuple[tuple[str, bytes], ...]
    stream: str
    start: int
    window: int
    max_blocks: int
    state: bytes
    id: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """A batch and its certificate: signatures of Saved by member id."""

    header: Header
    claimer: str
    skips: int
    certificate: tuple[tuple[str, bytes], ...]
    signature: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after a batch: where an empty node may begin."""

    state: bytes
    id: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """The last record of an epoch, and the state that the next one begins with."""

    state: bytes
    id: str
    signature: bytes


Record: TypeAlias = Epoch | Claim | Checkpoint | Close


class Refusal(StrEnum):
    """Reasons why a record counts for nothing, in the order in which readers check."""

    MALFORMED = "Malformed"
    OTHER_CLUSTER = "OtherCluster"
    NOT_MEMBER = "NotMember"
    BAD_NUMBER = "BadNumber"
    BAD_PREVIOUS = "BadPrevious"
    TOO_LARGE = "TooLarge"
    UNKNOWN_PARENT = "UnknownParent"
    NOT_ASCENDING = "NotAscending"
    TWICE = "Twice"
    BAD_SIGNATURE = "BadSignature"
    NO_QUORUM = "NoQuorum"

    OTHER_STATE = "OtherState"
    """A checkpoint or a close with another state: one member vouches for it, so no reader stops."""
    CLOSED = "Closed"
    """A record after the close."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Progress of promotion: all batches before ``num`` and the first ``index`` blocks of it are on the topics."""

    cluster: bytes
    stream: str
    num: int
    index: int
    batch: bytes
    writer: str

    @property
    def position(self) -> tuple[int, int]:
        """Its place in the order of markers."""
        return self.num, self.index
