"""The planner on chains written by hand: blocks are named ``3a``, ``3b``; ``plan`` shows rows as ``+3a -3b``."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cardinal.protocols.streams.events import ForkBelowStart, Overflow, Quarantined
from cardinal.protocols.streams.following.follower import FollowerSettings
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.protocols.streams.types import BlockRef, Finality, FinalityViolated, Record, Routed
from cardinal.protocols.streams.wire.messages import BATCH
from cardinal_spark.source import planner
from cardinal_spark.source.digested import Digester
from cardinal_spark.source.offsets import parse_offset
from cardinal_spark.source.planner import initial_offset, plan, rebuild
from cardinal_spark.source.state import PlanSettings, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cardinal.protocols.streams.events import Event, Header

TOPICS = {"t/v/": "values"}
FINAL = b"t/v/final"


def finality_of(header: Header) -> Finality | None:
    value = getattr(header, "marks", {}).get(FINAL)
    return None if value is None else Finality(None, int(value))


def name_hash(name: str) -> bytes:
    return name.encode().ljust(32, b".")


class Run:
    """A planner and its log. Weights are the height, heavier by one for every ``*`` behind a name."""

    def __init__(self, threshold: int = 8, whitelist: Mapping[int, bytes] | None = None) -> None:
        follower = FollowerSettings(
            "test",
            "test:1",
            prefixes=tuple(TOPICS),
            reorg_threshold=threshold,
            whitelist=whitelist or {},
            finality_of=finality_of,
        )
        self.settings = PlanSettings(follower, frozenset({FINAL}))
        self.pos = {("main", 0): 0, ("values", 0): 0}
        self.state = State(initial_offset(self.settings, self.pos))
        self.log: list[Record] = []
        self.events: list[Event] = []
        self._digest = Digester(None, self.settings.keep)

    def send(self, messages: Iterable[Routed]) -> list[Record]:
        records = []
        for topic, key, value in messages:
            offset = self.pos[topic, 0]
            self.pos[topic, 0] = offset + 1
            records.append(Record(topic, 0, offset, key, value, 1_000 + len(self.log)))
            self.log.append(records[-1])
        return records

    def messages(self, text: str, final: int | None = None) -> list[Routed]:
        """``1a 2a 2b<1a``: blocks, each a child of the one before unless its parent is named."""
        out: list[Routed] = []
        parent = ""
        for word in text.split():
            name, _, named = word.partition("<")
            heavier = name.count("*")
            name = name.rstrip("*")
            number = int(name[:-1])
            above = named or parent or f"{number - 1}{name[-1]}"
            updates = {"t/v/a": name.encode()} | ({} if final is None else {FINAL.decode(): str(final).encode()})
            payload = Payload(number, name_hash(name), name_hash(above), number * 10 + heavier, updates)
            out += split(payload, TOPICS, "main")
            parent = name
        return out

    def plan(self, text: str = "", *, final: int | None = None, extra: Iterable[Routed] = ()) -> str:
        records = self.send([*self.messages(text, final), *extra])
        planned = plan(self.settings, self.state, self._digest(records), dict(self.pos), caught_up=True)
        self.state = planned.state
        self.events += planned.events
        return " ".join(f"{row.change:+d}"[0] + row.block.header.hash.rstrip(b".").decode() for row in planned.rows)

    def restart(self) -> None:
        """Go on from the offset's text alone."""
        offset = parse_offset(json.loads(json.dumps(self.state.offset.json())))
        again = [record for record in self.log if offset.floor[record.topic, 0] <= record.offset]
        self.state = rebuild(self.settings, offset, [self._digest(again)])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_reorg_over_a_batch_boundary_and_one_to_a_shorter_chain(restarts: bool) -> None:  # noqa: FBT001 - a case
    run = Run()
    seen = []
    for text in ("1a 2a 3a", "2b<1a", "3b<2b 4b", "3c****************<2b", "4c<3c 5c"):
        if restarts:
            run.restart()
        seen.append(run.plan(text))
    assert seen == ["+1a +2a +3a", "", "-3a -2a +2b +3b +4b", "-4b -3b +3c", "+4c +5c"]


def test_an_equal_chain_does_not_replace_the_one_that_stands() -> None:
    run = Run()
    assert run.plan("1a 2b<1a") == "+1a +2b"
    run.restart()
    assert run.plan("2a<1a") == ""
    run.restart()
    assert run.plan("3a<2a") == "-2b +2a +3a"


def test_nothing_below_a_finalized_block_is_removed() -> None:
    run = Run()
    assert run.plan("1a 2a 3a 4a", final=2) == "+1a +2a +3a +4a"
    run.restart()
    assert run.state.offset.finality == Finality(None, 2)
    assert run.plan("2b<1a 3b 4b 5b") == ""
    assert any(isinstance(event, FinalityViolated) for event in run.events)
    run.restart()
    run.events.clear()
    assert run.plan("5a<4a") == "+5a"
    assert not any(isinstance(event, FinalityViolated) for event in run.events), "reported with the batch that had it"


def test_a_whitelist_refuses_the_other_block_and_what_descends_from_it() -> None:
    run = Run(whitelist={2: name_hash("2b")})
    assert run.plan("1a 2a 3a 4a") == "+1a"
    assert any(isinstance(event, Quarantined) for event in run.events)
    run.restart()
    assert run.plan("5a<4a") == ""
    run.restart()
    assert run.plan("2b<1a") == "+2b"


def test_a_fork_below_the_start_is_reported_and_not_followed() -> None:
    run = Run()
    assert run.plan("5a 6a") == "+5a +6a"
    run.restart()
    assert run.plan("3b 4b 5b 6b 7b") == ""
    assert any(isinstance(event, ForkBelowStart) for event in run.events)
    assert run.plan("7a<6a") == "+7a"


def test_a_heavier_sibling_replaces_the_start() -> None:
    run = Run()
    assert run.plan("5a") == "+5a"
    run.restart()
    assert run.plan("5b<4a 6b") == "-5a +5b +6b"
    run.restart()
    assert run.plan("6a<5a 7a") == "-6b -5b +5a +6a +7a"


def test_a_block_whose_number_does_not_follow_its_parent_is_quarantined() -> None:
    run = Run()
    assert run.plan("1a 2a 9z<2a") == "+1a +2a"
    assert [event.number for event in run.events if isinstance(event, Quarantined)] == [9]
    run.restart()
    assert run.plan("3a<2a") == "+3a"


def test_late_copies_of_old_blocks_deliver_nothing_and_do_not_stay() -> None:
    run = Run(threshold=4)
    text = " ".join(f"{number}a" for number in range(1, 30))
    run.plan(text)
    for again in ("1a 2a", "26a", text):
        assert run.plan(again) == ""
        run.restart()
    assert run.plan("30a") == "+30a"
    assert run.plan(" ".join(f"{number}a" for number in range(31, 80))) != ""
    assert len(run.state.blocks) < 12
    assert not run.state.opened


def hostile(rng: random.Random, count: int) -> list[Routed]:
    """Messages of blocks that do not exist, and complete blocks without parents and with absurd numbers."""
    out = []
    for _ in range(count):
        block = rng.randbytes(32)
        if rng.random() < 0.5:
            out.append(Routed("values", b"\x03" + block + b"t/v/x", b"junk"))
        else:
            payload = Payload(rng.choice([0, 2**40, 2**62]), block, rng.randbytes(32), 2**70, {"t/v/a": b""})
            out += split(payload, TOPICS, "main")
    return out


def test_an_offset_stays_small_whatever_a_producer_sends() -> None:
    rng = random.Random(1)
    run = Run(threshold=128)
    run.plan(" ".join(f"{number}a" for number in range(1, 300)))
    for number in range(300, 310):
        assert run.plan(f"{number}a", extra=hostile(rng, 300)) == f"+{number}a"
        assert len(json.dumps(run.state.offset.json())) < 8_000


def test_open_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "OPEN_MAX", 50)
    run = Run()
    run.plan("1a 2a")
    head = run.messages("3a")
    unfinished = [message for message in head if message.key[0] == BATCH]
    junk = [Routed("values", b"\x03" + random.Random(n).randbytes(32) + b"t/v/x", b"") for n in range(200)]
    run.plan(extra=[*unfinished, *junk])
    assert len(run.state.opened) == 50
    assert sum(isinstance(event, Overflow) for event in run.events) == 151
    rest = [message for message in head if message.key[0] != BATCH]
    assert run.plan(extra=rest) == "+3a"


def test_rows_name_where_a_block_lies() -> None:
    run = Run()
    records = run.send(run.messages("1a"))
    state = replace(run.state)
    planned = plan(run.settings, state, run._digest(records), dict(run.pos), caught_up=True)
    row = planned.rows[0]
    assert row.block.ranges == {("main", 0): (0, 1), ("values", 0): (0, 1)}
    assert (row.block.published_ms, row.block.header.number) == (1_001, 1)
    assert planned.state.offset.head == BlockRef(1, name_hash("1a"))
