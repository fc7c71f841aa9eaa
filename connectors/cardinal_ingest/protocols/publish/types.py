"""Messages of the publish protocol, and the identity of a block: values and nothing else.

Field names are the wire's. Numbers are 0 … 2⁶⁴-1; :data:`NONE` is the number that means "no block" (P5). Codes that a
peer invents are kept as integers and count as ERROR (P1).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Final, NamedTuple, TypeAlias

SERVICE: Final = "org.hiero.block.api.BlockStreamPublishService"
METHOD: Final = "publishBlockStream"
STATUS_SERVICE: Final = "org.hiero.block.api.BlockNodeService"
STATUS_METHOD: Final = "serverStatus"
PORT: Final = 40840

NONE: Final = 2**64 - 1
"""The number that means "no block": an acknowledgement's restart, and an empty node's last block."""


class BlockId(NamedTuple):
    """A block: its number, and its hash (32 bytes) where headers carry one."""

    number: int
    hash: bytes = b""


class EndCode(IntEnum):
    """Why a publisher ends its stream."""

    UNKNOWN = 0
    RESET = 1
    TIMEOUT = 2
    ERROR = 3
    TOO_FAR_BEHIND = 4


class Status(IntEnum):
    """Why a node ends a publisher's stream."""

    UNKNOWN = 0
    SUCCESS = 1
    INVALID_REQUEST = 2
    ERROR = 3
    TIMEOUT = 4
    DUPLICATE_BLOCK = 5
    BAD_BLOCK_PROOF = 6
    PERSISTENCE_FAILED = 7


class Failure(Enum):
    """Why a copy failed: its content, a verifier that could not decide, or this node's disk."""

    BAD = auto()
    UNDECIDED = auto()
    PERSISTENCE = auto()


# --- requests: publisher to node ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockItemSet:
    """Items of one block in their order, each as raw bytes."""

    block_items: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """The end of a block: all its items were sent."""

    block_number: int


@dataclass(frozen=True, slots=True)
class EndStream:
    """The publisher's last message: why it leaves, and the blocks that it still holds."""

    end_code: int
    earliest_block_number: int = 0
    latest_block_number: int = 0


# --- responses: node to publisher -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The block and all before it on its branch are verified and durable."""

    block_number: int


@dataclass(frozen=True, slots=True)
class SkipBlock:
    """Another publisher sends this block, or it is stored already: continue with the next."""

    block_number: int


@dataclass(frozen=True, slots=True)
class ResendBlock:
    """The block is needed again, from its header."""

    block_number: int


@dataclass(frozen=True, slots=True)
class BehindPublisher:
    """The node lacks blocks below the one offered: resume after this one."""

    block_number: int


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """The node's last message: its last block on this branch, and the block concerned (0 where there is none)."""

    status: int
    block_number: int
    proximate_block_number: int = 0


Request: TypeAlias = BlockItemSet | BlockEnd | EndStream
Response: TypeAlias = Acknowledgement | SkipBlock | ResendBlock | BehindPublisher | EndOfStream
