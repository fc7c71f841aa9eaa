"""Blob application: a block is a number, a hash, a parent, and values under arbitrary keys.

    app = apps.get("blob", chain_id=7)
    with Producer(url, app, producer_id="one") as producer:
        producer.add(payload(Blob(1, hash, parent, {"any/key at all": b"value"})))
    for update in Consumer(url, app):
        for block in update.added:
            read(block).keys

Rules:

1. The path of a key is ``k/<block hash in hex>/<key>``, on a topic of its own. A key is any text (bytes that are not
   UTF-8 by ``surrogateescape``).
2. The heaviest chain wins; without a weight of its own a block weighs its number.
3. ``payload(read(payload)) == payload``.

A starting point for ledgers other than Ethereum's; the layers below are independent of any chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from cardinal.errors import ApplicationError, ConfigurationError
from cardinal.protocols.streams.payload import Payload
from cardinal.texts import Readable

from .base import REORG_THRESHOLD, Application

__all__ = ["Blob", "application", "payload", "read"]

_ROOT: Final = "k/"


@dataclass(frozen=True, slots=True, repr=False)
class Blob(Readable):
    """Block. Hashes are 32 bytes; without a ``weight`` it weighs its number."""

    number: int
    hash: bytes
    parent: bytes
    keys: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    weight: int | None = None


def application(*, chain_id: int = 1, topic: str | None = None, reorg_threshold: int = REORG_THRESHOLD) -> Application:
    """Application of a chain of blobs.

    Arguments:
        chain_id: number that distinguishes this chain on the same server, 0 or more.
        topic: default topic, and prefix of the other; default ``blob-<chain id>``.
        reorg_threshold: in blocks.

    Raises:
        ConfigurationError: the chain id or topic cannot be used.

    """
    if chain_id < 0:
        raise ConfigurationError(f"a chain id is 0 or more, not {chain_id}", setting="chain_id")
    base = topic or f"blob-{chain_id}"
    keys = f"{_ROOT}[0-9a-f]{{64}}/"
    return Application(
        name="blob",
        chain=f"blob:{chain_id}",
        default_topic=base,
        topics={keys: f"{base}-keys"},
        sub_batches=(),
        names={"keys": (keys,)},
        reorg_threshold=reorg_threshold,
    )


def payload(block: Blob) -> Payload:
    """Make the payload of a block."""
    root = f"{_ROOT}{block.hash.hex()}/"
    updates = {root + key: value for key, value in block.keys.items()}
    weight = block.number if block.weight is None else block.weight
    return Payload(block.number, block.hash, block.parent, weight, updates)


def read(published: Payload) -> Blob:
    """Read a block from its payload; ApplicationError for anything but the block's own keys."""
    root = f"{_ROOT}{published.hash.hex()}/"
    keys: dict[str, bytes] = {}
    for path, value in published.updates.items():
        if not path.startswith(root):
            raise ApplicationError(f"block {published.number} has {path!r}, which is not one of its keys", path=path)
        keys[path.removeprefix(root)] = value
    if published.deletes or published.sub_batches:
        raise ApplicationError(f"block {published.number} has deletes or sub batches besides keys below {root}")
    return Blob(published.number, published.hash, published.parent, keys, published.weight)
