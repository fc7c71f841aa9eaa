"""Recovery of a signer's address from a signature (secp256k1, through coincurve)."""

from __future__ import annotations

from cardinal.errors import MissingExtraError
from cardinal_ethereum.keccak import keccak

try:
    from coincurve import PublicKey
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Recovering senders", "evm") from absent

_SCALAR = 32


def recover(digest: bytes, parity: int, r: int, s: int) -> bytes | None:
    """Address (20 bytes) whose key signed ``digest`` (32 bytes), or None for an invalid signature.

    High values of ``s`` are accepted: they were valid before Homestead.
    """
    if max(r, s).bit_length() > _SCALAR * 8:
        return None
    signature = r.to_bytes(_SCALAR, "big") + s.to_bytes(_SCALAR, "big") + bytes((parity,))
    try:
        key = PublicKey.from_signature_and_message(signature, digest, hasher=None)
    except ValueError:
        return None
    return keccak(key.format(compressed=False)[1:])[12:]
