"""Cardinal: a node's blocks on Kafka, complete and reorg-aware for consumers and Spark.

This module only re-exports the SDK, its values, every report that ``on_event`` receives, and every error. Names are
imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .consumer import Consumer
    from .consuming.healing import Event, HealingFailed
    from .consuming.options import ConsumerOptions
    from .errors import (
        ApplicationError,
        CardinalError,
        ClientStoppedError,
        ConfigurationError,
        CoverageChangedError,
        CursorError,
        CursorExpiredError,
        CursorInvalidError,
        CursorMismatchError,
        DecodeError,
        DeliveryError,
        EncodeError,
        FeedError,
        FencedError,
        IntegrityError,
        LocalProtocolError,
        LogDamagedError,
        LogInUseError,
        MissingExtraError,
        MissingPayloadError,
        NodeAnswerError,
        NodeBehindError,
        NodeUnreachableError,
        OrphanedError,
        OversizeError,
        PortInUseError,
        RefusedError,
        RemoteProtocolError,
        ReorgTooDeepError,
        SplitError,
        TopicError,
        TransportError,
        UnreachableError,
        WrongChainError,
    )
    from .producer import Producer
    from .protocols.streams.assembly.digests import HeaderOnly
    from .protocols.streams.cursor import Cursor
    from .protocols.streams.events import (
        BeganAbove,
        ChainUpdate,
        Change,
        Completed,
        Divergence,
        Explanation,
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
    from .protocols.streams.payload import (
        AnyPayload,
        MissingPayload,
        Payload,
        SubBatch,
    )
    from .protocols.streams.types import BlockRef, Finality, FinalityViolated
    from .transports import open_sink, open_source

_HOMES = {
    "AnyPayload": "cardinal.protocols.streams.payload",
    "BlockRef": "cardinal.protocols.streams.types",
    "Consumer": "cardinal.consumer",
    "ConsumerOptions": "cardinal.consuming.options",
    "Cursor": "cardinal.protocols.streams.cursor",
    "Explanation": "cardinal.protocols.streams.events",
    "Finality": "cardinal.protocols.streams.types",
    "FinalityViolated": "cardinal.protocols.streams.types",
    "Event": "cardinal.consuming.healing",
    "HealingFailed": "cardinal.consuming.healing",
    "HeaderOnly": "cardinal.protocols.streams.assembly.digests",
    "MissingPayload": "cardinal.protocols.streams.payload",
    "Payload": "cardinal.protocols.streams.payload",
    "Producer": "cardinal.producer",
    "SubBatch": "cardinal.protocols.streams.payload",
    "open_sink": "cardinal.transports",
    "open_source": "cardinal.transports",
}
"""Modules of the names that are neither errors nor reports."""

__all__ = [
    "AnyPayload",
    "ApplicationError",
    "BeganAbove",
    "BlockRef",
    "CardinalError",
    "ChainUpdate",
    "Change",
    "ClientStoppedError",
    "Completed",
    "ConfigurationError",
    "Consumer",
    "ConsumerOptions",
    "CoverageChangedError",
    "Cursor",
    "CursorError",
    "CursorExpiredError",
    "CursorInvalidError",
    "CursorMismatchError",
    "DecodeError",
    "DeliveryError",
    "Divergence",
    "EncodeError",
    "Event",
    "Explanation",
    "FeedError",
    "FencedError",
    "Finality",
    "FinalityViolated",
    "ForkBelowStart",
    "HeaderOnly",
    "HealingFailed",
    "Incomplete",
    "IntegrityError",
    "LocalProtocolError",
    "LogDamagedError",
    "LogInUseError",
    "MissingExtraError",
    "MissingPayload",
    "MissingPayloadError",
    "NodeAnswerError",
    "NodeBehindError",
    "NodeUnreachableError",
    "OrphanedError",
    "Overflow",
    "OversizeError",
    "Payload",
    "PingSeen",
    "PortInUseError",
    "Producer",
    "Quarantined",
    "RefusedError",
    "Rejected",
    "RemoteProtocolError",
    "ReorgAbandoned",
    "ReorgBegan",
    "ReorgEnded",
    "ReorgTooDeepError",
    "SplitError",
    "Stale",
    "SubBatch",
    "Superseded",
    "Surplus",
    "TopicError",
    "TransportError",
    "UnreachableError",
    "Untrusted",
    "WrongChainError",
    "open_sink",
    "open_source",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'cardinal' has no attribute {name!r}")
    others = "cardinal.errors" if name.endswith("Error") else "cardinal.protocols.streams.events"
    return getattr(importlib.import_module(_HOMES.get(name, others)), name)


def __dir__() -> list[str]:
    return sorted(__all__)
