"""RLP: encoding, decoding, and encoding straight from JSON-RPC's hexadecimal text."""

from .codec import (
    Decoded,
    Item,
    decode,
    decode_list,
    encode,
    encode_bytes,
    encode_int,
    list_head,
    minimal_bytes,
    string_head,
    wrap,
)

__all__ = [
    "Decoded",
    "Item",
    "decode",
    "decode_list",
    "encode",
    "encode_bytes",
    "encode_int",
    "list_head",
    "minimal_bytes",
    "string_head",
    "wrap",
]
