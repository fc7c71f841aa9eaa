"""Keccak-256, through tiny-keccak: half of the time of safe-pysha3 for a transaction, two thirds for a receipt."""

from __future__ import annotations

from cardinal.errors import MissingExtraError

try:
    from tiny_keccak import keccak256 as keccak
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("The EVM application", "evm") from absent

__all__ = ["keccak"]
