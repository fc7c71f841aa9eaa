"""Candidates and their signatures: what may become the next batch.

Rules:

1. Candidates of the next number are stored; those of decided numbers are deleted, but for the last one, whose own
   signature the snapshot repeats.
2. Signatures of others are remembered only, and cleared with the session that brought them.
3. Any number of candidates of a number may be signed: a signature promises durability, not preference.
"""

from __future__ import annotations

from collections import defaultdict

from .types import Header


class Candidates:
    """Candidates by batch hash, and who signed them."""

    __slots__ = ("_limit", "_senders", "_signatures", "headers", "own")

    def __init__(self, limit: int) -> None:
        self.headers: dict[bytes, Header] = {}
        self.own: dict[bytes, bytes] = {}
        """Own signatures by batch hash."""
        self._signatures: defaultdict[tuple[int, bytes], dict[str, bytes]] = defaultdict(dict)
        self._senders: defaultdict[str, dict[bytes, None]] = defaultdict(dict)
        self._limit = limit

    def accept(self, sender: str, header: Header) -> bool:
        """Count a candidate of a sender; False above its limit."""
        sent = self._senders[sender]
        if header.hash not in sent and len(sent) >= self._limit:
            return False
        sent[header.hash] = None
        return True

    def store(self, header: Header) -> None:
        """Remember a candidate that is stored."""
        self.headers[header.hash] = header

    def sign(self, member: str, header: Header, signature: bytes) -> None:
        """Remember the own signature."""
        self.own[header.hash] = signature
        self.signed(member, header.num, header.hash, signature)

    def signed(self, member: str, num: int, batch: bytes, signature: bytes) -> None:
        """Remember a member's signature; of one member as many as it may sign, the highest numbers."""
        self._signatures[num, batch][member] = signature
        of_member = sorted(key for key, signatures in self._signatures.items() if member in signatures)
        for key in of_member[: -4 * self._limit]:
            self._discard(key, member)

    def forget(self, peer: str) -> None:
        """Clear what a former session of a peer brought."""
        self._senders.pop(peer, None)
        for key in [key for key, signatures in self._signatures.items() if peer in signatures]:
            self._discard(key, peer)

    def _discard(self, key: tuple[int, bytes], member: str) -> None:
        del self._signatures[key][member]
        if not self._signatures[key]:
            del self._signatures[key]

    def certified(self, num: int, quorum: int) -> tuple[Header, dict[str, bytes]] | None:
        """A candidate of this number with a quorum of signatures; of several the lowest hash."""
        full = sorted(
            batch
            for (of, batch), signatures in self._signatures.items()
            if of == num and len(signatures) >= quorum and batch in self.headers
        )
        return (self.headers[full[0]], self._signatures[num, full[0]]) if full else None

    def decided(self, num: int) -> None:
        """A number is decided: delete what is below, and the signatures of others for it (rule 1)."""
        for header in [header for header in self.headers.values() if header.num < num]:
            del self.headers[header.hash]
            self.own.pop(header.hash, None)
        for key in [key for key in self._signatures if key[0] <= num]:
            del self._signatures[key]
        self._senders.clear()
