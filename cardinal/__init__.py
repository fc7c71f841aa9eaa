"""Cardinal: a node's blocks on Kafka, complete and reorg-aware for consumers and Spark.

This module only re-exports; what it names is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .consumer import Consumer
    from .errors import CardinalError
    from .producer import Producer
    from .protocols.streams.cursor import Cursor
    from .protocols.streams.events import ChainUpdate
    from .protocols.streams.payload import MissingPayload, Payload
    from .protocols.streams.types import BlockRef, Finality
    from .transports import open_sink, open_source

_HOMES = {
    "BlockRef": "cardinal.protocols.streams.types",
    "CardinalError": "cardinal.errors",
    "ChainUpdate": "cardinal.protocols.streams.events",
    "Consumer": "cardinal.consumer",
    "Cursor": "cardinal.protocols.streams.cursor",
    "Finality": "cardinal.protocols.streams.types",
    "MissingPayload": "cardinal.protocols.streams.payload",
    "Payload": "cardinal.protocols.streams.payload",
    "Producer": "cardinal.producer",
    "open_sink": "cardinal.transports",
    "open_source": "cardinal.transports",
}

__all__ = [
    "BlockRef",
    "CardinalError",
    "ChainUpdate",
    "Consumer",
    "Cursor",
    "Finality",
    "MissingPayload",
    "Payload",
    "Producer",
    "open_sink",
    "open_source",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'cardinal' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
