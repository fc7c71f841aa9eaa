"""Named schedules of the mesh: sequences of its specification, and faults that the protocol is designed against.

The sequences are those of ``connectors/cardinal_ingest/docs/mesh.md``, section 7.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from cardinal_ingest.protocols.mesh import Ack, Begun, Heartbeat, LinkState, MeshSettings, Reason, Received, decode
from model.mesh_network import SETTINGS, Disk, Node, Wire, World, cluster_of
from model.mesh_schedule import mutated

DISCONNECTED, CONNECTED, SUSPECTED = LinkState.DISCONNECTED, LinkState.CONNECTED, LinkState.SUSPECTED


def connected(world: World) -> World:
    world.settle()
    return world


def facts(node: Node, first: int, count: int, size: int = 20) -> None:
    for number in range(first, first + count):
        node.fact(b"%s%d" % (node.name.encode(), number), size)


def only(world: World, dialer: str, acceptor: str) -> Wire:
    (wire,) = world.open_wires(dialer, acceptor)
    return wire


def trace(node: Node, direction: str, peer: str) -> list[tuple[float, LinkState, Reason | None]]:
    return [(at, state, reason) for at, way, other, state, reason in node.events if (way, other) == (direction, peer)]


# --- wires -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_cut_every_200_ms() -> None:
    world = connected(World("cut every 0.2 s", settings=MeshSettings()))
    draw = Random(1)

    def cut() -> None:
        for wire in world.open_wires(*draw.sample("abc", 2)):
            wire.cut()

    for number in range(100):
        for node in world.nodes.values():
            facts(node, number * 5, 5)
        cut()
        world.run(0.2)
    for _ in range(300):
        if not world.different():
            break
        cut()
        world.run(0.2)
    assert world.different() == [], "everything arrives while the cuts go on"
    assert {len(view) for node in world.nodes.values() for view in node.disk.views.values()} == {500}


def test_one_way_cut() -> None:
    world = connected(World("one way"))
    a, b, c = world.nodes.values()
    others = [wire for wire in world.open_wires() if (wire.dialer, wire.acceptor) != (a, b)]
    before = {node.name: len(node.events) for node in world.nodes.values()}
    world.unreachable.add(("a", "b"))
    facts(a, 0, 10)
    only(world, "a", "b").cut()
    world.run(5)
    facts(a, 10, 10)
    facts(b, 0, 10)
    world.run(5)
    assert world.different() == ["b of a"], "the other direction goes on"
    world.unreachable.clear()
    world.settle()
    assert {wire.name for wire in others} < {wire.name for wire in world.open_wires()}
    new = {node.name: node.events[before[node.name] :] for node in world.nodes.values()}
    assert new["c"] == []
    assert {(way, peer) for _, way, peer, _, _ in new["a"]} == {(">", "b")}
    assert {(way, peer) for _, way, peer, _, _ in new["b"]} <= {("<", "a"), ("<", "")}
    assert c.disk.views["a"] == a.disk.facts


def test_both_behind() -> None:
    world = connected(World("both behind", "ab"))
    a, b = world.nodes.values()
    world.unreachable |= {("a", "b"), ("b", "a")}
    for wire in world.open_wires():
        wire.cut()
    facts(a, 0, 300)
    facts(b, 0, 200)
    world.run(12)
    assert world.different() == ["a of b", "b of a"]
    world.unreachable.clear()
    world.settle(15)
    assert (len(a.disk.views["b"]), len(b.disk.views["a"])) == (200, 300)


def test_recovery_under_load() -> None:
    """1,000 messages in a second: the link recovers on reconnection, not when it is idle."""
    world = connected(World("load"))
    a = world.nodes["a"]
    for number in range(1_000):
        facts(a, number, 1)
        if number in (300, 600):
            only(world, "a", "b").cut()
        world.run(0.001)
    world.settle(10)
    assert len(world.nodes["b"].disk.views["a"]) == 1_000
    assert len(trace(world.nodes["c"], "<", "a")) == 1, "the other peer notices nothing"


def test_link_slower_than_timers() -> None:
    world = World("slow link", "ab", latency=(1.55, 1.6))
    a = world.nodes["a"]
    world.run(10)
    for number in range(30):
        facts(a, number, 1)
        world.run(1)
    world.settle(30)
    states = [state for _, state, _ in trace(a, ">", "b")]
    assert states[:3] == [LinkState.CONNECTING, CONNECTED, SUSPECTED]
    assert DISCONNECTED not in states
    world = World("too slow", "ab", latency=(2.6, 2.7))
    world.run(60)
    assert set(world.nodes["a"].reasons) == {Reason.HANDSHAKE_TIMEOUT}
    assert world.nodes["b"].disk.views == {}


@pytest.mark.parametrize("direction", ["up", "down", "both"])
def test_half_open(direction: str) -> None:
    world = connected(World("half open", "ab"))
    a, b = world.nodes.values()
    wire = only(world, "a", "b")
    cut_at = world.now
    wire.up.silent, wire.down.silent = direction != "down", direction != "up"
    facts(a, 0, 10)
    world.run(12)
    ends = [(at, reason) for at, state, reason in trace(a, ">", "b") if state is DISCONNECTED]
    acceptor_first = {Reason.CONNECTION_LOST} if direction == "up" else set()
    assert ends[0][1] in {Reason.ACK_TIMEOUT} | acceptor_first
    assert 8 <= ends[0][0] - cut_at <= 9.3
    world.settle(10)
    assert b.disk.views["a"] == a.disk.facts
    assert DISCONNECTED not in [state for _, state, _ in trace(b, ">", "a")]


def test_torn_frame() -> None:
    """A connection that ends at every byte of a frame."""
    settings = replace(SETTINGS, backoff_most=0.2)
    world = connected(World("torn", "ab", commit=(0.001, 0.001), settings=settings))
    a, b = world.nodes.values()
    torn = 0
    for number in range(95):
        wire = only(world, "a", "b")
        facts(a, number, 1)
        world.run(0.0011)
        data = b"".join(piece for _, piece in wire.up.queue)
        wire.up.queue.clear()
        wire.up.queue.append((world.now, data[: number + 1]))
        wire.up.flow()
        torn += len(data) > number + 1
        wire.cut()
        world.settle(15)
    assert torn == 95
    assert b.disk.views["a"] == a.disk.facts


# --- nodes and disks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "amid", "after"])
@pytest.mark.parametrize("crashing", ["a", "b"])
def test_crash_at_every_commit(crashing: str, moment: str) -> None:
    for number in range(1, 13):
        world = World(f"crash {number}", "ab", commit=(0.01, 0.02))
        node, other = world.nodes[crashing], world.nodes["ab".replace(crashing, "")]
        node.crash_at[number] = moment
        for fact in range(12):
            facts(node, fact, 1)
            facts(other, fact, 1)
            world.run(0.03)
        world.run(1)
        assert node.up is (node.commits < number)
        world.restart(crashing)
        world.settle(20)
        assert set(node.answered) <= set(node.disk.facts), "what was answered is on disk"


def test_disk_lost() -> None:
    world = connected(World("disk lost"))
    a, b, _ = world.nodes.values()
    facts(a, 0, 20)
    facts(b, 0, 20)
    world.settle()
    a.crash()
    world.restart("a", Disk())
    facts(a, 100, 1)
    world.settle(20)
    assert list(b.disk.views["a"]) == [b"a100"], "the view is what the node holds now"
    assert len(a.disk.views["b"]) == 20, "and it has learned again what the others hold"


def test_disk_restored() -> None:
    world = connected(World("disk restored"))
    a, b, _ = world.nodes.values()
    facts(a, 0, 5)
    facts(b, 0, 5)
    world.settle()
    older = copy.deepcopy(a.disk)
    facts(a, 5, 5)
    facts(b, 5, 5)
    b.retire(b"b0")
    world.settle()
    a.crash()
    world.run(3)
    world.restart("a", older)
    world.settle(20)
    assert len(b.disk.views["a"]) == 5
    assert sorted(a.disk.views["b"]) == [b"b%d" % number for number in range(1, 10)]


@pytest.mark.slow
def test_slow_reader() -> None:
    """A peer that reads slowly, or not at all, changes no byte and no time of another link."""

    def run(rate: float | None, *, stall: bool) -> tuple[World, object]:
        world = World("slow reader", commit=(0.002, 0.002))

        def slow(wire: Wire) -> None:
            if wire.acceptor.name == "c":
                wire.up.rate = rate

        world.on_wire = slow
        world.run(1)
        if stall:
            world.nodes["c"].stalled_until = world.now + 25
        for number in range(600):
            facts(world.nodes["a"], number, 1, 200)
            world.run(0.05)
        wire = only(world, "a", "b")
        return world, (bytes(wire.up.written), wire.up.frames, trace(world.nodes["a"], ">", "b"))

    plain, expected = run(None, stall=False)
    assert plain.different() == []
    for rate, stall in ((1_000.0, False), (None, True)):
        world, found = run(rate, stall=stall)
        assert found == expected
        reasons = {reason for _, state, reason in trace(world.nodes["a"], ">", "c") if state is DISCONNECTED}
        assert reasons & {Reason.QUEUE_FULL, Reason.ACK_TIMEOUT}
        world.heal()
        for each in world.open_wires(acceptor="c"):
            each.cut()
        world.settle()


def test_absent_12_hours() -> None:
    settings = replace(
        SETTINGS,
        heartbeat_idle=60.0, suspect_after=200.0, drop_after=600.0, ack_timeout=600.0, backoff_most=60.0,
    )  # fmt: skip
    world = World("absent", settings=settings, tick=5.0)
    world.settle(120)
    a, b, c = world.nodes.values()
    events = len(trace(a, ">", "b")), len(trace(b, "<", "a"))
    c.crash()
    for hour in range(12):
        facts(a, 50 * hour, 50)
        facts(b, 50 * hour, 50)
        world.run(3_600)
        assert (a.links["c"].in_flight, a.links["c"].queued) == (0, 0)
        assert len(world.wires) <= 10
    assert (len(trace(a, ">", "b")), len(trace(b, "<", "a"))) == events
    world.restart("c")
    world.settle(300)
    assert {peer: len(view) for peer, view in c.disk.views.items()} == {"a": 600, "b": 600}


@pytest.mark.parametrize(
    "count", [4_000, pytest.param(200_000, marks=pytest.mark.slow), pytest.param(1_000_000, marks=pytest.mark.soak)]
)
def test_memory_is_flat_over_any_number_of_messages(count: int) -> None:
    world = connected(World("flat", "ab"))
    a, b = world.nodes.values()
    wire = only(world, "a", "b")
    held = Counter[str]()
    for _ in range(count // 20):
        for each in range(20):
            a.fact(b"%d" % (each % 5))  # facts that replace each other
        world.run(0.02)
        held["bytes"] = max(
            held["bytes"], a.links["b"].in_flight + a.links["b"].queued + wire.acceptor.acceptor.links[wire].held
        )
        wire.up.written.clear()
        del wire.sent[: wire.delivered], wire.up.frames[:-2], wire.down.frames[:-3]
        wire.delivered = 0
        a.answered.clear()
    world.run(1)
    assert b.disk.views["a"] == a.disk.facts
    assert held["bytes"] < 40_000


# --- hostile -----------------------------------------------------------------------------------------------


def verified(world: World) -> list[object]:
    """Messages and sessions that any node accepts from now on."""
    accepted: list[object] = []
    for node in world.nodes.values():
        incoming = node.incoming

        def watched(effects: list[tuple[object, object]], incoming: object = incoming) -> None:
            accepted.extend(effect for _, effect in effects if isinstance(effect, (Received, Begun)))
            incoming(effects)  # type: ignore[operator]

        node.incoming = watched  # type: ignore[method-assign]
    return accepted


def test_hostile_bytes() -> None:
    world = connected(World("hostile"))
    dialog = bytes(only(world, "a", "b").up.written)
    accepted, draw = verified(world), Random(7)
    links = len(world.open_wires())
    for number in range(300):
        wire = world.intruder("abc"[number % 3])
        noise = draw.choice(
            (
                draw.randbytes(draw.randint(1, 3_000)),
                len(dialog).to_bytes(4, "big") + dialog,
                bytes(3) + bytes((40,)) + draw.randbytes(40),
                mutated(dialog, draw),
                dialog[: draw.randint(0, 129)],
                b"",
            )
        )
        wire.up.write(noise)
        pending = [link for link in wire.acceptor.acceptor.links.values() if link.state is LinkState.CONNECTING]
        assert len(pending) <= 70
        world.run(0.05)
    world.run(6)
    assert accepted == []
    assert len(world.open_wires()) == links
    assert world.different() == []
    reasons = Counter(reason for node in world.nodes.values() for reason in node.reasons)
    assert {
        Reason.EXCEEDED_SIZE_LIMIT, Reason.DECODER_FAILURE, Reason.BAD_SIGNATURE, Reason.HANDSHAKE_TIMEOUT,
        Reason.REFUSED,
    } <= set(reasons)  # fmt: skip


@pytest.mark.parametrize("direction", ["up", "down"])
def test_bytes_changed_on_the_way(direction: str) -> None:
    """One bit of a live connection: the link ends, and the next session has everything."""
    draw, world = Random(3), connected(World("changed", "ab"))
    a, b = world.nodes.values()
    for number in range(40):
        wire = only(world, "a", "b")
        wire.forged = True
        facts(a, number, 1)
        pipe = wire.up if direction == "up" else wire.down
        while not pipe.queue:
            world.run(0.001)
        due, piece = pipe.queue[0]
        pipe.queue[0] = due, mutated(piece, draw)
        world.run(0.5)
        world.settle(30)
    assert b.disk.views["a"] == a.disk.facts
    bad = {Reason.BAD_SIGNATURE, Reason.DECODER_FAILURE, Reason.EXCEEDED_SIZE_LIMIT, Reason.BAD_SEQUENCE}
    reasons = Counter((b if direction == "up" else a).reasons)
    assert sum(reasons[reason] for reason in bad | {Reason.BAD_ACKNOWLEDGEMENT}) >= 30


def test_replay() -> None:
    world = connected(World("replay"))
    facts(world.nodes["a"], 0, 5)
    world.settle()
    wire = only(world, "a", "b")
    up, down = bytes(wire.up.written), bytes(wire.down.written)
    live = [bytes(each.up.written) for each in world.open_wires()]
    accepted = verified(world)
    for target in "abc":
        for data in (up, down, up[129:], *live):
            intruder = world.intruder(target)
            intruder.up.write(data)
            world.run(0.5)
            assert not intruder.open
    assert accepted == []
    wire.cut()
    world.run(0.3)
    for data in (up[-100:], up, up[:129]):  # on a later connection of the same peers
        world.settle()
        again = only(world, "a", "b")
        again.forged = True
        accepted.clear()
        again.up.write(data)
        world.run(0.1)
        assert accepted == []
        assert not again.open
    world.settle()
    assert world.nodes["b"].disk.views["a"] == world.nodes["a"].disk.facts


def test_wrong_members() -> None:
    right = cluster_of("abc")
    wrong = {"c": cluster_of("abc", epoch=1), "d": cluster_of("abcd")}
    world = World("wrong members", clusters={"a": right, "b": right} | wrong)
    world.run(60)
    for name in "ab":
        node = world.nodes[name]
        assert node.links["c"].detail.startswith("CLUSTER: ")
        dials = [at for at, state, _ in trace(node, ">", "c") if state is LinkState.CONNECTING]
        assert min(later - earlier for earlier, later in pairwise(dials)) >= 5, "the longest delay at once"
        assert trace(node, "<", "c") == []
        assert Reason.REFUSED in node.reasons
    assert world.nodes["c"].links["a"].detail.startswith("CLUSTER: ")
    assert world.nodes["d"].links["a"].detail.startswith("CLUSTER: ")
    assert world.nodes["a"].links["b"].state is CONNECTED
    assert set(world.nodes["a"].disk.views) == {"b"}


# --- time --------------------------------------------------------------------------------------------------


def test_idle_links_carry_one_heartbeat_and_one_acknowledgement_a_second() -> None:
    world = connected(World("idle"))
    world.run(2)
    before = {wire.name: (len(wire.up.written), len(wire.down.written)) for wire in world.open_wires()}
    world.run(60)
    assert len(before) == 6
    for wire in world.open_wires():
        up, down = (bytes(pipe.written[at:]) for pipe, at in zip((wire.up, wire.down), before[wire.name], strict=True))
        for data, kind in ((up, Heartbeat), (down, Ack)):
            frames = [decode(each) for each in closed(data)]
            assert {type(frame) for frame in frames} == {kind}
            assert 55 <= len(frames) <= 61


def closed(data: bytes) -> list[bytes]:
    found = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        found.append(data[:end])
        data = data[end:]
    return found


@pytest.mark.parametrize("tick", [0.05, 0.25, 1.0])
def test_clock_by_ticks(tick: float) -> None:
    """Times come from ticks alone: coarser ones make events later by one tick at most."""
    world = World("ticks", "ab", tick=tick, settings=MeshSettings())
    a, b = world.nodes.values()
    world.settle(60)
    wire = only(world, "a", "b")
    start = world.now
    last_frame, _ = wire.up.frames[-1]
    wire.up.silent = True
    facts(a, 0, 1)
    world.run(13)
    outgoing = [(state, at - start) for at, state, _ in trace(a, ">", "b") if at > start]
    incoming = [(state, at - last_frame) for at, state, _ in trace(b, "<", "a") if at > start]
    assert [state for state, _ in outgoing[:2]] == [SUSPECTED, DISCONNECTED]
    assert [state for state, _ in incoming[:2]] == [SUSPECTED, DISCONNECTED]
    for events, late in ((outgoing, 1.1), (incoming, 0.0)):
        assert 3 - late <= events[0][1] <= 3 + tick + 0.1
        assert 9 - late <= events[1][1] <= 9 + tick + 0.1
    world.settle(30)


# --- the four sequences of the specification, in which messages are lost ------------------------------------------


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
