"""Content of a block: a producer's input and a consumer's output.

Rules:

1. Within a block, deletes (by prefix) apply before updates.
2. A producer may send sub batches separately; after reassembly their content is part of ``updates`` and
   ``deletes`` and ``sub_batches`` is empty.
3. ``MissingPayload`` is a block whose hash is known and whose content can no longer be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from cardinal.texts import Count, Readable

from .types import BlockRef, path_bytes, path_text

_NOTHING: Mapping[str, bytes] = MappingProxyType({})


class PathMap(Mapping[str, bytes]):
    """A read-only view of a dict with byte paths as a mapping with text paths; nothing is copied.

    Arguments:
        raw: the dict, or a function that makes it on the first access: few readers look into every block.

    """

    __slots__ = ("_make", "_raw")

    def __init__(self, raw: dict[bytes, bytes] | Callable[[], dict[bytes, bytes]]) -> None:
        self._raw: dict[bytes, bytes] = raw if isinstance(raw, dict) else {}
        self._make = None if isinstance(raw, dict) else raw

    def __reduce__(self) -> tuple[type[PathMap], tuple[dict[bytes, bytes]]]:
        return PathMap, (self.raw,)

    @property
    def raw(self) -> dict[bytes, bytes]:
        """The underlying dict, for code that wants bytes."""
        make = self._make  # in a local name: another thread may be here too, and they make equal dicts
        if make is not None:
            self._raw = make()
            self._make = None
        return self._raw

    def __getitem__(self, path: str) -> bytes:
        """Return the value of ``path``; KeyError where there is none."""
        try:
            return self.raw[path_bytes(path)]
        except UnicodeEncodeError:
            raise KeyError(path) from None

    def __iter__(self) -> Iterator[str]:
        """Iterate over the paths in the order of ``raw``."""
        return map(path_text, self.raw)

    def __len__(self) -> int:
        """Return the number of paths."""
        return len(self.raw)

    def __repr__(self) -> str:
        """Name the size only: values may be megabytes."""
        return f"PathMap({Count(len(self.raw), 'path')})"


@dataclass(frozen=True, slots=True, repr=False)
class SubBatch(Readable):
    """A part of a block that is announced by id and may be sent later. ``path`` chooses its topic."""

    path: str
    updates: Mapping[str, bytes] = field(default_factory=lambda: _NOTHING)
    deletes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, repr=False)
class Payload(Readable):
    """A block and what it changes.

    Attributes:
        number: block number, 0 or more.
        hash: 32 bytes, unique to this payload.
        parent: the hash of the block before it, 32 bytes.
        weight: the weight that fork choice compares, 0 or more; equals ``number`` where a chain has none.
        updates: path to value.
        deletes: prefixes whose records are deleted before the updates are applied.
        sub_batches: id (32 bytes, not zero) to content. Producers only: None announces a sub batch whose
            content will follow. Empty after reassembly.

    """

    number: int
    hash: bytes
    parent: bytes
    weight: int
    updates: Mapping[str, bytes] = field(default_factory=lambda: _NOTHING)
    deletes: frozenset[str] = frozenset()
    sub_batches: Mapping[bytes, SubBatch | None] = field(default_factory=dict)

    @property
    def ref(self) -> BlockRef:
        """This block's number and hash."""
        return BlockRef(self.number, self.hash)


@dataclass(frozen=True, slots=True, repr=False)
class MissingPayload(Readable):
    """A block that was delivered or removed, whose content can no longer be read."""

    number: int
    hash: bytes

    @property
    def ref(self) -> BlockRef:
        """This block's number and hash."""
        return BlockRef(self.number, self.hash)


AnyPayload: TypeAlias = Payload | MissingPayload
