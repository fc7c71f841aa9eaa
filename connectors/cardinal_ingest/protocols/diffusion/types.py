"""Object diffusion, the protocol: states, messages, violations.

A server has objects, a client wants them. The server announces ids into a bounded FIFO of which the client keeps a
mirror; the client requests objects out of it, and acknowledges ids from its front.

| state | who speaks | message | next state |
|---|---|---|---|
| INIT | client | MsgInit | IDLE |
| IDLE | client | MsgRequestObjectIds | BLOCKING or NON_BLOCKING |
| IDLE | client | MsgRequestObjects | OBJECTS |
| IDLE | client | MsgDone | DONE |
| BLOCKING, NON_BLOCKING | server | MsgReplyObjectIds | IDLE |
| OBJECTS | server | MsgReplyObjects | IDLE |

A client may send requests before earlier ones are answered. They are answered in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple, TypeAlias

HASH_SIZE = 32


class State(Enum):
    """State of one link, by the specification's names."""

    INIT = "StInit"
    IDLE = "StIdle"
    BLOCKING = "StObjectIdsBlocking"
    NON_BLOCKING = "StObjectIdsNonBlocking"
    OBJECTS = "StObjects"
    DONE = "StDone"


class ObjectId(NamedTuple):
    """Name of an object: the block's number, and its hash of 32 bytes."""

    number: int
    hash: bytes


class Announcement(NamedTuple):
    """An object that a server has, and the exact number of its bytes."""

    id: ObjectId
    size: int


@dataclass(frozen=True, slots=True)
class MsgInit:
    """Opens a link. The server announces nothing below the block number ``lowest``."""

    lowest: int = 0


@dataclass(frozen=True, slots=True)
class MsgRequestObjectIds:
    """Acknowledges ``ack`` ids from the FIFO's front, and requests up to ``req`` further ones.

    A blocking request is answered when there is at least one, another at once.
    """

    blocking: bool
    ack: int
    req: int


@dataclass(frozen=True, slots=True)
class MsgReplyObjectIds:
    """Objects that the server appended to its FIFO, in this order."""

    announcements: tuple[Announcement, ...]


@dataclass(frozen=True, slots=True)
class MsgRequestObjects:
    """Requests objects that are in the FIFO."""

    ids: tuple[ObjectId, ...]


@dataclass(frozen=True, slots=True)
class MsgReplyObjects:
    """Exactly the requested objects, in any order."""

    objects: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class MsgDone:
    """Ends the link, at the client's wish."""


Message: TypeAlias = MsgInit | MsgRequestObjectIds | MsgReplyObjectIds | MsgRequestObjects | MsgReplyObjects | MsgDone


class Violation(StrEnum):
    """Rules that a peer can break. Each closes its link, without a word: the protocol has no error message."""

    DECODER_FAILURE = "DecoderFailure"
    EXCEEDED_SIZE_LIMIT = "ExceededSizeLimit"
    INCOMPLETE = "Incomplete"
    EXCEEDED_TIME_LIMIT = "ExceededTimeLimit"

    # of a client, in the order in which the server checks
    ACKED_TOO_MANY_OBJECT_IDS = "AckedTooManyObjectIds"
    REQUESTED_TOO_MANY_OBJECT_IDS = "RequestedTooManyObjectIds"
    REQUESTED_NOTHING = "RequestedNothing"
    REQUEST_BLOCKING = "RequestBlocking"
    REQUEST_NON_BLOCKING = "RequestNonBlocking"
    REQUESTED_DUPLICATE_OBJECT = "RequestedDuplicateObject"
    REQUESTED_UNAVAILABLE_OBJECT = "RequestedUnavailableObject"
    REQUESTED_TOO_MANY_BYTES = "RequestedTooManyBytes"
    TOO_MANY_PIPELINED = "TooManyPipelined"

    # of a server, in the order in which the client checks
    UNEXPECTED_REPLY = "UnexpectedReply"
    OBJECT_IDS_NOT_REQUESTED = "ObjectIdsNotRequested"
    OBJECT_IDS_DUPLICATE = "ObjectIdsDuplicate"
    OBJECT_IDS_ALREADY_KNOWN = "ObjectIdsAlreadyKnown"
    OBJECTS_DIFFERENT_THAN_REQUESTED = "ObjectsDifferentThanRequested"
    OBJECT_SIZE_MISMATCH = "ObjectSizeMismatch"
    OBJECT_INVALID = "ObjectInvalid"
