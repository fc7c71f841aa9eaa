"""Fork choice: ranks, the best tip among blocks that were just linked, and the paths from tip to tip.

Pure functions over the graph; :mod:`.orderer` acts on what they return. Their work is bounded by the blocks that they
get, and by the depth of the switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from .forktree import ForkTree, Node, Rank


def rank(node: Node) -> Rank:
    """Smaller is better: heavier, of equal weights received first."""
    return -node.weight, node.arrival, node.hash


def best_tip(tree: ForkTree, head: Node, fresh: Sequence[Node]) -> Node | None:
    """The new head among blocks that were just linked, each with all that descends from it.

    None where the head stays.
    """
    if not fresh:
        return None
    best = min(fresh, key=rank)
    if any(node.parent == head.hash for node in fresh):
        extension = climb(tree, head)
        # A child of any weight extends the head, unless a new block elsewhere is heavier still.
        if best.weight <= extension.weight or descends(tree, best, head):
            return extension
    return climb(tree, best) if best.weight > head.weight else None


def climb(tree: ForkTree, node: Node) -> Node:
    """The leaf above a linked block, at every fork towards the heaviest block above it."""
    heaviest: dict[bytes, Rank] = {}
    for current in reversed(tree.above(node)):
        above = [heaviest[child.hash] for child in tree.children(current.hash)]
        heaviest[current.hash] = min([rank(current), *above])
    while children := tree.children(node.hash):
        node = min(children, key=lambda child: heaviest[child.hash])
    return node


def descends(tree: ForkTree, node: Node, ancestor: Node) -> bool:
    """True when a linked block is a delivered one, or stands above it with no other delivered block between."""
    return next((current for current in tree.ancestors(node) if current.delivered), None) is ancestor


def paths(tree: ForkTree, head: Node, tip: Node) -> tuple[list[Node], list[Node]]:
    """The blocks from the head and from a linked tip down to, and without, their common ancestor."""
    new = list(takewhile(lambda node: not node.delivered, tree.ancestors(tip)))
    ancestor = tree.get(new[-1].parent)
    return list(takewhile(lambda node: node is not ancestor, tree.ancestors(head))), new
