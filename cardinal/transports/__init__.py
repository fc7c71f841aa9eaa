"""Sources and sinks of records, chosen by URL scheme."""

from cardinal.config.url import TransportUrl, parse_url

from .base import ChannelSink, OneOrderSource, RecordSink, Sink, Source, TransactionalSink
from .registry import list_topics, open_sink, open_source

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
