"""How records travel: sources and sinks, chosen by URL scheme."""

from .base import ChannelSink, OneOrderSource, RecordSink, Sink, Source, TransactionalSink
from .url import TransportUrl, list_topics, open_sink, open_source, parse_url

__all__ = [
    "ChannelSink",
    "OneOrderSource",
    "RecordSink",
    "Sink",
    "Source",
    "TransactionalSink",
    "TransportUrl",
    "list_topics",
    "open_sink",
    "open_source",
    "parse_url",
]
