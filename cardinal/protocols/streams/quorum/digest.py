"""Vote: a producer's complete copy of a block, as a digest that can be compared with other producers' copies.

Rules:

1. Two producers agree on a block where their digests are equal: the same Batch (number, weight, parent, entries) and
   the same content for a consumer, for any order of maps on the wire and any division of sub batches.
   Values at volatile paths are left out, the paths are not.
2. A block that exceeds the bound on held completed blocks is agreed on by its header and content alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack
from typing import cast

from cardinal.protocols.streams.assembly.divergence import Volatile
from cardinal.protocols.streams.assembly.window import RecentBlock
from cardinal.protocols.streams.events import Completed
from cardinal.protocols.streams.payload import PathMap, Payload
from cardinal.protocols.streams.types import Partition, path_bytes


@dataclass(frozen=True, slots=True)
class Vote:
    """A producer's complete copy of a block.

    Attributes:
        digest: of its content.
        number, parent, weight: of its Batch.
        positions, published_ms: see :class:`~.events.Completed`.

    """

    digest: bytes
    number: int
    parent: bytes
    weight: int
    positions: Mapping[Partition, int]
    published_ms: int


def vote_of(event: Completed, recent: RecentBlock, volatile: Volatile) -> Vote:
    """The vote for a producer's complete copy, of which these messages are held."""
    block = cast("Payload", event.payload)
    digest = blake2b(repr((block.number, block.parent, block.weight)).encode(), digest_size=32)
    if recent.candidate is not None:
        entries = sorted(recent.candidate.fields.entries.items())
        left_out = volatile.among([path for path, _ in entries])
        for path, entry in entries:
            value = b"" if path in left_out else entry.value
            _add(digest, [path, value, b"%d %d" % (entry.count, entry.delete), entry.sub_batch])
    values = cast("PathMap", block.updates).raw
    paths = sorted(values)
    left_out = volatile.among(paths)
    _add(digest, sorted(map(path_bytes, block.deletes)))
    _add(digest, paths)
    _add(digest, [b"" if path in left_out else values[path] for path in paths])
    return Vote(digest.digest(), block.number, block.parent, block.weight, event.positions, event.published_ms)


def _add(found: blake2b, pieces: Sequence[bytes]) -> None:
    """Add pieces of any length so that no two lists of pieces give the same bytes."""
    found.update(pack(f"<{len(pieces) + 1}Q", len(pieces), *map(len, pieces)))
    found.update(b"".join(pieces))
