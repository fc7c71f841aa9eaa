"""Publish: block items pushed to a node, as values and pure state machines.

Contents: `types` are the messages, `codec` turns them into bytes and back, `items` checks sets. `arbiter` is the node's
side, `blocks` what it knows, `effects` what it has its service do. `session` is the publisher's side, `buffer` what it
holds.
"""

from .arbiter import Arbiter
from .codec import decode_request, decode_response, encode
from .effects import (
    Acknowledged,
    BranchRefused,
    CatchUp,
    CatchUpStuck,
    Close,
    Complete,
    Discard,
    Drained,
    Effect,
    Items,
    NodeError,
    Open,
    Push,
    Released,
    Saturated,
    Send,
    SessionEffect,
    SourceError,
    Start,
)
from .items import Header, ItemSet, Kind, read_item, read_set
from .session import PublisherSession
from .settings import ArbiterSettings, SessionSettings
from .types import (
    NONE,
    Acknowledgement,
    BehindPublisher,
    BlockEnd,
    BlockId,
    BlockItemSet,
    EndCode,
    EndOfStream,
    EndStream,
    Failure,
    Request,
    ResendBlock,
    Response,
    SkipBlock,
    Status,
)

__all__ = [
    "NONE",
    "Acknowledged",
    "Acknowledgement",
    "Arbiter",
    "ArbiterSettings",
    "BehindPublisher",
    "BlockEnd",
    "BlockId",
    "BlockItemSet",
    "BranchRefused",
    "CatchUp",
    "CatchUpStuck",
    "Close",
    "Complete",
    "Discard",
    "Drained",
    "Effect",
    "EndCode",
    "EndOfStream",
    "EndStream",
    "Failure",
    "Header",
    "ItemSet",
    "Items",
    "Kind",
    "NodeError",
    "Open",
    "PublisherSession",
    "Push",
    "Released",
    "Request",
    "ResendBlock",
    "Response",
    "Saturated",
    "Send",
    "SessionEffect",
    "SessionSettings",
    "SkipBlock",
    "SourceError",
    "Start",
    "Status",
    "decode_request",
    "decode_response",
    "encode",
    "read_item",
    "read_set",
]
