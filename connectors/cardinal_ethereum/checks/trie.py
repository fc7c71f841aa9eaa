"""Merkle Patricia trie roots: over a block's lists (keys 0, 1, 2, …) and over a state (keys are hashes).

The trie is never built: only node encodings are computed (yellow paper, appendix D). Over 0, 1, 2, … its shape depends
only on the number of values: it is computed once per number (:class:`_Form`), and a root is then one pass over the
leaves and a short one over the branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Final, NamedTuple

from cardinal_ethereum import rlp
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.rlp.cache import Memo

EMPTY_ROOT: Final = keccak(b"\x80")
_HASHED_FROM: Final = 32
_HASH_PREFIX: Final = b"\xa0"
_NOTHING: Final = rlp.encode(b"")
_REMEMBERED: Final = 4096
"""Number of values up to which a form is cached: more than blocks have, and bounded for any response of a node."""


class _Form(NamedTuple):
    """Shape of a trie.

    Attributes:
        paths: encoded path of each leaf, in the order of the values.
        heads: bytes of each leaf before its value, by the size of the value.
        branches: from the deepest up to the root, each with a getter of its references, and the path of an extension
            above it. The getter's list holds: nothing, the leaves in the order of the values, the earlier branches.

    """

    paths: tuple[bytes, ...]
    heads: tuple[Mapping[int, bytes], ...]
    branches: tuple[tuple[Callable[[list[bytes]], tuple[bytes, ...]], bytes], ...]


def ordered_root(values: Sequence[bytes]) -> bytes:
    """Root over ``values``, each under the RLP of its index."""
    if not values:
        return EMPTY_ROOT
    count = len(values)
    return _root(_ordered(count) if count <= _REMEMBERED else _ordered.__wrapped__(count), values)


def keyed_root(entries: Mapping[bytes, bytes]) -> bytes:
    """Root over values under keys of one length, such as hashes."""
    if not entries:
        return EMPTY_ROOT
    return _root(_form([key.hex() for key in entries]), list(entries.values()))


def _root(form: _Form, values: Sequence[bytes]) -> bytes:
    paths, heads, branches = form
    if len(values) == 1:
        return keccak(_leaf(paths[0], values[0]))
    references = [_NOTHING]
    if min(map(len, values)) >= _HASHED_FROM:  # as of all transactions and receipts: no leaf is embedded
        references += [
            _HASH_PREFIX + keccak(head[len(value)] + value) for head, value in zip(heads, values, strict=True)
        ]
    else:
        references += [_reference(_leaf(path, value)) for path, value in zip(paths, values, strict=True)]
    node = b""
    for pick, path in branches:
        node = _wrapped(b"".join(pick(references)))
        if path:
            node = _wrapped(path + _reference(node))
        references.append(_reference(node))
    return keccak(node)


def _leaf(path: bytes, value: bytes) -> bytes:
    return _heads[path][len(value)] + value if len(value) > 1 else _wrapped(path + rlp.encode_bytes(value))


def _reference(node: bytes) -> bytes:
    """Reference to a node in its parent: the node itself if short, else its hash."""
    return node if len(node) < _HASHED_FROM else _HASH_PREFIX + keccak(node)


@lru_cache(maxsize=256)
def _ordered(count: int) -> _Form:
    """Form over the indexes of ``count`` values."""
    return _form([rlp.encode_int(index).hex() for index in range(count)])


def _form(keys: Sequence[str]) -> _Form:
    """Form over keys as hexadecimal digits, each of them a nibble.

    No key is a prefix of another (the first byte of an index's RLP determines its length), so branches have no value.
    """
    entries = sorted((key, place) for place, key in enumerate(keys))
    paths = [b""] * len(keys)
    branches: list[tuple[Callable[[list[bytes]], tuple[bytes, ...]], bytes]] = []

    def node(low: int, high: int, depth: int) -> int:
        """Position of the reference to the node over ``entries[low:high]``, which share ``depth`` nibbles."""
        first, place = entries[low]
        if high - low == 1:
            paths[place] = _compact(first[depth:], leaf=True)
            return 1 + place
        last, fork = entries[high - 1][0], depth
        while first[fork] == last[fork]:
            fork += 1
        held = [0] * 17
        while low < high:
            nibble, end = entries[low][0][fork], low + 1
            while end < high and entries[end][0][fork] == nibble:
                end += 1
            held[int(nibble, 16)] = node(low, end, fork + 1)
            low = end
        branches.append((itemgetter(*held), _compact(first[depth:fork], leaf=False) if fork > depth else b""))
        return len(keys) + len(branches)

    node(0, len(keys), 0)
    return _Form(tuple(paths), tuple([_heads[path] for path in paths]), tuple(branches))


def _wrapped(body: bytes) -> bytes:
    return rlp.list_head[len(body)] + body


def _leaf_head(path: bytes, size: int) -> bytes:
    """Bytes of a leaf before a value of ``size`` bytes, which is more than one."""
    head = path + rlp.string_head[size]
    return rlp.list_head[len(head) + size] + head


_heads: Final = Memo[bytes, Memo[int, bytes]](lambda path: Memo(partial(_leaf_head, path), maxsize=512), maxsize=1024)
"""Bytes of a leaf before its value, by path and by size of the value."""


@lru_cache(maxsize=4096)
def _compact(nibbles: str, *, leaf: bool) -> bytes:
    """RLP of nibbles as bytes, with flags for a leaf and for an odd number of nibbles."""
    flag = 2 if leaf else 0
    return rlp.encode_bytes(bytes.fromhex(f"{flag + 1}{nibbles}" if len(nibbles) % 2 else f"{flag}0{nibbles}"))
