"""Naive model of the publish arbiter: the rows of the decisions in turn, everything searched for each time.

It works on the vectors' format: requests are dicts, outputs are (recipient, dict). A block is ``(number, label)``, with
an empty label where there are no forks. Nothing is counted or indexed; a derived fact is computed from the blocks, the
connections and their headers whenever it is needed. Rows are methods named after the decision; the first of a table
that returns True is the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from cardinal_ingest.body import frame
from cardinal_ingest.protocols.publish import ArbiterSettings

from .publish_scenario import item

NONE: Final = 2**64 - 1
Id = tuple[int, str]
Output = tuple[str, dict[str, Any]]


class NaiveArbiter:
    """The node's side, by number and with forks."""

    def __init__(self, settings: ArbiterSettings, stored: list[tuple[int, str, str]], now: float = 0.0) -> None:
        self.s = settings
        self.forks = settings.reorg_threshold is not None
        self.blocks: dict[Id, dict[str, Any]] = {
            (number, label): {"parent": (number - 1, parent), "state": "acknowledged", "who": None}
            for number, label, parent in stored
        }
        self.start = min((number for number, _, _ in stored), default=settings.first)
        self.last = settings.last_stored
        self.ever: list[Id] = [(number, label) for number, label, _ in stored]
        self.conns: dict[str, dict[str, Any]] = {}
        self.copies: list[int] = []
        self.distances: list[int] = []
        self.target = -1
        self.now = self.empty_since = now
        self.silent = False
        self.out: list[Output] = []

    # --- facts ------------------------------------------------------------------------------------------------

    def highest(self) -> int:
        """The highest acknowledged number; below the start while there is none."""
        if not self.forks and self.last is not None:
            return self.last
        if self.forks and self.ever:
            return max(number for number, _ in self.ever)
        return -1 if self.start is None else self.start - 1

    def nothing_stored(self) -> bool:
        return not self.ever if self.forks else self.last is None

    def floor(self) -> int:
        if not self.forks:
            return self.highest()
        assert self.s.reorg_threshold is not None
        return self.highest() if self.start is None else max(self.highest() - self.s.reorg_threshold, self.start - 1)

    def is_acknowledged(self, block: Id) -> bool:
        if not self.forks:
            return block[0] <= self.highest()
        return block in self.blocks and self.blocks[block]["state"] == "acknowledged"

    def path(self, tip: Id | None) -> list[Id]:
        """The branch that ends at a block."""
        if tip is None:
            return []
        if not self.forks:
            return [(number, "") for number in range(tip[0], max(-1, tip[0] - 200), -1)]
        found = []
        while tip in self.blocks:
            found.append(tip)
            tip = self.blocks[tip]["parent"]
        return found

    def attached_to(self, parent: Id) -> Id | None:
        """The nearest acknowledged block at or below a parent."""
        while True:
            if self.is_acknowledged(parent):
                return parent
            if parent not in self.blocks:
                return parent if self.start is not None and parent[0] == self.start - 1 else None
            parent = self.blocks[parent]["parent"]

    def following(self) -> int:
        """The lowest number above the highest acknowledged one in no state."""
        number = self.highest() + 1
        while not self.forks and (number, "") in self.blocks:
            number += 1
        return number

    def in_state(self, *states: str) -> list[Id]:
        return sorted(block for block, known in self.blocks.items() if known["state"] in states)

    def passed(self, conn: str, block: Id) -> bool:
        return block in self.path(self.conns[conn]["at"])

    def may_send(self, conn: str, block: Id) -> bool:
        excluded = self.blocks[block]["excluded"]
        suppliers = {
            other["identity"]
            for name, other in self.conns.items()
            if other["at"] is None or self.passed(name, block) or other["at"] in self.path(block) or not self.forks
        }
        return self.conns[conn]["identity"] not in excluded or suppliers <= excluded

    # --- outputs ----------------------------------------------------------------------------------------------

    def say(self, to: str, **what: object) -> None:
        self.out.append((to, what))

    def named(self, block: Id, **more: object) -> dict[str, Any]:
        return {"block": block[0]} | ({"hash": block[1]} if self.forks else {}) | more

    def end(self, conn: str, status: str, proximate: int, number: int | None = None) -> None:
        if number is None:
            number = NONE if self.nothing_stored() else self.highest()
            if self.forks and not self.nothing_stored():
                number = self.floor() if self.conns[conn]["sent"] is None else self.conns[conn]["sent"]
        end = {"status": status, "block_number": number % 2**64, "proximate_block_number": proximate}
        self.say(conn, end_stream=end)
        self.gone(conn)

    def gone(self, conn: str) -> None:
        del self.conns[conn]
        self.empty_since = self.now

    def acknowledge_to(self, conn: str, number: int) -> None:
        sent = self.conns[conn]["sent"]
        if sent is None or number > sent:
            self.conns[conn]["sent"] = number
            self.say(conn, acknowledgement=number)

    def catch_up(self, first: int, last: int) -> None:
        if last > self.target:
            self.target = last
            self.say("node", catch_up={"first": first, "last": last})

    # --- inputs -----------------------------------------------------------------------------------------------

    def feed(self, step: Mapping[str, Any], now: float) -> list[Output]:
        """One step of a scenario, in the vectors' format; verdicts name their attempt."""
        self.now, self.out = now, []
        match step:
            case {"connect": conn}:
                self.conns[conn] = {
                    "identity": conn.split("#")[0], "block": None, "at": None, "headers": [],
                    "run": [], "sent": None, "led": None, "steps": 0, "asked": [],
                }  # fmt: skip
                self.silent = False
            case {"disconnect": conn} if conn in self.conns:
                self.leave(conn)
                self.source_error()
            case {"from": conn, "send": send} if conn in self.conns:
                self.message(conn, send)
            case {"verified": _} | {"persisted": _} | {"failed": _}:
                self.verdict(step)
            case {"stored": number}:
                self.p28((number, step.get("hash", "")), (number - 1, step.get("parent", "")))
            case {"tick": _}:
                self.tick()
            case {"shutdown": _}:
                for conn in list(self.conns):
                    at = self.conns[conn]["at"]
                    self.end(conn, "SUCCESS", at[0] if at else 0)
                for block in self.in_state("streaming"):
                    del self.blocks[block]
        return self.out

    def message(self, conn: str, send: Mapping[str, Any]) -> None:
        block = self.conns[conn]["block"]
        match send:
            case {"block_items": items}:
                self.items(conn, items)
            case {"end_of_block": number} if block is not None:
                if number == block[0] and self.blocks[block]["proven"]:
                    self.complete(block)
                else:
                    self.p4(conn)
            case {"end_stream": end}:
                self.leave(conn)
                known = self.start is not None or self.last is not None
                if end["code"] == "TOO_FAR_BEHIND" and known:
                    usable = end["earliest"] <= end["latest"] < NONE and end["latest"] >= self.following()
                    if usable:
                        self.catch_up(self.following(), end["latest"])
                if end["code"] in ("ERROR", "UNKNOWN"):
                    self.source_error()
            case {"unset": _}:
                self.p4(conn)

    def items(self, conn: str, items: list[dict[str, Any]]) -> None:
        me = self.conns[conn]
        kinds = ["malformed" if "malformed" in one else next(iter(one)) for one in items]
        ends_at = kinds.index("proof") if "proof" in kinds else len(kinds)
        if (
            not items
            or "malformed" in kinds
            or "header" in kinds[1:]
            or any(kind != "proof" for kind in kinds[ends_at:])
            or NONE in [one.get("header") for one in items]
            or (kinds[0] == "other" and me["block"] is not None and self.blocks[me["block"]]["proven"])
        ):
            self.p4(conn)
            return
        if kinds[0] == "header":
            self.header(conn, items[0])
        if conn not in self.conns or me["block"] is None:
            return
        copy = self.blocks[me["block"]]
        copy["items"] += items
        size = len(frame([item(one) for one in copy["items"]]))
        if size > self.s.max_block_bytes or len(copy["items"]) > self.s.max_block_items:
            self.p4(conn)
            return
        copy["heard"], copy["proven"] = self.now, kinds[-1] == "proof"

    def p4(self, conn: str) -> None:
        block = self.conns[conn]["block"]
        self.end(conn, "INVALID_REQUEST", block[0] if block else 0)
        if block:
            self.drop(block, by=conn)

    def header(self, conn: str, given: Mapping[str, Any]) -> None:
        me = self.conns[conn]
        number = given["header"]
        block = (number, given.get("hash") or "") if self.forks else (number, "")
        parent = (number - 1, given.get("parent") or "") if self.forks else (number - 1, "")
        other_parent = block in self.blocks and self.blocks[block]["parent"] != parent
        if self.forks and (not block[1] or not parent[1] or (self.is_acknowledged(block) and other_parent)):
            self.p4(conn)
            return
        if self.start is None and self.last is None:
            self.start = number
        turn = self.forks and bool(me["headers"]) and me["headers"][-1] != parent
        me["headers"].append(block)
        if turn:
            self.say(conn, acknowledgement=NONE)
            me.update(sent=None, at=None, run=[])
        current = me["block"]
        restarted = None
        if current is not None:
            if self.blocks[current]["proven"]:
                self.complete(current)
            elif current == block and self.blocks[block]["parent"] == parent and self.goes_on(parent):
                restarted = self.blocks[block]
                self.say("node", discard=self.named(block, attempt=restarted["attempt"]))
            else:
                self.p19(conn, current, block, parent)
        table = (
            [self.p43_floor, self.p43_two_parents, self.p45, self.p9, self.p44, self.p6, self.p7, self.p11, self.p13,
             self.p12]
            if self.forks
            else [self.p6, self.p7, self.p8, self.p9, self.p10, self.p11, self.p14, self.p13, self.p12]
        )  # fmt: skip
        me["asked"] = [asked for asked in me["asked"] if asked != block]
        ask = {"block": block, "parent": parent, "turn": turn, "restarted": restarted}
        assert any(row(conn, ask) for row in table), ask

    def goes_on(self, parent: Id) -> bool:
        return not self.forks or self.attached_to(parent) is not None

    # --- rows -------------------------------------------------------------------------------------------------

    def skip(self, conn: str, block: Id) -> None:
        self.conns[conn]["at"] = block
        self.say(conn, skip_block=block[0])

    def run_on(self, conn: str, ask: Mapping[str, Any]) -> None:
        run = self.conns[conn]["run"]
        run += [ask["block"]] if run and run[-1] == ask["parent"] else []
        run += [] if run else [ask["parent"], ask["block"]]

    def p6(self, conn: str, ask: Mapping[str, Any]) -> bool:
        block = ask["block"]
        if block not in self.blocks or self.is_acknowledged(block):
            return False
        if self.blocks[block]["state"] == "wanted":
            self.blocks[block]["parent"] = ask["parent"]
        if not ask["restarted"] and not (self.blocks[block]["state"] == "wanted" and self.may_send(conn, block)):
            return False
        self.run_on(conn, ask)
        self.accept(conn, ask)
        return True

    def p7(self, conn: str, ask: Mapping[str, Any]) -> bool:
        block = ask["block"]
        if block not in self.in_state("wanted"):
            return False
        self.run_on(conn, ask)
        self.skip(conn, block)
        return True

    def p8(self, conn: str, ask: Mapping[str, Any]) -> bool:
        fits: bool = ask["block"][0] <= self.highest() and self.nothing_stored()
        if fits:
            self.skip(conn, ask["block"])
        return fits

    def p9(self, conn: str, ask: Mapping[str, Any]) -> bool:
        block = ask["block"]
        if not self.is_acknowledged(block):
            return False
        if not self.forks and self.highest() - block[0] > self.s.duplicate_window:
            return False
        self.run_on(conn, ask)
        self.skip(conn, block)
        self.acknowledge_to(conn, block[0] if self.forks else self.highest())
        return True

    def p10(self, conn: str, ask: Mapping[str, Any]) -> bool:
        fits: bool = ask["block"][0] <= self.highest()
        if fits:
            self.end(conn, "DUPLICATE_BLOCK", ask["block"][0])
        return fits

    def p11(self, conn: str, ask: Mapping[str, Any]) -> bool:
        block = ask["block"]
        if block not in self.in_state("streaming", "complete", "stored"):
            return False
        self.run_on(conn, ask)
        self.skip(conn, block)
        return True

    def p12(self, conn: str, ask: Mapping[str, Any]) -> bool:
        self.run_on(conn, ask)
        self.accept(conn, ask)
        return True

    def p13(self, conn: str, ask: Mapping[str, Any]) -> bool:
        number, parent = ask["block"][0], ask["parent"]
        base = self.attached_to(parent) if self.forks else (self.highest(), "")
        assert base is not None
        who = self.conns[conn]["identity"]
        own = [block for block, known in self.blocks.items() if known["who"] == who] if self.forks else []
        if (
            number <= base[0] + self.s.max_open_blocks
            and len([block for block in own if not self.is_acknowledged(block)]) < self.s.max_open_blocks
            and len([block for block in own if block[0] == number]) < self.s.side_branches
        ):
            return False
        if self.forks:
            self.conns[conn]["at"] = parent
            self.conns[conn]["run"] = self.conns[conn]["run"] or [parent]
        self.say(conn, node_behind_publisher=base[0] % 2**64)
        return True

    def p14(self, conn: str, ask: Mapping[str, Any]) -> bool:
        number = ask["block"][0]
        if number <= self.following():
            return False
        self.say(conn, node_behind_publisher=self.highest() % 2**64)
        self.catch_up(self.following(), number - 1)
        if len(self.conns[conn]["headers"]) == 1:
            self.distances.append(number - self.highest())
            recent = self.distances[-4:]
            if len([0 for a, b in pairwise(recent) if b >= a]) == 3:
                self.say("node", catch_up_stuck={"target": self.target})
                self.distances = self.distances[-1:]
        return True

    def p43_floor(self, conn: str, ask: Mapping[str, Any]) -> bool:
        number = ask["block"][0]
        if number > self.floor():
            return False
        assert self.start is not None
        if number < self.start:
            self.skip(conn, ask["block"])
        else:
            self.end(conn, "DUPLICATE_BLOCK", number)
        return True

    def p43_two_parents(self, conn: str, ask: Mapping[str, Any]) -> bool:
        known = self.blocks.get(ask["block"])
        if known is None or known["parent"] == ask["parent"] or known["state"] == "wanted":
            return False
        self.conns[conn]["at"] = None
        self.say(conn, node_behind_publisher=(ask["block"][0] - 1) % 2**64)
        return True

    def p44(self, conn: str, ask: Mapping[str, Any]) -> bool:
        """No row: the acknowledgement of the parent before the row's answer."""
        if self.is_acknowledged(ask["parent"]):
            if ask["turn"]:
                self.acknowledge_to(conn, ask["parent"][0])
            elif not self.conns[conn]["run"]:
                self.conns[conn]["sent"] = ask["parent"][0]
        return False

    def p45(self, conn: str, ask: Mapping[str, Any]) -> bool:
        me, number = self.conns[conn], ask["block"][0]
        if self.attached_to(ask["parent"]) is not None:
            me.update(led=None, steps=0)
            return False
        if number == self.floor() + 1:
            self.say("node", branch_refused=self.named(ask["block"]) | {"from": conn})
            self.end(conn, "ERROR", number, self.floor())
            return True
        if me["led"] is None:
            me["led"] = min(number - 2, self.highest())
        elif number <= me["led"] + 1:
            me["led"] = min(me["led"], number - 1) - 2 ** me["steps"]
            me["steps"] += 1
        me["led"] = max(me["led"], self.floor())
        me["at"] = None
        self.say(conn, node_behind_publisher=me["led"] % 2**64)
        if number - 1 > self.highest():
            self.catch_up(self.highest() + 1, number - 1)
        return True

    # --- copies -----------------------------------------------------------------------------------------------

    def accept(self, conn: str, ask: Mapping[str, Any]) -> None:
        block, me = ask["block"], self.conns[conn]
        before = self.blocks.get(block, {"excluded": set()})
        self.copies.append(block[0])
        complete = [other for other in self.in_state("complete") if block in self.path(other)] if self.forks else []
        if not self.forks:
            complete = [other for other in self.in_state("complete") if other > block]
        self.blocks[block] = {
            "parent": ask["parent"], "state": "streaming", "attempt": self.copies.count(block[0]), "conn": conn,
            "who": me["identity"], "flags": set(), "excluded": before["excluded"],
            "first": ask["restarted"]["first"] if ask["restarted"] else self.now, "heard": self.now, "proven": False,
            "base": max([number for number, _ in complete], default=-1), "items": [],
        }  # fmt: skip
        me.update(block=block, at=block)
        attempt = self.blocks[block]["attempt"]
        self.say("node", start=self.named(block, attempt=attempt) | {"from": conn})

    def complete(self, block: Id) -> None:
        copy = self.blocks[block]
        copy["state"] = "complete"
        conn = copy["conn"]
        self.say("node", complete=self.named(block, attempt=copy["attempt"]) | {"from": conn})
        if conn in self.conns:
            self.conns[conn]["block"] = None
        for slow in self.in_state("streaming"):  # P29
            known = self.blocks[slow]
            late = block[0] > max(slow[0], known["base"]) + self.s.stall_distance
            if late and not known["proven"] and slow in self.path(block):
                self.end(known["conn"], "TIMEOUT", slow[0])
                self.drop(slow, by=known["conn"])
        if conn in self.conns:  # P23
            for wanted in self.in_state("wanted"):
                fits = wanted < block and wanted in self.path(block) and self.may_send(conn, wanted)
                if fits and wanted not in self.conns[conn]["asked"]:
                    self.request(conn, wanted)
                    break

    def request(self, conn: str, block: Id) -> None:
        self.conns[conn]["asked"].append(block)
        self.say(conn, resend_block=block[0])

    def want(self, block: Id) -> None:
        copy = self.blocks[block]
        self.say("node", discard=self.named(block, attempt=copy["attempt"]))
        for other in self.conns.values():
            if other["block"] == block:
                other["block"] = None
            other["asked"] = [asked for asked in other["asked"] if asked != block]
        copy.update(state="wanted", since=self.now)

    def drop(self, block: Id, by: str, *, exclude: bool = True) -> None:
        if exclude:
            self.blocks[block]["excluded"].add(by.split("#", maxsplit=1)[0])
        self.want(block)
        for conn in self.conns:
            if self.passed(conn, block) and self.may_send(conn, block):
                self.request(conn, block)

    def p19(self, conn: str, current: Id, block: Id, parent: Id) -> None:
        """Another header in mid-block."""
        asked = block in self.conns[conn]["asked"] and block[0] > self.highest() - self.s.max_open_blocks
        same_branch = not self.forks or current in self.path(parent) or block in self.path(current)
        if same_branch and not (asked and block[0] < current[0]):
            self.drop(current, by=conn)
        else:
            self.want(current)

    def leave(self, conn: str) -> None:
        block = self.conns[conn]["block"]
        self.gone(conn)
        if block is not None:
            if self.blocks[block]["proven"]:
                self.complete(block)
            else:
                self.drop(block, by=conn)

    def source_error(self) -> None:
        if not self.conns and not self.silent:
            self.silent = True
            self.say("subscribers", end="source_error")

    # --- verdicts ---------------------------------------------------------------------------------------------

    def verdict(self, step: Mapping[str, Any]) -> None:
        number = step.get("verified", step.get("persisted", step.get("failed")))
        block: Id = (number, step.get("hash", ""))
        copy = self.blocks.get(block, {"state": None})
        why = step.get("why")
        early = why in ("bad", "undecided") and copy["state"] == "streaming"
        if copy.get("attempt") != step["attempt"] or not (copy["state"] == "complete" or early):
            return
        if why == "undecided":
            self.drop(block, by="", exclude=False)
        elif why == "persistence":
            self.p26(block)
        elif why == "bad":
            conn = copy["conn"]
            other = self.conns[conn]["block"] if conn in self.conns else None
            if conn in self.conns:
                self.end(conn, "BAD_BLOCK_PROOF", number)
            self.drop(block, by=conn)
            if other is not None and other != block:
                if self.blocks[other]["proven"]:
                    self.complete(other)
                else:
                    self.drop(other, by=conn)
        else:
            copy["flags"].add("verified" if "verified" in step else "persisted")
            self.p27()

    def p26(self, block: Id) -> None:
        for conn in list(self.conns):
            self.end(conn, "PERSISTENCE_FAILED", block[0])
        for other in self.in_state("streaming", "complete", "wanted"):
            known = self.blocks[other]
            if known["state"] == "complete" and len(known["flags"]) == 2:
                known["excluded"].clear()
                continue
            del self.blocks[other]
            if known["state"] != "wanted":
                self.say("node", discard=self.named(other, attempt=known["attempt"]))
        self.silent = True
        self.say("subscribers", end="node_error")

    def p27(self) -> None:  # noqa: C901, PLR0912 - one rule after the other
        """Acknowledge whatever can be, until nothing is left to."""
        before = self.highest(), len(self.ever)
        moved = True
        while moved:
            moved = False
            for block in self.in_state("complete", "stored"):
                known = self.blocks[block]
                ready = known["state"] == "stored" or len(known["flags"]) == 2
                below = self.is_acknowledged(known["parent"]) or (self.forks and block[0] == self.start)
                if ready and below:
                    moved = True
                    if self.forks:
                        known["state"] = "acknowledged"
                        self.ever.append(block)
                    else:
                        self.last = block[0]
                        del self.blocks[block]
        if before == (self.highest(), len(self.ever)):
            return
        if self.highest() >= self.target:
            self.distances = self.distances[-1:]
        for conn, me in self.conns.items():
            numbers = [block[0] for block in me["run"] if self.is_acknowledged(block)]
            if not self.forks:
                self.acknowledge_to(conn, self.highest())
            elif numbers:
                self.acknowledge_to(conn, max(numbers))
        cut: set[Id] = set()
        for block in sorted(self.blocks) if self.forks else []:
            if self.is_acknowledged(block):
                if block[0] < self.floor():
                    del self.blocks[block]
            elif block[0] <= self.floor() or self.blocks[block]["parent"] in cut:
                cut.add(block)
                self.forget(block)

    def forget(self, block: Id) -> None:
        known = self.blocks.pop(block)
        if known["state"] == "streaming":
            self.conns[known["conn"]]["block"] = None
            self.say(known["conn"], skip_block=block[0])
        if known["state"] in ("streaming", "complete"):
            self.say("node", discard=self.named(block, attempt=known["attempt"]))

    def p28(self, block: Id, parent: Id) -> None:
        if self.start is None and self.last is None:
            self.start = block[0]
        known = self.blocks.get(block)
        if block[0] <= self.floor() or self.is_acknowledged(block):
            return
        if known is not None:
            if known["state"] == "stored" or (known["state"] == "complete" and len(known["flags"]) == 2):
                return
            self.forget(block)
        self.blocks[block] = {"parent": parent, "state": "stored", "who": None}
        self.p27()

    # --- clocks -----------------------------------------------------------------------------------------------

    def tick(self) -> None:  # noqa: C901, PLR0912 - one rule after the other
        for block in self.in_state("streaming"):
            if self.blocks[block]["proven"] and self.now - self.blocks[block]["heard"] >= self.s.proof_grace:
                self.complete(block)
        for block in self.in_state("streaming"):
            copy = self.blocks[block]
            idle, age = self.now - copy["heard"], self.now - copy["first"]
            if copy["state"] == "streaming" and (idle >= self.s.idle_timeout or age >= self.s.block_timeout):
                self.end(copy["conn"], "TIMEOUT", block[0])
                self.drop(block, by=copy["conn"])
        for block in self.in_state("wanted"):
            if block not in self.blocks or self.now - self.blocks[block]["since"] < self.s.resend_grace:
                continue
            holders = [conn for conn in self.conns if self.passed(conn, block)]
            if self.forks and not holders:
                above = [other for other in sorted(self.blocks) if block in self.path(other)]
                reached = {block}
                for other in above:
                    known = self.blocks[other]
                    if known["state"] == "acknowledged" or (other != block and known["parent"] not in reached):
                        continue
                    reached.add(other)
                for other in sorted(reached):
                    if self.blocks[other]["state"] != "stored":
                        self.forget(other)
                continue
            self.blocks[block]["excluded"].clear()
            self.blocks[block]["since"] = self.now
            self.say("node", catch_up={"first": block[0], "last": block[0]})
            for conn in holders:
                self.request(conn, block)
        if not self.conns and self.now - self.empty_since >= self.s.unavailable_after:
            self.source_error()
