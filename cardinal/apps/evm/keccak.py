"""Keccak-256, through safe-pysha3 (measured at twice the speed of the next library)."""

from __future__ import annotations

from cardinal.errors import MissingExtraError

try:
    from sha3 import keccak_256
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("The EVM application", "evm") from absent


__all__ = ["keccak", "keccak_256"]


def keccak(data: bytes) -> bytes:
    """Thirty-two bytes."""
    digest: bytes = keccak_256(data).digest()
    return digest
