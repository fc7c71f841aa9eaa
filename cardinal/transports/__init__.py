"""Sources and sinks of records, chosen by URL scheme."""

from cardinal.config.url import TransportUrl, parse_url

from .base import Capabilities, Sink, Source
from .registry import list_topics, open_sink, open_source

__all__ = [
    "Capabilities",
    "Sink",
    "Source",
    "TransportUrl",
    "list_topics",
    "open_sink",
    "open_source",
    "parse_url",
]
