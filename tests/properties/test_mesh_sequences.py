"""The four sequences of the network specification, in which messages are lost and sent again on reconnection.

Facts are named as there: T a transaction, `propose` and `saved` of a batch. A fact of an agreed batch is retired.
"""

from __future__ import annotations

from model.mesh_network import Node, World


def nodes(name: str) -> tuple[World, Node, Node, Node]:
    world = World(name)
    world.settle()
    return world, *world.nodes.values()


def commit(world: World, *facts: tuple[Node, bytes]) -> None:
    """Commit facts and let them travel."""
    for node, name in facts:
        node.fact(name)
    world.run(0.5)


def views(node: Node) -> dict[str, list[bytes]]:
    return {peer: sorted(view) for peer, view in sorted(node.disk.views.items())}


def test_crash_with_own_messages_out() -> None:
    world, a, b, c = nodes("crash")
    commit(world, (b, b"T1"))
    b.crash()
    commit(world, (a, b"propose 1"))
    assert views(c) == {"a": [b"propose 1"], "b": [b"T1"]}
    received = [len(wire.sent) for wire in world.open_wires("a", "c")]
    world.restart("b")
    world.settle()
    assert list(b.disk.facts) == [b"T1"], "b still holds its own"
    assert views(b) == {"a": [b"propose 1"], "c": []}
    assert views(a) == {"b": [b"T1"], "c": []}, "its snapshot repeats it, which changes nothing"
    assert [len(wire.sent) for wire in world.open_wires("a", "c")] == received, "only the peer that returned gets it"


def test_one_direction_cut() -> None:
    world, a, b, c = nodes("split brain")
    commit(world, (a, b"saved 9"), (b, b"saved 9"), (c, b"saved 9"), (c, b"T21"))
    world.unreachable.add(("a", "b"))
    for wire in world.open_wires("a", "b"):
        wire.cut()
    events = len(c.events)
    commit(world, (a, b"propose 10"))
    assert views(b) == {"a": [b"saved 9"], "c": [b"T21", b"saved 9"]}
    assert views(c) == {"a": [b"propose 10", b"saved 9"], "b": [b"saved 9"]}
    world.unreachable.clear()
    world.settle()
    assert views(b)["a"] == [b"propose 10", b"saved 9"]
    assert len(c.events) == events, "c observes nothing"


def test_confirmation_missed() -> None:
    world, a, b, c = nodes("confirmation")
    commit(world, (b, b"T1"), (a, b"propose 10"), (a, b"saved 10"), (b, b"saved 10"))
    b.crash()
    commit(world, (c, b"saved 10"))
    assert views(a) == {"b": [b"T1", b"saved 10"], "c": [b"saved 10"]}
    world.restart("b")
    world.settle()
    assert views(b) == {"a": [b"propose 10", b"saved 10"], "c": [b"saved 10"]}


def test_own_message_before_the_batch_and_not_in_it() -> None:
    world, a, b, c = nodes("for the next batch")
    commit(world, (b, b"T1"), (a, b"propose 10"))
    b.crash()
    commit(world, (c, b"T2"), (c, b"saved 10"), (a, b"saved 10"))
    a.retire(b"propose 10")
    c.retire(b"saved 10")
    commit(world, (c, b"saved 11"))
    world.restart("b")
    world.settle()
    assert views(b) == {"a": [b"saved 10"], "c": [b"T2", b"saved 11"]}, "T2 is sent until it is agreed"
    c.retire(b"T2")
    world.settle()
    assert views(b)["c"] == views(a)["c"] == [b"saved 11"]
