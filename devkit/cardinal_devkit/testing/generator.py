"""Chains of generic payloads for tests of handlers, consumers and producers.

    chain = ChainGenerator(seed=7)
    for move in chain.moves(blocks=40):           # a script with reorgs, see cardinal_devkit.testing.forks
        for payload in move.mined: ...
    chain.fork("1a 2a 3a | 1a 2b 3b 4b")          # or a shape of your own

Rules:

1. Equal seeds and arguments give equal payloads.
2. Hashes are readable: block ``3a`` has its name at the end of 32 bytes, and ``block_name`` returns it. Chains of two
   seeds have the same hashes for other contents, so they do not belong on the same topics.
3. Payloads cover every kind of content: values inside the Batch, values and deletes that are counted under prefixes
   (with a slash at the end or without, one prefix beginning with another, several from one expression), sub batches,
   empty values, paths that are not UTF-8, no content.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from cardinal.apps import Application
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import Payload, SubBatch
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.protocols.streams.types import HASH_SIZE, BlockRef, Routed

from .forks import ForkSettings, PlannedBlock, fork_script

TOPIC: Final = "chain"
SCHEMA: Final[Mapping[str, str]] = MappingProxyType(
    {
        r"b/[0-9a-z]+/item/": f"{TOPIC}-items",
        r"b/[0-9a-z]+/group/[0-9]/": f"{TOPIC}-groups",
        r"b/[0-9a-z]+/n(?!n)": f"{TOPIC}-notes",
        r"b/[0-9a-z]+/nn": f"{TOPIC}-items",
        r"state/": f"{TOPIC}-state",
    }
)
"""Expression to topic: one with a slash, one with many prefixes, one prefix beginning with another, a sub batch's."""

_NAME: Final = re.compile(r"([0-9]+)[a-z]+")
_LONGEST: Final = 200


class ChainMove(NamedTuple):
    """One step of a chain.

    Attributes:
        mined: the new payloads, parents first; the last one leads.
        removed: the blocks that left the chain, newest first.
        added: the blocks that joined it, oldest first; after a return, orphans and then ``mined``.

    """

    mined: tuple[Payload, ...]
    removed: tuple[BlockRef, ...]
    added: tuple[BlockRef, ...]


def block_hash(name: str) -> bytes:
    """The hash of block ``3a``: its name at the end of 32 bytes. The empty name is the parent of block 0."""
    raw = name.encode()
    if len(raw) > HASH_SIZE:
        raise ConfigurationError(f"a block's name has at most {HASH_SIZE} characters: {name!r}", setting="name")
    return raw.rjust(HASH_SIZE, b"\0")


def block_name(of: bytes) -> str:
    """The name of the block with this hash."""
    return of.lstrip(b"\0").decode()


def block_number(name: str) -> int:
    """The number of a block with this name."""
    if (match := _NAME.fullmatch(name)) is None:
        raise ConfigurationError(f"a block's name is its number and letters, such as 3a, not {name!r}", setting="name")
    return int(match[1])


def as_received(payload: Payload) -> Payload:
    """The payload as a consumer of all topics receives it: content of sub batches is in the updates and deletes."""
    updates, deletes = dict(payload.updates), set(payload.deletes)
    for sub_batch in payload.sub_batches.values():
        if sub_batch is not None:
            updates |= sub_batch.updates
            deletes |= sub_batch.deletes
    return replace(payload, updates=updates, deletes=frozenset(deletes), sub_batches={})


class ChainGenerator:
    """Generator of payloads.

    Arguments:
        seed: any integer.
        size: the most entries of each kind in a block; 0 makes empty blocks.

    """

    def __init__(self, seed: int = 0, *, size: int = 4) -> None:
        self.seed = seed
        self.size = size

    @property
    def application(self) -> Application:
        """The application of these payloads, for `Producer`, `Consumer` and `MemoryBroker`."""
        return Application(name="generated", chain=f"generated:{self.seed}", default_topic=TOPIC, topics=dict(SCHEMA))

    def block(self, name: str, parent: str, weight: int | None = None) -> Payload:
        """Block ``name`` on block ``parent``.

        Arguments:
            name: number and letters, such as ``3a``; letters make siblings, and other contents.
            parent: the parent's name, empty for a block 0.
            weight: default: the number.

        """
        source = random.Random(f"{self.seed}/{name}")  # noqa: S311 - repeatable, no secret
        number = block_number(name)
        updates, deletes = self._entries(source, name)
        return Payload(
            number,
            block_hash(name),
            block_hash(parent),
            number if weight is None else weight,
            updates,
            deletes,
            self._sub_batches(source, name),
        )

    def fork(self, shape: str, *, weights: Mapping[str, int] | None = None, root: str = "0a") -> list[Payload]:
        """Payloads of a shape such as ``"1a 2a 3a | 1a 2b 3b 4b"``, each once, parents first.

        Arguments:
            shape: paths, parted by ``|``; each begins on the root or with a block that a path before it had.
            weights: by name; default: the number.
            root: the name of the parent of the first path. It is not among the payloads.

        """
        parents: dict[str, str] = {}
        for path in shape.split("|"):
            parent = root
            for name in path.split():
                parent, had = name, parents.setdefault(name, parent)
                if block_number(had) + 1 != block_number(name):
                    raise ConfigurationError(f"block {name} cannot stand on block {had}", setting="shape")
        return [self.block(name, parent, (weights or {}).get(name)) for name, parent in parents.items()]

    def moves(
        self, blocks: int = 32, *, reorg_rate: float = 0.2, max_depth: int = 5, difficulty: int = 1000
    ) -> list[ChainMove]:
        """A complete script; see :class:`~cardinal_devkit.testing.forks.ForkSettings` for its arguments."""
        names: dict[str, BlockRef] = {}
        moves = []
        for move in fork_script(ForkSettings(self.seed, blocks, reorg_rate, max_depth, difficulty)):
            mined = tuple(self._planned(plan) for plan in move.mined)
            names |= {block_name(payload.hash): payload.ref for payload in mined}
            removed, added = (tuple(names[name] for name in part) for part in (move.removed, move.added))
            moves.append(ChainMove(mined, removed, added))
        return moves

    def payloads(
        self, blocks: int = 32, *, reorg_rate: float = 0.2, max_depth: int = 5, difficulty: int = 1000
    ) -> list[Payload]:
        """The payloads of :meth:`moves`, in the order in which they are mined."""
        moves = self.moves(blocks, reorg_rate=reorg_rate, max_depth=max_depth, difficulty=difficulty)
        return [payload for move in moves for payload in move.mined]

    def messages(self, payload: Payload) -> list[Routed]:
        """The payload's messages on this chain's topics, the Batch last."""
        return split(payload, SCHEMA, TOPIC)

    def _planned(self, plan: PlannedBlock) -> Payload:
        return self.block(plan.name, plan.parent, plan.weight)

    def _entries(self, source: random.Random, name: str) -> tuple[dict[str, bytes], frozenset[str]]:
        if not self.size or source.randrange(12) == 0:
            return {}, frozenset()
        root = f"b/{name}"
        paths = [f"{root}/head", "tip"]
        paths += [f"{root}/item/{index}" for index in range(self._count(source))]
        paths += [f"{root}/group/{index % 3}/{index}" for index in range(self._count(source))]
        paths += [f"{root}/n{index}" for index in range(self._count(source))]
        paths += [f"{root}/nn{index}" for index in range(self._count(source))]
        if source.randrange(4) == 0:
            paths += [f"{root}/item/\udcff", "raw/\udc80"]
        updates = {path: self._value(source) for path in paths}
        deletes = {f"{root}/item/old{index}" for index in range(source.randint(0, 2))}
        deletes |= {f"kept/{source.randrange(8)}/" for _ in range(source.randint(0, 2))}
        return updates, frozenset(deletes)

    def _sub_batches(self, source: random.Random, name: str) -> dict[bytes, SubBatch | None]:
        """No sub batch, one on a topic of its own, or a second one on the default topic."""
        if not self.size:
            return {}
        paths = ("state/", "ledger")[: source.choice((0, 1, 1, 2))]
        return {
            block_hash(f"{index + 1}{name}"): SubBatch(
                path,
                {f"{path}{source.randrange(20)}": self._value(source) for _ in range(self._count(source))},
                frozenset(f"{path}gone{at}/" for at in range(source.randint(0, 2))),
            )
            for index, path in enumerate(paths)
        }

    def _count(self, source: random.Random) -> int:
        return source.randint(0, self.size)

    def _value(self, source: random.Random) -> bytes:
        """A value of any length, often none."""
        return source.randbytes(source.choice((0, 1, 32, source.randrange(_LONGEST))))
