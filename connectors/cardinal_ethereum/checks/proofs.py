"""Differences between two state tries, from proven trie nodes.

Rules:

1. A trie is its root and the available nodes, each looked up by its own hash: a false node is never found.
2. Two tries are traversed together. Equal nodes have equal subtries; where nodes differ, both must be available, else
   the difference is unknown and refused. So the result is everything that changed.
3. A leaf or an extension is treated as the chain of single steps that it abbreviates, so tries that grew or shrank
   there compare too.

Yellow paper, appendix D. Keys are hashes of 64 nibbles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from cardinal.errors import ApplicationError
from cardinal_ethereum import rlp
from cardinal_ethereum.keccak import keccak

from .trie import EMPTY_ROOT

_NIBBLES: Final = 64
_BRANCH: Final = 17
_SHORT: Final = 2
_HASH: Final = 32
_DIGITS: Final = "0123456789abcdef"


class UnknownChangeError(Exception):
    """Unknown change below this path (hex digits of the key): a trie node is missing."""


@dataclass(frozen=True, slots=True)
class _Branch:
    children: list[rlp.Decoded]


@dataclass(frozen=True, slots=True)
class _Short:
    """Leaf with the rest of its key, or extension to another node; ``digits`` are hex."""

    digits: str
    value: bytes | None
    target: rlp.Decoded = b""


_Node: TypeAlias = "_Branch | _Short | bytes | None"
"""An available node, the hash of a missing one, or nothing."""


def nodes_by_hash(nodes: Iterable[bytes]) -> Mapping[bytes, bytes]:
    """Proven trie nodes by hash."""
    return {keccak(node): node for node in nodes}


def changes(
    before: bytes, after: bytes, nodes: Mapping[bytes, bytes]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Iterate over the keys whose values differ between two tries, with both values; None for an absent one.

    Arguments:
        before: the root (32 bytes).
        after: the other root.
        nodes: nodes of both, by hash.

    Raises:
        UnknownChangeError: they differ where a node is missing.
        ApplicationError: a node is not a node of such a trie.

    """
    return _differences(_root(before, nodes), _root(after, nodes), "", nodes)


def _differences(
    before: _Node, after: _Node, path: str, nodes: Mapping[bytes, bytes]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    if _name(before) == _name(after):
        return
    if isinstance(before, bytes) or isinstance(after, bytes):
        raise UnknownChangeError(path)
    if not isinstance(before, _Branch) and not isinstance(after, _Branch) and _ends(before) and _ends(after):
        yield from _leaves(before, after, path)
        return
    if len(path) == _NIBBLES:
        raise ApplicationError("a state proof is deeper than a key is long")
    for digit in _digits(before, after):
        yield from _differences(_child(before, digit, nodes), _child(after, digit, nodes), path + digit, nodes)


def _digits(before: _Branch | _Short | None, after: _Branch | _Short | None) -> str:
    """The possible next digits of a key in either of two nodes, ascending: an extension has one."""
    if isinstance(before, _Branch) or isinstance(after, _Branch):
        return _DIGITS
    return "".join(sorted({node.digits[:1] for node in (before, after) if node is not None}))


def _ends(node: _Short | None) -> bool:
    return node is None or node.value is not None


def _leaves(
    before: _Short | None, after: _Short | None, path: str
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Difference between two leaves, or a leaf and nothing, without single steps."""
    old, new = ({} if node is None else {path + node.digits: node.value} for node in (before, after))
    for key in sorted(old.keys() | new.keys()):
        if len(key) != _NIBBLES:
            raise ApplicationError("a state proof holds a key of another length")
        yield bytes.fromhex(key), old.get(key), new.get(key)


def _root(root: bytes, nodes: Mapping[bytes, bytes]) -> _Node:
    return None if root == EMPTY_ROOT else _at(root, nodes)


def _at(reference: rlp.Decoded, nodes: Mapping[bytes, bytes]) -> _Node:
    """The node behind a reference, which is the node itself if short, else its hash."""
    if reference == b"":
        return None
    if isinstance(reference, bytes):
        if len(reference) != _HASH:
            raise ApplicationError("a state proof refers to a node by something other than its hash")
        encoded = nodes.get(reference)
        return reference if encoded is None else _read(rlp.decode_list(encoded))
    return _read(reference)


def _read(items: list[rlp.Decoded]) -> _Node:
    if len(items) == _BRANCH:
        return _Branch(items[:-1])
    if len(items) != _SHORT or not isinstance(items[0], bytes) or not items[0]:
        raise ApplicationError("a state proof holds an invalid trie node")
    text = items[0].hex()
    flag = int(text[0], 16)
    digits = text[1:] if flag & 1 else text[2:]
    if flag & 2:
        if not isinstance(items[1], bytes):
            raise ApplicationError("a state proof holds a leaf without a value")
        return _Short(digits, items[1])
    if not digits:
        raise ApplicationError("a state proof holds an empty extension")
    return _Short(digits, None, items[1])


def _child(node: _Branch | _Short | None, digit: str, nodes: Mapping[bytes, bytes]) -> _Node:
    if node is None:
        return None
    if isinstance(node, _Branch):
        return _at(node.children[int(digit, 16)], nodes)
    if not node.digits.startswith(digit):
        return None
    rest = node.digits[1:]
    if rest or node.value is not None:
        return _Short(rest, node.value, node.target)
    return _at(node.target, nodes)


def _name(node: _Node) -> bytes:
    """Hash of a node, available or not; the bytes of a short one."""
    if node is None:
        return b""
    if isinstance(node, bytes):
        return node
    if isinstance(node, _Branch):
        written = rlp.encode([*node.children, b""])
    else:
        leaf = node.value is not None
        odd = len(node.digits) % 2
        flag = f"{2 * leaf + odd:x}" + ("" if odd else "0")
        written = rlp.encode([bytes.fromhex(flag + node.digits), node.target if node.value is None else node.value])
    return written if len(written) < _HASH else keccak(written)
