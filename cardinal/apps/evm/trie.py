"""The root of a trie whose keys are 0, 1, 2, …: transactions, receipts and withdrawals of a block; or hashes: a state.

The trie is never built: the sorted keys are walked once, and only node encodings are kept (yellow paper, appendix D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from . import rlp
from .hexrlp import list_prefix, string_prefix
from .keccak import keccak, keccak_256

EMPTY_ROOT: Final = keccak(b"\x80")
_HASHED_FROM: Final = 32
_HASH_PREFIX: Final = b"\xa0"
_NOTHING: Final = rlp.encode(b"")
_Entry = tuple[str, bytes]
"""A key as hexadecimal digits, each of them a nibble, and its value."""


def ordered_root(values: Sequence[bytes]) -> bytes:
    """The root over ``values``, each under the RLP of its index."""
    if not values:
        return EMPTY_ROOT
    entries = sorted((_key(index), value) for index, value in enumerate(values))
    return keccak(_node(entries, 0, len(entries), 0))


def keyed_root(entries: Mapping[bytes, bytes]) -> bytes:
    """The root over values under keys of one length, such as hashes."""
    if not entries:
        return EMPTY_ROOT
    found = sorted((key.hex(), value) for key, value in entries.items())
    return keccak(_node(found, 0, len(found), 0))


@lru_cache(maxsize=4096)
def _key(index: int) -> str:
    return rlp.encode_int(index).hex()


def _node(entries: list[_Entry], low: int, high: int, depth: int) -> bytes:
    """The RLP of the node over ``entries[low:high]``, which agree in their first ``depth`` nibbles.

    No key begins another (the first byte of an index's RLP tells its length), so a branch never has a value.
    """
    first, value = entries[low]
    if high - low == 1:
        path = _compact(first[depth:], leaf=True)
        size = len(value)
        # Most nodes are leaves with a transaction or receipt: RLP's prefixes for its size are known.
        written = path + (_string(size) + value if size > 1 else rlp.encode_bytes(value))
        return _list(len(written)) + written
    last = entries[high - 1][0]
    shared = depth
    while first[shared] == last[shared]:
        shared += 1
    if shared > depth:
        return rlp.wrap((_compact(first[depth:shared], leaf=False), _reference(entries, low, high, shared)))
    branch = [_NOTHING] * 17
    while low < high:
        nibble = entries[low][0][depth]
        end = low + 1
        while end < high and entries[end][0][depth] == nibble:
            end += 1
        branch[int(nibble, 16)] = _reference(entries, low, end, depth + 1)
        low = end
    return rlp.wrap(branch)


def _reference(entries: list[_Entry], low: int, high: int, depth: int) -> bytes:
    """What stands for a node in its parent: itself where it is short, else its hash."""
    node = _node(entries, low, high, depth)
    return node if len(node) < _HASHED_FROM else _HASH_PREFIX + keccak_256(node).digest()


@lru_cache(maxsize=4096)
def _string(size: int) -> bytes:
    """What stands before so many bytes, which are more than one."""
    return bytes.fromhex(string_prefix(size))


@lru_cache(maxsize=4096)
def _list(size: int) -> bytes:
    """What stands before a list of so many bytes."""
    return bytes.fromhex(list_prefix(size))


@lru_cache(maxsize=4096)
def _compact(nibbles: str, *, leaf: bool) -> bytes:
    """The RLP of nibbles as bytes, with a flag for the node's kind and for an odd number of them."""
    flag = 2 if leaf else 0
    return rlp.encode_bytes(bytes.fromhex(f"{flag + 1}{nibbles}" if len(nibbles) % 2 else f"{flag}0{nibbles}"))
