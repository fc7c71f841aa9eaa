"""Items application: a block is a number and items, each stored byte for byte.

    app = apps.get("items", chain_id=7)
    for update in Consumer(url, app):
        for block in update.added:
            read(block).items

Rules:

1. An item's path is ``i/<block hash in hex>/<index, eight hexadecimal digits>``, on a topic of its own. An item of more
   than 900,000 bytes travels in parts instead: ``<that path>/<part, four hexadecimal digits>``, each of 900,000 bytes
   but the last. The size is no option: copies of redundant producers are equal.
2. Blocks are chained by number: a block's hash is its number as 32 bytes, its parent's hash that of the number before,
   and it weighs its number. There are no forks.
3. ``payload(read(payload)) == payload``.

For block streams whose items mean something to others only, such as Hiero's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cardinal.apps.base import REORG_THRESHOLD, Application
from cardinal.errors import ApplicationError, ConfigurationError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import HASH_SIZE
from cardinal.texts import Readable

__all__ = ["Block", "application", "block_hash", "payload", "read"]

PART_BYTES: Final = 900_000
"""Bytes of an item in one message: with its key and headers it fits the limit of a topic's default, 1 MB."""
_ROOT: Final = "i/"
_ITEM_PATH: Final = len(_ROOT) + 2 * HASH_SIZE + len("/00000000")


@dataclass(frozen=True, slots=True, repr=False)
class Block(Readable):
    """Items of a number."""

    number: int
    items: tuple[bytes, ...]


def application(*, chain_id: int = 1, topic: str | None = None, reorg_threshold: int = REORG_THRESHOLD) -> Application:
    """Application of a chain of items.

    Arguments:
        chain_id: number that distinguishes this chain on the same server, 0 or more.
        topic: default topic, and prefix of the other; default ``items-<chain id>``.
        reorg_threshold: in blocks.

    Raises:
        ConfigurationError: the chain id or topic cannot be used.

    """
    if chain_id < 0:
        raise ConfigurationError(f"a chain id is 0 or more, not {chain_id}", setting="chain_id")
    base = topic or f"items-{chain_id}"
    items = f"{_ROOT}[0-9a-f]{{64}}/"
    return Application(
        name="items",
        chain=f"items:{chain_id}",
        default_topic=base,
        topics={items: f"{base}-items"},
        sub_batches=(),
        names={"items": (items,)},
        reorg_threshold=reorg_threshold,
    )


def block_hash(number: int) -> bytes:
    """The hash of the block with this number; -1 is the parent of the first."""
    return (number % (1 << 8 * HASH_SIZE)).to_bytes(HASH_SIZE, "big")


def payload(block: Block) -> Payload:
    """Make the payload of a block."""
    root = f"{_ROOT}{block_hash(block.number).hex()}/"
    updates: dict[str, bytes] = {}
    for index, item in enumerate(block.items):
        path = f"{root}{index:08x}"
        if len(item) <= PART_BYTES:
            updates[path] = item
        else:
            parts = range(0, len(item), PART_BYTES)
            updates |= {f"{path}/{part:04x}": item[at : at + PART_BYTES] for part, at in enumerate(parts)}
    return Payload(block.number, block_hash(block.number), block_hash(block.number - 1), block.number, updates)


def read(published: Payload) -> Block:
    """Read a block from its payload; ApplicationError for anything but its items, from the first to the last."""
    parts: dict[str, list[bytes]] = {}
    for path, value in sorted(published.updates.items()):
        parts.setdefault(path[:_ITEM_PATH], []).append(value)
    items = (values[0] if len(values) == 1 else b"".join(values) for values in parts.values())
    block = Block(published.number, tuple(items))
    if payload(block) != published:  # also where a part is absent, short before the last, or an item whole and in parts
        raise ApplicationError(f"block {published.number} is no block of items, from the first to the last")
    return block
