"""Contract that stores its input, and the tracer of a block's changes."""

from __future__ import annotations

TRACER = {"tracer": "prestateTracer", "tracerConfig": {"diffMode": True}}

STORING = bytes.fromhex("6020356000355500")
"""Code that stores its second word of input under its first."""

CREATING = bytes.fromhex("67" + STORING.hex() + "60005260086018f3")
"""Init code that leaves STORING behind: PUSH8, MSTORE at 0, RETURN 8 bytes from 24."""


def word(number: int) -> bytes:
    return number.to_bytes(32, "big")
