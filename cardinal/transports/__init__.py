"""How records travel: sources and sinks, chosen by URL scheme."""

from .base import Sink, Source
from .url import TransportUrl, open_sink, open_source, parse_url

__all__ = ["Sink", "Source", "TransportUrl", "open_sink", "open_source", "parse_url"]
