"""A development chain: deterministic, forking, of well-formed Ethereum blocks; for demonstrations, tests and handlers.

``dev://`` is a feed of its own; ``cardinal dev-node`` serves the same chain over JSON-RPC to any number of processes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cardinal.errors import MissingExtraError

from .settings import DevSettings, settings_from_url

if TYPE_CHECKING:
    from cardinal.config.url import NodeUrl
    from cardinal.feeds import BlockFeed

    from .chain import DevChain
    from .feed import DevFeed
    from .node import DevNode

__all__ = ["DevChain", "DevFeed", "DevNode", "DevSettings", "open_feed"]

_HOMES = {"DevChain": "chain", "DevFeed": "feed", "DevNode": "node"}


def __getattr__(name: str) -> object:
    """Import names that need the extra ``evm`` on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def open_feed(url: str | NodeUrl, *, chain_id: int | None = None) -> BlockFeed:
    """Open the feed for ``dev://?seed=…&blocks=…&reorg-rate=…&rate=…``; every option has a default.

    Arguments:
        url: see :func:`.settings.settings_from_url` for the options.
        chain_id: the chain's id where the URL names none; another one than the URL's is refused.

    Raises:
        ConfigurationError: an option that is unknown, no number, or out of its bounds.
        WrongChainError: the URL names another chain id.
        MissingExtraError: the extra ``evm`` is not installed.

    """
    settings, rate = settings_from_url(url, chain_id=chain_id)
    try:
        from .feed import DevFeed  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as absent:
        raise MissingExtraError("a development chain", "evm") from absent
    return DevFeed(settings, rate=rate)
