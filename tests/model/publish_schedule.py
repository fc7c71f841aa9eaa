"""Seeded schedules of the publish arbiter: random inputs to it and to its model, compared after every one.

    run_inputs(4711)          # None, or one line that can be repeated

Two of three schedules are about forks. Publishers offer blocks of a random tree: honest ones go along a branch, others
offer whatever, claim other parents, end in mid-block, or send sets that break the rules. Verdicts come late, twice, for
copies that are gone; nodes restart with what they have acknowledged.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any, Final

from cardinal_ingest.protocols.publish import ArbiterSettings, Start

from .publish_model import NONE, Id, NaiveArbiter
from .publish_scenario import Scenario, by_recipient, told

_STEPS: Final = 160
_PEOPLE: Final = ("p1", "p2", "p3", "p4")


class Inputs:
    """One schedule: chooses the next input from what the arbiter has put out so far."""

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.forks = seed % 3 != 0
        first = draw.randrange(10, 900)
        config: dict[str, Any] = {
            name: draw.choice(values)
            for name, values in {
                "stall_distance": (1, 2, 3), "max_open_blocks": (2, 4, 64), "duplicate_window": (1, 5),
                "max_block_items": (6, 1_000_000), "side_branches": (2, 4), "unavailable_after": (9, 300),
                "max_block_bytes": (150, 131_072_000),
            }.items()
        }  # fmt: skip
        begin = draw.random()
        self.tree: list[tuple[Id, Id]] = [((first, "a" if self.forks else ""), (first - 1, "a" if self.forks else ""))]
        self.stored: list[tuple[int, str, str]] = []
        if self.forks:
            config["reorg_threshold"] = draw.choice((2, 3, 8))
            if begin < 0.8:
                self.stored = [(first, f"{first}a", f"{first - 1}a")]
                config["stored_blocks"] = self.stored
            self.tree = [((first, f"{first}a"), (first - 1, f"{first - 1}a"))]
        elif begin < 0.7:
            config["last_stored"] = first
        if begin >= 0.9:
            config["first"] = first
        self.config = config
        self.scenario = Scenario({"config": config, "steps": [], "expect": []})
        self.model = self._model(self.stored)
        self.copies: list[tuple[Id, int]] = []
        self.connections: list[str] = []
        self.times: defaultdict[str, int] = defaultdict(int)
        self.heads: dict[str, Id] = {}
        self.in_hand: dict[str, Id] = {}
        self.last_step: dict[str, Any] = {}

    def _model(self, stored: list[tuple[int, str, str]]) -> NaiveArbiter:
        values = {name: value for name, value in self.config.items() if name != "stored_blocks"}
        return NaiveArbiter(ArbiterSettings(**values), stored, self.scenario.now)

    # --- choices ----------------------------------------------------------------------------------------------

    def choose(self) -> dict[str, Any]:  # noqa: PLR0911 - one for each input
        draw = self.random
        kind = draw.choices(
            ("connect", "header", "content", "verdict", "tick", "stored", "leave", "odd", "restart"),
            (2 if len(self.connections) < 6 else 0, 10, 8, 8, 3, 0.6, 0.8, 0.4, 0.15),
        )[0]
        if kind == "connect" or (not self.connections and kind in ("header", "content", "leave", "odd")):
            who = draw.choice(_PEOPLE)
            self.times[who] += 1
            return {"connect": f"{who}#{self.times[who]}"}
        match kind:
            case "header":
                return self._header(draw.choice(self.connections))
            case "content":
                conn = draw.choice(list(self.in_hand) or self.connections)
                return {"from": conn, "send": self._content(conn)}
            case "verdict" if self.copies:
                return self._verdict()
            case "stored":
                block, parent = self._some_block()
                return {"stored": block[0]} | self._names(block, parent)
            case "leave":
                conn = draw.choice(self.connections)
                if draw.random() < 0.5:
                    return {"disconnect": conn}
                code = draw.choice(("RESET", "TIMEOUT", "ERROR", "UNKNOWN", "TOO_FAR_BEHIND"))
                low = self._some_block()[0][0]
                latest = draw.choice((low, low + 4, low - 3, NONE))
                return {"from": conn, "send": {"end_stream": {"code": code, "earliest": low, "latest": latest}}}
            case "odd":
                conn = draw.choice(self.connections)
                number = self.tree[-1][0][0]
                odd: tuple[Any, ...] = (
                    {"unset": True},
                    {"block_items": []},
                    {"block_items": [{"malformed": "0a0118"}]},
                    {"block_items": [{"proof": 1}, {"other": 5, "bytes": 2}]},
                    {"block_items": [{"header": NONE}]},
                    {"block_items": [{"header": number}, {"header": number}]},
                    {"block_items": [{"header": number, "hash": None, "parent": None}]},
                )
                return {"from": conn, "send": draw.choice(odd)}
            case "restart" if self.forks:
                return {"restart": None}
            case _:
                return {"tick": draw.choice((0.125, 0.25, 1, 2, 4, 8))}

    def _some_block(self) -> tuple[Id, Id]:
        """A block of the tree, mostly near its newest one, or a new child."""
        draw = self.random
        if draw.random() < 0.4:
            return draw.choice(self.tree[-6:])
        (number, _), _ = parent_entry = draw.choice(self.tree[-3:])
        return self._child(parent_entry[0]) if draw.random() < 0.8 else self._child((number + 1, f"{number + 1}z"))

    def _child(self, parent: Id) -> tuple[Id, Id]:
        number = parent[0] + 1
        if not self.forks:
            entry = ((number, ""), (number - 1, ""))
        else:
            letters = "aaaabcd"
            name = f"{number}{self.random.choice(letters)}"
            entry = ((number, name), parent)
        if entry not in self.tree:
            self.tree.append(entry)
            self.tree.sort(key=lambda one: one[0][0])
        return entry

    def _header(self, conn: str) -> dict[str, Any]:
        draw = self.random
        head = self.heads.get(conn)
        if head is not None and draw.random() < 0.6:
            children = [entry for entry in self.tree if entry[1] == head]
            block, parent = draw.choice(children) if children and draw.random() < 0.8 else self._child(head)
        else:
            block, parent = self._some_block()
        if self.forks and draw.random() < 0.04:
            parent = (parent[0], f"{parent[0]}b")
        self.heads[conn], self.in_hand[conn] = block, block
        items: list[dict[str, Any]] = [{"header": block[0]} | self._names(block, parent)]
        if draw.random() < 0.5:
            items.append({"other": 5, "bytes": draw.choice((1, 60))})
            if draw.random() < 0.7:
                items.append({"proof": block[0]})
        return {"from": conn, "send": {"block_items": items}}

    def _content(self, conn: str) -> dict[str, Any]:
        draw = self.random
        number = self.in_hand.get(conn, self.tree[-1][0])[0]
        if draw.random() < 0.45:
            return {"end_of_block": number if draw.random() < 0.95 else number + 1}
        return {"block_items": [{"proof": number}] if draw.random() < 0.6 else [{"other": 7, "bytes": 9}]}

    def _verdict(self) -> dict[str, Any]:
        draw = self.random
        block, attempt = draw.choice(self.copies[-5:] if draw.random() < 0.9 else self.copies)
        step: dict[str, Any] = {"attempt": attempt} | ({"hash": block[1]} if self.forks else {})
        chance = draw.random()
        if chance < 0.85:
            return {"verified" if draw.random() < 0.5 else "persisted": block[0]} | step
        return {"failed": block[0], "why": draw.choices(("bad", "undecided", "persistence"), (6, 3, 1))[0]} | step

    def _names(self, block: Id, parent: Id) -> dict[str, Any]:
        return {"hash": block[1], "parent": parent[1]} if self.forks else {}

    # --- the run ----------------------------------------------------------------------------------------------

    def step(self) -> str | None:
        """Take one step; return how core and model differ."""
        step = self.choose()
        if "restart" in step:
            step = {
                "restart": [
                    (number, name, known["parent"][1])
                    for (number, name), known in self.model.blocks.items()
                    if known["state"] == "acknowledged"
                ]
            }
            self.model = self._model(step["restart"])
            self.connections, self.copies = [], []
        self.last_step = step
        effects = self.scenario.step(step)
        found = by_recipient([out for effect in effects if (out := told(effect)) is not None])
        if "restart" in step:
            return None
        expected = by_recipient(self.model.feed(step, self.scenario.now))
        for effect in effects:
            if isinstance(effect, Start):
                name = effect.block.hash.rstrip(b"\0").decode()
                self.copies.append(((effect.block.number, name), effect.attempt))
        self.connections = list(self.model.conns)
        if "connect" in step or "disconnect" in step or "from" in step:
            conn = step.get("connect") or step.get("disconnect") or step["from"]
            if conn not in self.connections or "end_of_block" in step.get("send", {}):
                self.in_hand.pop(conn, None)
        self.in_hand = {conn: block for conn, block in self.in_hand.items() if conn in self.connections}
        return None if found == expected else f"{step}: the arbiter puts out {found}, the model {expected}"


def run_inputs(seed: int, steps: int = _STEPS) -> str | None:
    """Run the schedule of a seed; return the first difference."""
    inputs = Inputs(seed)
    for number in range(steps):
        try:
            difference = inputs.step()
        except Exception as error:  # noqa: BLE001 - whatever the arbiter raises is a difference: it raises nothing
            difference = f"{inputs.last_step}: {error!r}"
        if difference:
            return f"publish seed {seed}, step {number}: {difference}"
    return None
