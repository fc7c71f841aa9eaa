"""What sessions have done, for all of a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .taking import Taking


@dataclass(slots=True)
class Counts:
    """See the module.

    Attributes:
        bytes, frames: of records, sent.
        slow: clients that were closed because they took nothing; ``refused``: that broke the protocol;
            ``unauthorized``: connections that had no right token.
        clients: what those take that are connected now.

    """

    bytes: int = 0
    frames: int = 0
    slow: int = 0
    refused: int = 0
    unauthorized: int = 0
    clients: set[Taking] = field(default_factory=set)
