"""Nodes of a small cluster for tests of the mesh, with cheap signatures, and links that are connected."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from cardinal_ingest.protocols.mesh import (
    Acceptor,
    Cluster,
    Decoder,
    Dial,
    Effect,
    Frame,
    Identity,
    Member,
    MeshSettings,
    OutgoingLink,
    Received,
    Send,
    Signed,
)

NONCE = bytes(range(16))
OTHER_NONCE = bytes(range(16, 32))
SETTINGS = MeshSettings(max_frame=1_024, window=4_096, queue_bytes=8_192, inbox=4_096)


def cluster(names: str = "abc", *, name: str = "demo", epoch: int = 0, other_keys: str = "") -> Cluster:
    """Members with keys that come from their names, and other ones for some of them."""
    members = [Member(each, hashlib.sha256(each.encode() + b"2" * (each in other_keys)).digest()) for each in names]
    return Cluster(name, epoch, hashlib.sha256(b"evm:1").digest(), tuple(members))


def sign(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key).digest()


def identity(name: str, of: Cluster | None = None) -> Identity:
    """A member whose signatures are hashes."""
    of = of or cluster()
    key = of.keys[name]
    return Identity(of, name, lambda data: sign(key, data), lambda who, data, signature: sign(who, data) == signature)


def sent(effects: Iterable[Effect]) -> bytes:
    """The bytes to write."""
    return b"".join(effect.data for effect in effects if isinstance(effect, Send))


def frames(effects: Iterable[Effect] | bytes) -> list[Frame]:
    data = effects if isinstance(effects, bytes) else sent(effects)
    return list(Decoder(2**20).feed(data))


def received(effects: Iterable[Effect]) -> list[tuple[int, int, bytes]]:
    return [(each.seq, each.kind, each.payload) for each in effects if isinstance(each, Received)]


class Pair:
    """The link from a to b, and its acceptor; the test carries the bytes."""

    def __init__(self, settings: MeshSettings = SETTINGS, *, u: float = 0.5) -> None:
        self.a, self.b = identity("a"), identity("b")
        self.out = OutgoingLink(self.a, "b", lambda: u, 0.0, settings)
        self.acceptor = Acceptor(self.b, settings)
        self.session = self.a.cluster.session("a", "b", NONCE, OTHER_NONCE)
        self.connection = 0

    def dial(self, now: float = 0.0) -> int:
        (dial,) = [each for each in self.out.tick(now) if isinstance(each, Dial)]
        self.connection = dial.connection
        return self.connection

    def hello(self, now: float = 0.0) -> bytes:
        return sent(self.out.opened(self.dial(now), NONCE, now))

    def accept(self, name: str = "x", now: float = 0.0) -> list[Effect]:
        return [effect for _, effect in self.acceptor.accept(name, OTHER_NONCE, now)]

    def to_b(self, data: bytes, now: float = 0.0, name: str = "x") -> list[Effect]:
        return [effect for _, effect in self.acceptor.receive(name, data, now)]

    def to_a(self, data: bytes, now: float = 0.0) -> list[Effect]:
        return self.out.receive(self.connection, data, now)

    def connect(self, now: float = 0.0, name: str = "x") -> list[Effect]:
        """Shake hands; return what b has of it."""
        hello = self.hello(now)
        self.accept(name, now)
        begin = self.to_a(sent(self.to_b(hello, now, name)), now)
        return self.to_b(sent(begin), now, name)

    def by_a(self, frame: Signed) -> bytes:
        return self.a.signed(frame, self.session)

    def by_b(self, frame: Signed) -> bytes:
        return self.b.signed(frame, self.session)
