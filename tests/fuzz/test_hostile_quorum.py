"""Hostile records of allowed and unknown producers beside a legit chain, under policy `quorum:2`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
from hostile import Stream

from cardinal.protocols.streams import Completed, Payload, Reassembler, Record
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.events import ReassemblyEvent
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER
from cardinal_devkit.testing.generator import SCHEMA, as_received
from examples import few

HONEST = ("a", "b")
NAMES = (*HONEST, "liar")
BOUNDS = Bounds(open_bytes=24 << 20, open_blocks=3_000, finished_bytes=24 << 20)


def assembler() -> QuorumReassembler:
    return QuorumReassembler(2, NAMES, partial(Reassembler, None, 16, prefixes=tuple(SCHEMA)), BOUNDS)


def written(stream: Stream, whose: Callable[[], str | None]) -> Iterator[Record]:
    """Every legit record by both honest producers, at offsets of their own; hostile ones by whoever it says."""
    legit: set[int] = set()
    for record in stream:
        block = stream.legit.get(record.key[1:33])
        if block and block[-1] is record and id(record) not in legit:
            for place, name in enumerate(HONEST):
                yield record._replace(offset=3 * record.offset + place, headers=(_by(name), *record.headers))
        else:
            name = whose()
            headers = record.headers if name is None else (_by(name), *record.headers)
            yield record._replace(offset=3 * record.offset + 2, headers=headers)


def _by(name: str) -> tuple[str, bytes]:
    return PRODUCER_HEADER, name.encode()


def run(made: QuorumReassembler, records: list[Record], step: int) -> list[ReassemblyEvent]:
    events: list[ReassemblyEvent] = []
    for at in range(0, len(records), step):
        found = made.receive(records[at : at + step])
        assert made.held_bytes <= BOUNDS.open_bytes + BOUNDS.finished_bytes
        assert len(made.open_blocks()) <= BOUNDS.open_blocks
        events += found
    return events


@pytest.mark.parametrize("seed", few(1, [1, 2, 3]))
def test_one_hostile_producer_and_any_number_of_strangers_change_nothing(seed: int) -> None:
    stream = Stream(seed, blocks=60, every=6)
    rng = random.Random(seed)
    records = list(written(stream, lambda: rng.choice(("liar", "liar", "stranger", None))))
    events = run(assembler(), records, 500)
    assert {type(event) for event in events} <= set(get_args(ReassemblyEvent))
    blocks = [event.payload for event in events if isinstance(event, Completed)]
    got = [replace(block, updates=dict(block.updates)) for block in blocks if isinstance(block, Payload)]
    assert got == [as_received(payload) for payload in stream.payloads]


@pytest.mark.parametrize("seed", few(1, [4, 5]))
def test_hostile_producers_cause_documented_events_only_and_memory_is_bounded(seed: int) -> None:
    stream = Stream(seed, blocks=60, every=6)
    rng = random.Random(seed)
    made = assembler()
    events = run(made, list(written(stream, lambda: rng.choice((*NAMES, "stranger", None)))), 500)
    assert {type(event) for event in events} <= set(get_args(ReassemblyEvent))
    for number in range(0, 200, 2):
        assert {type(event) for event in made.head_moved(number)} <= set(get_args(ReassemblyEvent))
    for block_hash in made.open_blocks():
        assert made.explain(block_hash).state == "open"
        made.abandon(block_hash, "the end")
    assert made.open_blocks() == []


@pytest.mark.slow
def test_hostile_records_give_the_same_events_in_any_chunks() -> None:
    stream = Stream(6, blocks=20, every=6, heavy=1 << 16)
    rng = random.Random(6)
    records = list(written(stream, lambda: rng.choice((*NAMES, "stranger", None))))
    made = assembler()
    whole = made.receive(records)
    for step in (1, 17):
        other = assembler()
        assert [
            event for at in range(0, len(records), step) for event in other.receive(records[at : at + step])
        ] == whole
