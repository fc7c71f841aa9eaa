"""The root of a trie whose keys are 0, 1, 2, …: transactions, receipts and withdrawals of a block.

The trie is never built: the sorted keys are walked once, and only node encodings are kept (yellow paper, appendix D).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from . import rlp
from .keccak import keccak

EMPTY_ROOT: Final = keccak(b"\x80")
_HASHED_FROM: Final = 32
_Entry = tuple[bytes, bytes]


def ordered_root(values: Sequence[bytes]) -> bytes:
    """The root over ``values``, each under the RLP of its index."""
    if not values:
        return EMPTY_ROOT
    entries = sorted((_key(index), value) for index, value in enumerate(values))
    return keccak(rlp.encode(_node(entries, 0, len(entries), 0)))


@lru_cache(maxsize=4096)
def _key(index: int) -> bytes:
    """The nibbles of the RLP of an index."""
    raw = rlp.encode(index.to_bytes((index.bit_length() + 7) // 8, "big"))
    return bytes(nibble for byte in raw for nibble in (byte >> 4, byte & 15))


def _node(entries: list[_Entry], low: int, high: int, depth: int) -> rlp.Item:
    """The node over ``entries[low:high]``, which agree in their first ``depth`` nibbles."""
    first, value = entries[low]
    if high - low == 1:
        return [_compact(first[depth:], leaf=True), value]
    last = entries[high - 1][0]
    shared = depth
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    if shared > depth:
        return [_compact(first[depth:shared], leaf=False), _reference(entries, low, high, shared)]
    branch: list[rlp.Item] = [b""] * 17
    if len(first) == depth:
        branch[16] = value
        low += 1
    while low < high:
        nibble = entries[low][0][depth]
        end = low + 1
        while end < high and entries[end][0][depth] == nibble:
            end += 1
        branch[nibble] = _reference(entries, low, end, depth + 1)
        low = end
    return branch


def _reference(entries: list[_Entry], low: int, high: int, depth: int) -> rlp.Item:
    node = _node(entries, low, high, depth)
    encoded = rlp.encode(node)
    return node if len(encoded) < _HASHED_FROM else keccak(encoded)


def _compact(nibbles: bytes, *, leaf: bool) -> bytes:
    """Nibbles as bytes, with a flag for the node's kind and for an odd number of them."""
    flag = 2 if leaf else 0
    padded = bytes((flag + 1,)) + nibbles if len(nibbles) % 2 else bytes((flag, 0)) + nibbles
    return bytes(padded[at] << 4 | padded[at + 1] for at in range(0, len(padded), 2))
