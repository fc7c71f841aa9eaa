"""Counts of the links of a node, and the words for their ends."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final

from cardinal.server.log_fields import SENTENCE

if TYPE_CHECKING:
    import asyncio

LOG: Final = logging.getLogger("cardinal.ingest")
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 35_000}
"""A peer whose machine is gone is noticed after 35 s: a link may be silent for as long as there are no blocks."""


class PeerCounts:
    """Counts of all links.

    Attributes:
        connected: peers from which bodies are fetched now.
        clients: peers that are served now.
        fetched, served: bodies.
        refusals: ends of links by their reason: a rule of the protocol that the peer broke, by its name there, or
            ``crowded``, ``silent``, ``slow``, ``unlinked``, ``undecided``.

    """

    def __init__(self) -> None:
        self.connected = 0
        self.clients = 0
        self.fetched = 0
        self.served = 0
        self.refusals: Counter[str] = Counter()

    def refuse(self, reason: str, peer: str, sentence: str) -> None:
        """A link is ended by this node."""
        self.refusals[reason] += 1
        LOG.warning(SENTENCE, {"kind": reason, "peer": peer, "message": sentence})


def notice_loss(writer: asyncio.StreamWriter) -> None:
    """Have the system probe a silent connection."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
