"""Members of a cluster, and the identity of one of them.

Everything that members must agree on is in one digest: a difference in names, keys, epoch or application fails the
handshake, and no signature counts in another cluster (MD1). Addresses may differ from node to node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from cardinal.errors import ConfigurationError
from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols import cbor

from .codec import encode, is_node_id, signed_bytes
from .types import HASH_SIZE, KEY_SIZE, Reason, Signed

Sign: TypeAlias = Callable[[bytes], bytes]
"""The Ed25519 signature of these bytes, 64 bytes."""
Verify: TypeAlias = Callable[[bytes, bytes, bytes], bool]
"""Validity of a signature: of a key of 32 bytes, over these bytes, the signature of 64 bytes."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the cluster: its name, its Ed25519 public key of 32 bytes, and the address to dial."""

    id: str
    key: bytes
    address: str = ""


@dataclass(frozen=True)
class Cluster:
    """All nodes that replicate one stream, in one epoch.

    Attributes:
        name: of the cluster.
        epoch: number of the membership.
        app: digest of the application and its topics, 32 bytes.
        members: in any order; they are sorted by id.

    """

    name: str
    epoch: int
    app: bytes
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(self.members, key=lambda member: member.id)))
        if not self.name.isprintable():
            raise ConfigurationError("set name to printable characters", setting="name")
        if not 0 <= self.epoch <= cbor.WORD_64:
            raise ConfigurationError("set epoch between 0 and 2**64 - 1", setting="epoch")
        if len(self.app) != HASH_SIZE:
            raise ConfigurationError(f"app must be a digest of {HASH_SIZE} bytes", setting="app")
        for member in self.members:
            if not is_node_id(member.id):
                raise ConfigurationError(f"name node {member.id!r} with 1 to 32 of a-z, 0-9 and -", setting="members")
            if len(member.key) != KEY_SIZE:
                raise ConfigurationError(f"the key of {member.id} must have {KEY_SIZE} bytes", setting="members")
        if len(set(self.keys.values())) < len(self.members):
            raise ConfigurationError("give each member an id and a key of its own", setting="members")

    @cached_property
    def keys(self) -> dict[str, bytes]:
        """Public keys by node id."""
        return {member.id: member.key for member in self.members}

    @cached_property
    def digest(self) -> bytes:
        """The 32 bytes that name this cluster."""
        members: list[cbor.Value] = [[member.id, member.key] for member in self.members]
        return _digest(["cardinal/cluster/1", self.name, self.epoch, self.app, members])

    def session(self, dialer: str, acceptor: str, hello_nonce: bytes, welcome_nonce: bytes) -> bytes:
        """The 32 bytes that name one session of a link."""
        return _digest(["cardinal/session/1", self.digest, dialer, acceptor, hello_nonce, welcome_nonce])


def _digest(value: cbor.Value) -> bytes:
    return hashlib.sha256(cbor.dump(value)).digest()


@dataclass(frozen=True, slots=True)
class Identity:
    """A member as itself: its cluster, its id, and how it signs and verifies."""

    cluster: Cluster
    id: str
    sign: Sign = field(repr=False)
    verify: Verify = field(repr=False)

    def __post_init__(self) -> None:
        if self.id not in self.cluster.keys:
            raise ConfigurationError(f"add {self.id!r} to the members of {self.cluster.name}", setting="members")

    def signed(self, frame: Signed, context: bytes) -> bytes:
        """The bytes of the frame, signed by this node."""
        return encode(replace(frame, signature=self.sign(signed_bytes(frame, context))))

    def check(self, frame: Signed, context: bytes, sender: str) -> None:
        """Verify a frame of a member.

        Raises:
            ViolationError: BadSignature.

        """
        key = self.cluster.keys[sender]
        if not self.verify(key, signed_bytes(frame, context), frame.signature):
            raise ViolationError(Reason.BAD_SIGNATURE, f"a {type(frame).__name__} that {sender} did not sign here")
