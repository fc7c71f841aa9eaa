"""Ingest nodes: blocks pushed by publishers, agreed on, and promoted to the topics.

This module only re-exports the publisher, on first use, and has the scheme of ingest nodes' URLs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from cardinal.config.schemes import Scheme

if TYPE_CHECKING:
    from .publisher.publisher import Publisher

__all__ = ["Publisher"]

INGEST: Final = Scheme(
    "ingest://host:port",
    "cardinal_ingest.publisher.destination",
    40840,
    "what ingest nodes accept is on their Kafka topics, so write kafka://host:port here",
)


def __getattr__(name: str) -> object:
    if name != "Publisher":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.publisher.publisher").Publisher


def __dir__() -> list[str]:
    return __all__
