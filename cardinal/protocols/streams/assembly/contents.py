"""What a completed block is: its values, or its header beside digests of what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Contents(Enum):
    """What the values of BatchMsg and SubBatchMsg records are."""

    VALUES = "values"
    """The values themselves: a completed block is a :class:`~.payload.Payload`."""

    DIGESTS = "digests"
    """Digests (see :mod:`.digests`): a completed block is a :class:`HeaderOnly`, its content stays where it is."""


@dataclass(frozen=True, slots=True)
class HeaderOnly:
    """A complete block without its content; ``marks`` holds the values of the Batch's own entries."""

    number: int
    hash: bytes
    parent: bytes
    weight: int
    marks: Mapping[bytes, bytes]
