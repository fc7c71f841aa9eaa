"""Cardinal Streams, the message layer: the protocol as values and pure functions.

Read the files in this order: `types`, `messages`, `keys`, `avro`, `codec`, `payload`, `splitter`, `sealing` (what a
producer does); `prefixes`, `block`, `reassembler`, `quorum`, `forktree`, `ordering`, `cursor`, `follower`, `events`
(what a consumer does).
"""

from .codec import decode, encode
from .cursor import Cursor
from .events import (
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
from .follower import Follower, FollowerSettings
from .messages import (
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
from .ordering import OnFinalityViolation, Orderer
from .payload import MissingPayload, Payload, SubBatch
from .quorum import QuorumReassembler
from .reassembler import Reassembler
from .sealing import SealQueue
from .splitter import reorg_topic, split, split_reorg, split_sub_batch
from .types import BlockRef, Finality, FinalityViolated, Record, Routed

__all__ = [
    "Batch",
    "BatchDeleteMsg",
    "BatchMsg",
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
