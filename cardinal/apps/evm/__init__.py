"""Ethereum-like chains: their paths, values, checks and tables.

What needs an extra is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .abi import Abi
    from .abi_tables import decoded_frames
    from .blobs import blob_gas_price
    from .decoding import decode
    from .integrity import verify
    from .l1 import L1Attributes, l1_attributes
    from .payload import payload_from_rpc
    from .presets import Chain, chain_of
    from .state import StateDelta, state_delta, touched
    from .tables import frames

__all__ = [
    "Abi",
    "Chain",
    "L1Attributes",
    "StateDelta",
    "blob_gas_price",
    "chain_of",
    "decode",
    "decoded_frames",
    "frames",
    "l1_attributes",
    "payload_from_rpc",
    "state_delta",
    "touched",
    "verify",
]


# The files are named otherwise than the functions: an imported submodule would hide the function behind its name.
_HOMES = {
    "Abi": "abi",
    "Chain": "presets",
    "L1Attributes": "l1",
    "StateDelta": "state",
    "blob_gas_price": "blobs",
    "chain_of": "presets",
    "decode": "decoding",
    "decoded_frames": "abi_tables",
    "frames": "tables",
    "l1_attributes": "l1",
    "payload_from_rpc": "payload",
    "state_delta": "state",
    "touched": "state",
    "verify": "integrity",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
