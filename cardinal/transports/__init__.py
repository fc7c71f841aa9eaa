"""How records travel: sources and sinks, chosen by URL scheme."""

from .base import Sink, Source
from .url import TransportUrl, list_topics, open_sink, open_source, parse_url

__all__ = ["Sink", "Source", "TransportUrl", "list_topics", "open_sink", "open_source", "parse_url"]
