"""The development chain as a feed: no node, no port; every block of the script in the order in which it is built.

A node's feed may miss a branch that came and went between two looks; this one misses none, so that the same URL always
publishes the same blocks. The pace is the URL's ``rate``; without it blocks come as fast as they are taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from urllib.parse import parse_qsl, urlsplit

from cardinal.apps.evm import payload_from_rpc
from cardinal.errors import ConfigurationError, WrongChainError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import BlockRef

from .blocks import DevBlock
from .chain import CHAIN_ID, DevChain, DevSettings
from .script import ScriptSettings

FORM = "dev://?seed=1&blocks=48&reorg-rate=0.15&rate=4"


class DevFeed:
    """See :class:`cardinal_connectors.BlockFeed`. ``rate`` is steps a second, 0 for as fast as possible."""

    def __init__(self, settings: DevSettings, rate: float = 0.0) -> None:
        self._settings = settings
        self._rate = rate

    async def chain_id(self) -> int:
        """The chain's id."""
        return self._settings.chain_id

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        """Every block of the script from ``start`` on that is not published; ends with the script, or at ``until``."""
        chain = DevChain(self._settings)
        known = {ref.hash for ref in published}
        lowest = published[0].number if published else start or 0
        built: Sequence[DevBlock] = chain.canonical()
        found = not published
        while built:
            for block in built:
                payload = self._payload(block)
                found = found or payload.hash in known
                if payload.number >= lowest and payload.hash not in known:
                    yield payload
                    known.add(payload.hash)
            if until is not None and chain.head() >= until:
                break
            if self._rate:
                await asyncio.sleep(1 / self._rate)
            built = chain.step()
        if not found:
            raise WrongChainError(
                f"none of the {len(published)} newest published blocks is on this development chain; "
                "it was published from another seed or with other options: publish to other topics"
            )

    def _payload(self, block: DevBlock) -> Payload:
        return payload_from_rpc(block.block, block.receipts, chain_id=self._settings.chain_id)

    async def close(self) -> None:
        """There is nothing to release."""


def open_feed(url: str, *, chain_id: int | None = None) -> DevFeed:
    """The feed for ``dev://?seed=…&blocks=…&reorg-rate=…&rate=…``; every option has a default.

    Options: ``seed``, ``blocks`` (the last block's number), ``reorg-rate`` (0 to 0.5), ``max-depth``, ``rate`` (steps a
    second), ``transactions`` (the most in a block), ``chain-id``.

    Raises:
        ConfigurationError: an option that is unknown or out of its range.

    """
    parts = urlsplit(url)
    if parts.netloc or parts.path.strip("/"):
        raise ConfigurationError(f"a development chain has no host or path: {FORM}", setting="from")
    options = {"chain-id": str(chain_id or CHAIN_ID)}
    options.update(parse_qsl(parts.query, keep_blank_values=True))
    known = {"seed", "blocks", "reorg-rate", "max-depth", "rate", "transactions", "chain-id"}
    if unknown := sorted(options.keys() - known):
        raise ConfigurationError(
            f"{unknown[0]!r} is no option of a development chain; there are {', '.join(sorted(known))}", setting="from"
        )
    try:
        defaults = ScriptSettings()
        script = ScriptSettings(
            seed=int(options.get("seed", defaults.seed)),
            blocks=int(options.get("blocks", defaults.blocks)),
            reorg_rate=float(options.get("reorg-rate", defaults.reorg_rate)),
            max_depth=int(options.get("max-depth", defaults.max_depth)),
        )
        settings = DevSettings(script, int(options["chain-id"]), int(options.get("transactions", 6)))
        rate = float(options.get("rate", 0))
    except ValueError:
        raise ConfigurationError(f"an option of this development chain is no number: {FORM}", setting="from") from None
    if rate < 0 or settings.transactions < 1 or settings.chain_id < 1:
        raise ConfigurationError("rate must be 0 or more, transactions and chain-id 1 or more: " + FORM, setting="from")
    return DevFeed(settings, rate)
