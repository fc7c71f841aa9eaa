"""What a server and its clients say to each other: the frames of the wire protocol as values.

:mod:`.wire` says who may send which of them when, and how they look as bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.protocols.streams.types import Partition

SUBPROTOCOL: Final = "cardinal.streams.v1"
CLIENT_FRAME_MAX: Final = 1 << 20
"""Bytes of the largest frame that a server takes: a READ of some ten thousand partitions."""

GO_ON: Final = -1
"""In READ: from where the partition stood."""


class CloseCode(IntEnum):
    """Why a server closes a connection."""

    PROTOCOL = 4400
    """A frame that this protocol does not know. Coming back does not help."""

    SLOW = 4408
    """The client took nothing for too long and fell out of what is kept for all. It may come back at its position."""

    UPSTREAM = 4502
    """What the server reads from has failed. The client comes back."""


class Reason(Enum):
    """Why a request failed."""

    TOPIC = 1
    """There is no such topic or partition, or it is not served here."""

    EXPIRED = 2
    """Positions that are not kept any more (position below limit), or lie behind the end (position above it).

    Where they are the same, other records lie below it than were read.
    """

    AWAY = 3
    """What the server reads from does not answer, or the server has no room for it now."""

    FAILED = 4
    """It failed for good; the server's log says why."""


@dataclass(frozen=True, slots=True)
class Open:
    """Which topics a connection is about."""

    id: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topics:
    """Asks for the names of all topics."""

    id: int


@dataclass(frozen=True, slots=True)
class Marks:
    """Asks for start and end of every partition."""

    id: int


@dataclass(frozen=True, slots=True)
class Times:
    """Asks for the first offsets that are not older."""

    id: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Read:
    """Which partitions to send, from where; :data:`GO_ON`: from where it stood."""

    id: int
    positions: Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class Credit:
    """So many more bytes may be sent."""

    size: int


@dataclass(frozen=True, slots=True)
class Names:
    """The names of all topics."""

    id: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MarkList:
    """Start and end of every partition."""

    id: int
    marks: Mapping[Partition, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class OffsetList:
    """An offset of every partition."""

    id: int
    offsets: Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """A READ is done."""

    id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A request, or the reading (id 0), has failed. ``places``: position and limit of partitions that it is about."""

    id: int
    reason: Reason
    topic: str = ""
    places: Mapping[Partition, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Records:
    """Chunks of records, as bytes."""

    id: int
    chunks: memoryview


Request: TypeAlias = Open | Topics | Marks | Times | Read | Credit
Answer: TypeAlias = Names | MarkList | OffsetList | Reading | Failed
ServerFrame: TypeAlias = Answer | Records
