"""Acceptor of the mesh: all incoming links of a node.

Rules:

1. A newer verified session of a peer replaces its older one. The host discards messages of a session that was replaced,
   processed or not (MD5); those of one that merely ended may still be processed.
2. Handshakes in flight are bounded; above the bound the oldest one is refused (BUSY): a member's is over in
   milliseconds, and a stranger who connects and says nothing keeps nobody out.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeAlias

from .incoming import IncomingLink
from .members import Identity
from .settings import MeshSettings
from .types import Begun, Effect, LinkState, Reason, Refusal

Effects: TypeAlias = list[tuple[Hashable, Effect]]
"""Connections, and what to do with each."""
_STRANGERS_MOST: Final = 64
"""Handshakes of whoever connects: that many have to come within one of a member's to end it."""


class Acceptor:
    """Incoming links of a node, by connection.

    Args:
        identity: of this node.
        settings: times and bounds.

    Attributes:
        links: the open ones, by the host's name for their connection, which is never reused.

    """

    def __init__(self, identity: Identity, settings: MeshSettings | None = None) -> None:
        self.links: dict[Hashable, IncomingLink] = {}
        self._identity = identity
        self._settings = settings or MeshSettings()
        self._pending_most = 2 * len(identity.cluster.members) + _STRANGERS_MOST
        self._sessions: dict[str, Hashable] = {}

    def session(self, peer: str) -> Hashable | None:
        """Connection of the peer's newest session, open or not: messages of any other one are discarded."""
        return self._sessions.get(peer)

    def accept(self, connection: Hashable, nonce: bytes, now: float) -> Effects:
        """A peer opened a connection; ``nonce`` is 16 random bytes."""
        pending = [name for name, link in self.links.items() if link.state is LinkState.CONNECTING]
        self.links[connection] = IncomingLink(self._identity, nonce, now, self._settings)
        if len(pending) < self._pending_most:
            return []
        refused = self.links[pending[0]].refuse(Refusal.BUSY, f"{len(pending)} handshakes", now)
        return self._done(pending[0], refused, now)

    def receive(self, connection: Hashable, data: bytes, now: float) -> Effects:
        """Bytes of a peer arrived. Those of a connection whose link is over are ignored."""
        link = self.links.get(connection)
        return [] if link is None else self._done(connection, link.receive(data, now), now)

    def committed(self, connection: Hashable, seq: int, now: float) -> Effects:
        """The steps of a connection's messages up to this number are committed."""
        link = self.links.get(connection)
        return [] if link is None else self._done(connection, link.committed(seq, now), now)

    def lost(self, connection: Hashable, detail: str, now: float) -> Effects:
        """A connection is over."""
        link = self.links.get(connection)
        return [] if link is None else self._done(connection, link.lost(detail, now), now)

    def tick(self, now: float) -> Effects:
        """Time passed."""
        return [each for name, link in list(self.links.items()) for each in self._done(name, link.tick(now), now)]

    def close(self, now: float) -> Effects:
        """End all links: this node cannot commit, or stops."""
        links = list(self.links.items())
        return [each for name, link in links for each in self._done(name, link.close(Reason.CLOSED, now), now)]

    def _done(self, connection: Hashable, effects: list[Effect], now: float) -> Effects:
        """The effects of a link, and those that they have on others."""
        done: Effects = []
        for effect in effects:
            if isinstance(effect, Begun):
                older = self._sessions.get(effect.peer)
                self._sessions[effect.peer] = connection
                if older in self.links:
                    done += ((older, each) for each in self.links.pop(older).close(Reason.REPLACED, now))
            done.append((connection, effect))
        if self.links[connection].state is LinkState.DISCONNECTED:
            del self.links[connection]
        return done
