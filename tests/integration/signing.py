"""Signed transactions of every type (EIP-155, 2930, 1559, 4844, 7702), built apart from what is tested."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import coincurve
from ethereum_blocks import keccak, minimal, rlp

Item: TypeAlias = "bytes | list[Item]"

EMPTY_BLOB_COMMITMENT = b"\xc0" + bytes(47)
"""The KZG commitment of a blob of zeros, and its proof: the point at infinity."""

BLOB_BYTES = 131_072
PRIORITY_FEE, FEE, GAS = 10**9, 10**11, 300_000


class Wallet:
    """An account that signs; it counts its nonces."""

    def __init__(self, secret: bytes, chain_id: int, nonce: int = 0) -> None:
        self._key = coincurve.PrivateKey(secret)
        self._chain_id = chain_id
        self.nonce = nonce
        self.address = keccak(self._key.public_key.format(compressed=False)[1:])[12:]

    def legacy(self, to: bytes, value: int = 1, data: bytes = b"") -> bytes:
        fields = [*self._head(FEE), to, minimal(value), data]
        r, s, parity = self._sign(rlp([*fields, minimal(self._chain_id), b"", b""]))
        return rlp([*fields, minimal(self._chain_id * 2 + 35 + parity), r, s])

    def access(self, to: bytes, slots: list[bytes], value: int = 1) -> bytes:
        return self._typed(1, [*self._head(FEE), to, minimal(value), b"", [[to, [*slots]]]])

    def fee_market(self, to: bytes, value: int = 1, data: bytes = b"") -> bytes:
        return self._typed(2, [*self._head(PRIORITY_FEE, FEE), to, minimal(value), data, []])

    def blob(self, to: bytes) -> bytes:
        """With one blob of zeros, in the form in which it is sent to a node."""
        hashes: list[Item] = [b"\x01" + hashlib.sha256(EMPTY_BLOB_COMMITMENT).digest()[1:]]
        fields = [*self._head(PRIORITY_FEE, FEE), to, b"", b"", [], minimal(10**10), hashes]
        signed = [minimal(self._chain_id), *fields]
        r, s, parity = self._sign(b"\x03" + rlp(signed))
        body: list[Item] = [*signed, minimal(parity), r, s]
        sidecar: list[Item] = [[bytes(BLOB_BYTES)], [EMPTY_BLOB_COMMITMENT], [EMPTY_BLOB_COMMITMENT]]
        return b"\x03" + rlp([body, *sidecar])

    def set_code(self, to: bytes, delegate: bytes, authority: Wallet) -> bytes:
        """One that lets ``authority`` run the code of ``delegate`` from now on."""
        wish = [minimal(self._chain_id), delegate, minimal(authority.nonce)]
        r, s, parity = authority._sign(b"\x05" + rlp([*wish]))
        authority.nonce += 1
        entry: list[Item] = [*wish, minimal(parity), r, s]
        return self._typed(4, [*self._head(PRIORITY_FEE, FEE), to, b"", b"", [], [entry]])

    def _head(self, *prices: int) -> list[Item]:
        head: list[Item] = [minimal(self.nonce), *map(minimal, prices), minimal(GAS)]
        self.nonce += 1
        return head

    def _typed(self, kind: int, fields: list[Item]) -> bytes:
        signed = [minimal(self._chain_id), *fields]
        r, s, parity = self._sign(bytes((kind,)) + rlp(signed))
        return bytes((kind,)) + rlp([*signed, minimal(parity), r, s])

    def _sign(self, message: bytes) -> tuple[bytes, bytes, int]:
        signature = self._key.sign_recoverable(keccak(message), hasher=None)
        r, s = (signature[at : at + 32].lstrip(b"\0") for at in (0, 32))
        return r, s, signature[64]
