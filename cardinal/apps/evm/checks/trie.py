"""The root of a trie whose keys are 0, 1, 2, …: transactions, receipts and withdrawals of a block; or hashes: a state.

The trie is never built: only node encodings are kept (yellow paper, appendix D). Over 0, 1, 2, … its form depends on
nothing but how many values there are: it is worked out once for each number of values (:class:`_Form`), and a root is
then a run over the leaves and a short one over the branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Final, NamedTuple

from cardinal.apps.evm import rlp
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.rlp.cache import Remembered

EMPTY_ROOT: Final = keccak(b"\x80")
_HASHED_FROM: Final = 32
_HASH_PREFIX: Final = b"\xa0"
_NOTHING: Final = rlp.encode(b"")
_REMEMBERED: Final = 4096
"""Values up to which a form is remembered: more than blocks have, and no answer of a node fills the memory."""


class _Form(NamedTuple):
    """A trie without its values.

    Attributes:
        paths: for each leaf, in the order of the values, its path as the leaf holds it.
        heads: for each leaf, what stands in it before its value, by how many bytes the value has.
        branches: from the deepest up to the root, each with what picks the references that it holds, and the path
            that leads to it where it is an extension's. What is picked from is a list: nothing, the leaves in the
            order of the values, then the branches that came before.

    """

    paths: tuple[bytes, ...]
    heads: tuple[Mapping[int, bytes], ...]
    branches: tuple[tuple[Callable[[list[bytes]], tuple[bytes, ...]], bytes], ...]


def ordered_root(values: Sequence[bytes]) -> bytes:
    """The root over ``values``, each under the RLP of its index."""
    if not values:
        return EMPTY_ROOT
    count = len(values)
    return _root(_ordered(count) if count <= _REMEMBERED else _ordered.__wrapped__(count), values)


def keyed_root(entries: Mapping[bytes, bytes]) -> bytes:
    """The root over values under keys of one length, such as hashes."""
    if not entries:
        return EMPTY_ROOT
    return _root(_form([key.hex() for key in entries]), list(entries.values()))


def _root(form: _Form, values: Sequence[bytes]) -> bytes:
    paths, heads, branches = form
    if len(values) == 1:
        return keccak(_leaf(paths[0], values[0]))
    references = [_NOTHING]
    if min(map(len, values)) >= _HASHED_FROM:  # as of all transactions and receipts: no leaf stands in its parent
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
    """What stands for a node in its parent: itself where it is short, else its hash."""
    return node if len(node) < _HASHED_FROM else _HASH_PREFIX + keccak(node)


@lru_cache(maxsize=256)
def _ordered(count: int) -> _Form:
    """The form over the indexes of so many values."""
    return _form([rlp.encode_int(index).hex() for index in range(count)])


def _form(keys: Sequence[str]) -> _Form:
    """The form over keys as hexadecimal digits, each of them a nibble.

    No key begins another (of an index the first byte of its RLP tells its length), so a branch never has a value.
    """
    entries = sorted((key, place) for place, key in enumerate(keys))
    paths = [b""] * len(keys)
    branches: list[tuple[Callable[[list[bytes]], tuple[bytes, ...]], bytes]] = []

    def node(low: int, high: int, depth: int) -> int:
        """Where the reference to the node over ``entries[low:high]`` stands, which agree in ``depth`` nibbles."""
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
    """What stands in a leaf before a value of so many bytes, which are more than one."""
    head = path + rlp.string_head[size]
    return rlp.list_head[len(head) + size] + head


_heads: Final = Remembered[bytes, Remembered[int, bytes]](
    lambda path: Remembered(partial(_leaf_head, path), most=512), most=1024
)
"""By a leaf's path, what stands in it before its value by how many bytes that has."""


@lru_cache(maxsize=4096)
def _compact(nibbles: str, *, leaf: bool) -> bytes:
    """The RLP of nibbles as bytes, with a flag for the node's kind and for an odd number of them."""
    flag = 2 if leaf else 0
    return rlp.encode_bytes(bytes.fromhex(f"{flag + 1}{nibbles}" if len(nibbles) % 2 else f"{flag}0{nibbles}"))
