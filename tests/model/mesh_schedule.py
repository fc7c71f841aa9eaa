"""Seeded schedules of faults for the mesh.

    run_mesh(4711)            # None, or one line that can be repeated

Two or three nodes commit and retire facts while wires are cut, go silent, turn slow or are changed on the way, nodes
crash around commits, disks are lost, restored or stall, and intruders send noise and what they recorded. At the end the
faults stop, and every view must become equal to the facts.
"""

from __future__ import annotations

import copy
import random
from typing import Final

from .mesh_network import PIECE, Disk, Node, Wire, World

STEPS: Final = 50


class Faults:
    """One schedule: the next fault is chosen by the seed."""

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.world = World(
            seed, draw.choice(("ab", "abc", "abc")), latency=draw.choice(((0.001, 0.02), (0.05, 0.4), (0.0, 0.001)))
        )
        self.world.on_wire = self._record
        self.recorded: list[Wire] = []
        self.copies: dict[str, Disk] = {}
        self.names: list[tuple[Node, bytes]] = []
        self.last = ""

    def _record(self, wire: Wire) -> None:
        self.recorded = [*self.recorded[-20:], wire]

    def _node(self) -> Node:
        return self.random.choice(list(self.world.nodes.values()))

    def _wires(self) -> list[Wire]:
        wires = self.world.open_wires()
        return [self.random.choice(wires)] if wires else []

    # --- faults ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        node = self._node()
        for _ in range(self.random.choice((1, 5, 40))):
            name = b"%s%d" % (node.name.encode(), len(self.names))
            self.names.append((node, name))
            node.fact(name, self.random.choice((20, 20, 300, 1_500)))

    def retire(self) -> None:
        for node, name in self.random.sample(self.names, min(len(self.names), 5)):
            node.retire(name)

    def cut(self) -> None:
        for wire in self._wires():
            wire.cut()

    def silence(self) -> None:
        for wire in self._wires():
            for pipe in self.random.choice(((wire.up,), (wire.down,), (wire.up, wire.down))):
                pipe.silent = True

    def slow(self) -> None:
        for wire in self._wires():
            wire.up.rate = self.random.choice((200, 2_000, 20_000))

    def unreachable(self) -> None:
        names = list(self.world.nodes)
        pair = (self.random.choice(names), self.random.choice(names))
        self.world.unreachable.add(pair)
        self.world.at(self.world.now + self.random.uniform(0.5, 15), lambda: self.world.unreachable.discard(pair))
        for wire in self.world.open_wires(*pair):
            wire.cut()

    def crash(self) -> None:
        node = self._node()
        if node.up:
            node.crash_at[node.commits + self.random.randint(1, 4)] = self.random.choice(("before", "amid", "after"))
        self.world.at(self.world.now + self.random.uniform(0.5, 12), lambda: self.world.restart(node.name))

    def copy(self) -> None:
        node = self._node()
        self.copies[node.name] = copy.deepcopy(node.disk)

    def disk(self) -> None:
        node = self._node()
        node.crash()
        other = self.copies.get(node.name, Disk()) if self.random.random() < 0.6 else Disk()
        self.world.at(self.world.now + self.random.uniform(0.1, 5), lambda: self.world.restart(node.name, other))

    def stall(self) -> None:
        node = self._node()
        node.stalled_until = self.world.now + self.random.choice((0.5, 4, 12))
        if self.random.random() < 0.3 and node.up:
            node.incoming(node.acceptor.close(self.world.now))

    def change(self) -> None:
        """Change bytes on the way."""
        for wire in self._wires():
            pipe = self.random.choice((wire.up, wire.down))
            if pipe.queue:
                wire.forged = True
                due, piece = pipe.queue[0]
                pipe.queue[0] = due, mutated(piece, self.random)

    def intrude(self) -> None:
        """Send noise, a recorded dialog, or a part of one, to somebody."""
        node, draw = self._node(), self.random
        if not node.up:
            return
        wire = self.world.intruder(node.name)
        data = bytes(draw.choice(self.recorded).up.written[:5_000]) if self.recorded else b""
        kind = draw.choice(("noise", "replay", "mutation", "part"))
        if kind == "noise":
            data = draw.randbytes(draw.randint(0, 300))
        elif kind == "mutation" and data:
            data = mutated(data, draw)
        elif kind == "part":
            data = data[: draw.randint(0, len(data))]
        wire.up.write(data[: 8 * PIECE])
        self.world.at(self.world.now + draw.choice((0.5, 20)), wire.cut)

    # --- the run ---------------------------------------------------------------------------------------------

    def step(self) -> None:
        kinds = {
            self.load: 12, self.retire: 3, self.cut: 4, self.silence: 2, self.slow: 1, self.unreachable: 1,
            self.crash: 2, self.copy: 1, self.disk: 1, self.stall: 1, self.change: 1, self.intrude: 3,
        }  # fmt: skip
        fault = self.random.choices(list(kinds), list(kinds.values()))[0]
        self.last = fault.__name__
        fault()
        self.world.run(self.random.choice((0.02, 0.2, 0.5, 2.0)))


def mutated(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    at = draw.randrange(len(changed))
    changed[at] ^= 1 << draw.randrange(8)
    return bytes(changed)


def run_mesh(seed: int, steps: int = STEPS) -> str | None:
    """Run the schedule of a seed; return the first invariant that does not hold."""
    faults, number = Faults(seed), 0
    try:
        for number in range(steps):  # noqa: B007 - named in the report
            faults.step()
        faults.last = "heal"
        faults.world.heal()
        faults.world.settle()
    except Exception as error:  # noqa: BLE001 - whatever a link raises is a fault: it raises nothing
        return f"mesh seed {seed}, step {number} ({faults.last}), {faults.world.now:.2f} s: {error!r}"
    return None
