"""Complete tries, built independently, and proofs of a node for them."""

from __future__ import annotations

import sha3

from cardinal_ethereum import rlp
from cardinal_ethereum.checks.proofs import nodes_by_hash


def compact(digits: str, *, leaf: bool) -> bytes:
    flag = (2 if leaf else 0) + len(digits) % 2
    return bytes.fromhex(f"{flag:x}" + ("" if len(digits) % 2 else "0") + digits)


class Grown:
    """A whole trie: its root, and every node that is not within another."""

    def __init__(self, content: dict[bytes, bytes]) -> None:
        self.nodes: list[bytes] = []
        items = {key.hex(): value for key, value in content.items()}
        node = rlp.encode(self._node(items, "")) if items else b"\x80"
        self.root = bytes(sha3.keccak_256(node).digest())
        self.nodes.append(node)
        self._by_hash = nodes_by_hash(self.nodes)

    def _node(self, items: dict[str, bytes], path: str) -> list[rlp.Item]:
        rests = sorted(key[len(path) :] for key in items)
        if len(items) == 1:
            return [compact(rests[0], leaf=True), next(iter(items.values()))]
        shared = 0
        while rests[0][shared] == rests[-1][shared]:
            shared += 1
        if shared:
            return [compact(rests[0][:shared], leaf=False), self._reference(items, path + rests[0][:shared])]
        branch: list[rlp.Item] = []
        for digit in "0123456789abcdef":
            below = {key: value for key, value in items.items() if key.startswith(path + digit)}
            branch.append(self._reference(below, path + digit) if below else b"")
        return [*branch, b""]

    def _reference(self, items: dict[str, bytes], path: str) -> rlp.Item:
        node = self._node(items, path)
        written = rlp.encode(node)
        if len(written) < 32:
            return node
        self.nodes.append(written)
        return bytes(sha3.keccak_256(written).digest())

    def proof(self, key: bytes) -> list[bytes]:
        """The nodes on the way to a key, as a node proves it: present or absent."""
        found: list[bytes] = []
        digits, reference = key.hex(), self.root
        node: rlp.Decoded = reference
        while True:
            if isinstance(node, bytes):
                if node not in self._by_hash:
                    return found
                written = self._by_hash[node]
                found.append(written)
                if written == b"\x80":
                    return found
                node = rlp.decode_list(written)
            if len(node) == 17:
                node, digits = node[int(digits[0], 16)], digits[1:]
                continue
            assert isinstance(node[0], bytes)
            text = node[0].hex()
            own = text[1:] if int(text[0], 16) & 1 else text[2:]
            if int(text[0], 16) & 2 or not digits.startswith(own):
                return found
            node, digits = node[1], digits[len(own) :]
