"""A development chain: deterministic, forking, with well-formed Ethereum blocks.

``dev://`` is a feed of its own; ``cardinal node`` serves the same chain over JSON-RPC to several processes.
"""

from .chain import DevChain, DevSettings
from .feed import DevFeed, open_feed
from .script import ScriptSettings

__all__ = ["DevChain", "DevFeed", "DevSettings", "ScriptSettings", "open_feed"]
