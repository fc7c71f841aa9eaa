"""Seeded chain with forks: blocks that have names, the final chain, and the updates that a consumer delivers.

    chain = Chain(seed=7, blocks=12)
    chain.payloads["3b"]                 # the second block of number 3
    for update in chain.updates(): ...   # ChainUpdates with their cursors, as `cardinal.Consumer` yields them

Equal arguments make equal chains. Names are a number and a letter: ``3a`` is the first block of number 3, ``3b`` the
second.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from cardinal import apps
from cardinal.errors import ConfigurationError
from cardinal.feeds import open_feed
from cardinal.protocols.streams.payload import Payload
from cardinal_devkit.testing.forks import letters
from cardinal_devkit.testing.generator import ChainGenerator, as_received

from .feed import Feed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardinal.apps import Application
    from cardinal.protocols.streams.events import ChainUpdate

APPS: Final = ("generated", "evm")
_REORG_RATE: Final = 0.3
_MAX_DEPTH: Final = 4
_TRANSACTIONS: Final = 4


class Chain:
    """Chain of a seed.

    Arguments:
        seed: any integer.
        blocks: number of the last block.
        app: ``generated`` for payloads of keys and values, ``evm`` for blocks that `cardinal_ethereum.decode` reads
            (the extra ``evm``).

    Attributes:
        application: the application of the payloads.
        payloads: every block by name, in the order in which they are mined.

    Raises:
        ConfigurationError: an unknown application.
        MissingExtraError: the extra ``evm`` is not installed.

    """

    def __init__(self, seed: int = 0, blocks: int = 12, *, app: str = "generated") -> None:
        if app not in APPS:
            raise ConfigurationError(f"there is no application {app!r}: choose one of {', '.join(APPS)}", setting="app")
        self.seed, self.blocks, self.app = seed, blocks, app
        self.application, mined = _evm(seed, blocks) if app == "evm" else _generated(seed, blocks)
        self.payloads: dict[str, Payload] = {}
        self._names: dict[bytes, str] = {}
        siblings = Counter[int]()
        for payload in mined:
            siblings[payload.number] += 1
            name = f"{payload.number}{letters(siblings[payload.number])}"
            self.payloads[name] = payload
            self._names[payload.hash] = name

    def name(self, block_hash: bytes) -> str:
        """The name of a block of this chain."""
        return self._names[block_hash]

    def parent(self, name: str) -> str | None:
        """The name of a block's parent; None for block 0."""
        return self._names.get(self.payloads[name].parent)

    def heaviest(self, names: Iterable[str] | None = None) -> tuple[str, ...]:
        """The heaviest of these blocks (default: all) and its ancestors, block 0 first; empty where two are equal."""
        names = list(self.payloads if names is None else names)
        weights = Counter(self.payloads[name].weight for name in names)
        if not names or weights[max(weights)] > 1:
            return ()
        name: str | None = max(names, key=lambda one: self.payloads[one].weight)
        chain = []
        while name is not None:
            chain.append(name)
            name = self.parent(name)
        return tuple(reversed(chain))

    def updates(self) -> list[ChainUpdate]:
        """The updates of a consumer that reads the blocks one by one, as they are mined."""
        feed = Feed(self.application)
        found: list[ChainUpdate] = []
        for payload in self.payloads.values():
            feed.publish(payload)
            found += feed.updates()
        return found


def _generated(seed: int, blocks: int) -> tuple[Application, list[Payload]]:
    generator = ChainGenerator(seed)
    payloads = generator.payloads(blocks, reorg_rate=_REORG_RATE, max_depth=_MAX_DEPTH)
    return generator.application, [as_received(payload) for payload in payloads]


def _evm(seed: int, blocks: int) -> tuple[Application, list[Payload]]:
    options = f"seed={seed}&blocks={blocks}&reorg-rate={_REORG_RATE}&max-depth={_MAX_DEPTH}"
    feed = open_feed(f"dev://?{options}&transactions={_TRANSACTIONS}")

    async def mined() -> tuple[int, list[Payload]]:
        return await feed.chain_id(), [payload async for payload in feed.follow()]

    chain_id, payloads = asyncio.run(mined())
    presets: dict[str, Any] = {"chain_id": chain_id}
    return apps.get("evm", **presets), payloads
