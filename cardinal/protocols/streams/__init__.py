"""Cardinal Streams, the message layer: the protocol as values and pure functions.

Contents: `types`, `payload`, `events` and `cursor` are the values. `wire` turns messages into bytes,
`publishing` turns a payload into messages. `assembly` makes blocks of records, `quorum` compares producers, `ordering`
makes chain updates of blocks, `following` joins these to a consumer without its transport.
"""

from .assembly.reassembler import Reassembler
from .cursor import Cursor
from .events import (
    BeganAbove,
    ChainUpdate,
    Completed,
    Divergence,
    Event,
    ForkBelowStart,
    Incomplete,
    Overflow,
    PingSeen,
    Quarantined,
    Rejected,
    ReorgAbandoned,
    ReorgBegan,
    ReorgEnded,
    Stale,
    Superseded,
    Surplus,
    Untrusted,
)
from .following.follower import Follower, FollowerSettings
from .ordering.finality import OnFinalityViolation
from .ordering.orderer import Orderer
from .payload import MissingPayload, Payload, SubBatch
from .publishing.sealing import SealQueue
from .publishing.splitter import reorg_topic, split, split_reorg, split_sub_batch
from .quorum.reassembler import QuorumReassembler
from .types import BlockRef, Finality, FinalityViolated, Record, Routed
from .wire.codec import decode, encode
from .wire.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Heartbeat,
    Message,
    Ping,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    Update,
)

__all__ = [
    "Batch",
    "BatchDeleteMsg",
    "BatchMsg",
    "BeganAbove",
    "BlockRef",
    "ChainUpdate",
    "Completed",
    "Cursor",
    "Divergence",
    "Event",
    "Finality",
    "FinalityViolated",
    "Follower",
    "FollowerSettings",
    "ForkBelowStart",
    "Heartbeat",
    "Incomplete",
    "Message",
    "MissingPayload",
    "OnFinalityViolation",
    "Orderer",
    "Overflow",
    "Payload",
    "Ping",
    "PingSeen",
    "Quarantined",
    "QuorumReassembler",
    "Reassembler",
    "Record",
    "Rejected",
    "Reorg",
    "ReorgAbandoned",
    "ReorgBegan",
    "ReorgComplete",
    "ReorgEnded",
    "Routed",
    "SealQueue",
    "Stale",
    "SubBatch",
    "SubBatchHeader",
    "SubBatchMsg",
    "Superseded",
    "Surplus",
    "Untrusted",
    "Update",
    "decode",
    "encode",
    "reorg_topic",
    "split",
    "split_reorg",
    "split_sub_batch",
]
