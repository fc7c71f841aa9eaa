"""Hostile records through everything that reads: documented outcomes only, bounded memory, and the chain goes on.

`-m soak` runs the same with ten million records.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import get_args

import pytest
from driving import Drive, steps
from hostile import Stream

from cardinal.protocols.streams import (
    ChainUpdate,
    Event,
    Follower,
    FollowerSettings,
    Payload,
    Reassembler,
    Record,
)
from cardinal.protocols.streams.assembly.digests import Contents, digested
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal_devkit.testing.generator import SCHEMA, as_received
from examples import few

THRESHOLD = 16
BOUNDS = Bounds(open_bytes=8 << 20, open_blocks=1_000, finished_bytes=8 << 20)
REPORTS = {kind.__name__ for kind in get_args(Event)} | {"ChainUpdate"}
MIB = 1 << 20


def follower(stream: Stream) -> Follower:
    """On a small machine."""
    return Follower(
        FollowerSettings(
            "generated",
            "generated:1",
            prefixes=tuple(SCHEMA),
            reorg_threshold=THRESHOLD,
            start=stream.start,
            default_topic="chain",
            max_waiting=1_000,
            max_side=1_000,
            max_bytes=8 << 20,
            bounds=BOUNDS,
        )
    )


def drive(stream: Stream, records: Iterable[Record] | None = None) -> Drive:
    """A consumer that reads all of a stream, or these records, and may go back in them."""
    made = follower(stream)
    over: list[int] = []

    def watch() -> None:
        over.append(made.reassembler.held_bytes)
        assert over[-1] <= BOUNDS.open_bytes + BOUNDS.finished_bytes

    driven = Drive(made, stream.again, watch)
    driven.run(stream if records is None else records)
    return driven


def chain_of(updates: Iterable[ChainUpdate]) -> list[Payload]:
    chain: list[Payload] = []
    for update in updates:
        for removed in update.removed:
            assert chain.pop().hash == removed.hash
        for added in update.added:
            assert isinstance(added, Payload)
            chain.append(added)
    return chain


def legit_chain(stream: Stream) -> list[Payload]:
    """From the start to the first of the heaviest blocks."""
    by_hash = {payload.hash: payload for payload in stream.payloads}
    at = max(stream.payloads, key=lambda payload: payload.weight)
    chain = [at]
    while chain[-1].parent in by_hash:
        chain.append(by_hash[chain[-1].parent])
    return chain[::-1]


def assert_delivered(stream: Stream, driven: Drive) -> None:
    want = [as_received(payload) for payload in legit_chain(stream)]
    got = [replace(payload, updates=dict(payload.updates)) for payload in chain_of(driven.updates)]
    assert got == want


# --- the whole consumer ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_a_chain_is_delivered_whole_through_a_flood_of_hostile_records(seed: int) -> None:
    """25,000 records each time."""
    stream = Stream(seed, blocks=100, every=10)
    driven = drive(stream)
    assert driven.records > 20_000
    assert driven.events.keys() <= REPORTS
    assert_delivered(stream, driven)


@pytest.mark.slow
def test_the_same_hostile_records_give_the_same_updates_in_any_chunks() -> None:
    streams = [Stream(5, blocks=25), Stream(5, blocks=25)]
    records = [list(stream) for stream in streams]
    assert records[0] == records[1]
    one, two = (drive(stream, part) for stream, part in zip(streams, records, strict=True))
    three = Drive(follower(streams[0]), lambda: records[0])
    three.run(records[0], size=1_000)
    assert one.updates == two.updates
    assert chain_of(three.updates) == chain_of(one.updates)


@pytest.mark.parametrize("records", few(1, [2_000, 20_000]))
def test_memory_stays_within_the_bound_through_a_flood(records: int) -> None:
    """By the reassembler's own account (in `drive`), by what Python allocated, and by what the process holds."""
    stream = Stream(6, blocks=80, every=10)
    drive(stream, islice(stream, 2_000))
    gc.collect()
    resident = resident_bytes()
    tracemalloc.start()
    drive(stream, islice(stream, records))
    gc.collect()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # What is open, what is kept to compare, what the orderer holds of it, and one step of records on their way.
    assert peak < 3 * (BOUNDS.open_bytes + BOUNDS.finished_bytes) + 32 * MIB
    assert resident_bytes() - resident < 4 * (BOUNDS.open_bytes + BOUNDS.finished_bytes) + 64 * MIB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_hostile_reorg_channels_do_not_stop_the_main_stream() -> None:
    """Up to sixteen at a time, full of hostile records; none of them ends with a heavier chain."""
    stream = Stream(10, blocks=90, every=4)
    made, records = follower(stream), list(stream)
    gc.collect()
    tracemalloc.start()
    driven = Drive(made, lambda: records, channel=lambda topic: stream.channel(topic, 20))
    driven.run(records)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert driven.records > 8_000
    assert driven.events["ReorgBegan"] > 30
    assert len(made.channels) <= 16
    assert driven.events.keys() <= REPORTS
    assert_delivered(stream, driven)
    assert peak < 3 * (BOUNDS.open_bytes + BOUNDS.finished_bytes) + 32 * MIB


@pytest.mark.parametrize("tracked", [None, ("/item/", "tip"), ("/n$",)])
@pytest.mark.parametrize("seed", [11, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (12, 13))])
def test_a_reassembler_reports_the_same_with_hostile_records_in_any_chunks(
    seed: int, tracked: tuple[str, ...] | None
) -> None:
    """One by one, no record finds anything in the short ways that the next of a run takes."""
    stream = Stream(seed, blocks=25, every=6, heavy=1 << 12)
    bounds = Bounds(open_bytes=1 << 18, open_blocks=15, finished_bytes=1 << 17, headless_distance=300)
    parts = (Reassembler(tracked, THRESHOLD, prefixes=tuple(SCHEMA), bounds=bounds, deadline=4) for _ in range(3))
    records = [record for each in stream for record in (each, *again(stream.rng, each))]
    whole, single, cut = parts
    want = whole.receive(records)
    assert [event for record in records for event in single.receive([record])] == want
    assert [event for part in steps(records, 37) for event in cut.receive(part)] == want
    assert whole.held_bytes == single.held_bytes == cut.held_bytes
    assert whole.open_positions() == single.open_positions() == cut.open_positions()
    assert {type(event).__name__ for event in want} >= {"Completed", "Surplus", "Overflow", "Divergence"}


def again(rng: random.Random, record: Record) -> list[Record]:
    """Now and then the same record, or copies of it from other partitions."""
    chance = rng.randrange(8)
    if chance == 0:
        return [record, record._replace(partition=7)]
    return [record._replace(partition=8, value=record.value + b"?")] * 2 if chance == 1 else []


# --- the parts on their own --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_of_digests_completes_the_same_blocks() -> None:
    stream = Stream(9, blocks=40)
    records = list(stream)
    done: list[set[bytes]] = []
    for contents in Contents:
        reassembler = Reassembler(None, THRESHOLD, prefixes=tuple(SCHEMA), contents=contents)
        fed = digested(records) if contents is Contents.DIGESTS else iter(records)
        done.append(
            {
                event.payload.hash
                for part in steps(fed)
                for event in reassembler.receive(part)
                if type(event).__name__ == "Completed"
            }
        )
    assert done[0] == done[1]
    assert done[0] >= {payload.hash for payload in stream.payloads}


# --- soak --------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_million_hostile_records() -> None:
    """From streams one after the other, each followed with its chain; memory is watched over all of them."""
    count = int(os.environ.get("CARDINAL_SOAK_RECORDS", "10000000"))
    seconds = float(os.environ.get("CARDINAL_SOAK_SECONDS", "3000"))
    began, seed, records, highest = time.monotonic(), 100, 0, 0
    events: Counter[str] = Counter()
    while records < count and time.monotonic() - began < seconds:
        stream = Stream(seed, blocks=4_000, every=10)
        driven = drive(stream)
        assert driven.events.keys() <= REPORTS
        assert_delivered(stream, driven)
        records += driven.records
        events += driven.events
        del driven, stream
        gc.collect()
        highest = max(highest, resident_bytes())
        seed += 1
        sys.stdout.write(f"{time.monotonic() - began:6.0f} s {records:9} records {highest >> 20:4} MiB {events}\n")
    assert highest < 1 << 30
