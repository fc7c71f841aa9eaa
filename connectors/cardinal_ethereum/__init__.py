"""Ethereum-like chains: their paths, values, checks and tables.

Names are imported on first use, since some of them need an extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cardinal_ethereum.from_rpc.payload import payload_from_rpc

    from .abi.decoder import Abi
    from .chains import Chain, chain_of
    from .checks.integrity import verify
    from .checks.published import verify_payload
    from .checks.state import state_delta, touched
    from .model.account import Account
    from .model.block_decoder import decode
    from .model.state import StateDelta
    from .tables.decoded import decoded_frames
    from .tables.frames import frames

__all__ = [
    "Abi",
    "Account",
    "Chain",
    "StateDelta",
    "chain_of",
    "decode",
    "decoded_frames",
    "frames",
    "payload_from_rpc",
    "state_delta",
    "touched",
    "verify",
    "verify_payload",
]

_MODULES = {
    "Abi": "abi.decoder",
    "Account": "model.account",
    "Chain": "chains",
    "StateDelta": "model.state",
    "chain_of": "chains",
    "decode": "model.block_decoder",
    "decoded_frames": "tables.decoded",
    "frames": "tables.frames",
    "payload_from_rpc": "from_rpc.payload",
    "state_delta": "checks.state",
    "touched": "checks.state",
    "verify": "checks.integrity",
    "verify_payload": "checks.published",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
