"""Cost of attacks: no more time than the records that they send, no more memory than is accounted for."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable

import pytest
from driving import Drive, steps
from hostile import Hostile, Stream, batch, entry, zigzag

from cardinal.protocols.streams import Follower, FollowerSettings, Reassembler, Record
from cardinal.protocols.streams.assembly.block import OpenBlock
from cardinal.protocols.streams.assembly.digests import Contents, digested
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.wire import avro
from cardinal_devkit.testing.generator import SCHEMA
from work_counter import lines, peak

pytestmark = pytest.mark.slow

THRESHOLD = 16
MIB = 1 << 20

KINDS = [name for name, _ in Hostile(0).kinds()]


def only(kind: str, count: int) -> list[Record]:
    """Records of one attack, on a chain that is there already."""
    stream = Stream(7, blocks=30, heavy=1 << 16)
    for payload in stream.payloads:
        stream.hostile.saw(payload, stream.chain.messages(payload))
    rng, attack = random.Random(7), getattr(stream.hostile, kind)
    records: list[Record] = []
    while len(records) < count:
        records += [
            Record("chain", rng.randrange(2), len(records) + index, *one[:2], 0, one[2])
            for index, one in enumerate(attack())
        ]
    return records


@pytest.mark.parametrize("kind", KINDS)
def test_no_attack_alone_costs_more_the_longer_it_lasts(kind: str) -> None:
    """Four times the records take less than five times the work (quadratic would be sixteen)."""
    records = only(kind, 2_400)
    settings = FollowerSettings("g", "g:1", reorg_threshold=THRESHOLD, start=Stream(7, blocks=1).start)

    def work(part: list[Record]) -> int:
        drive = Drive(Follower(settings))
        return lines(lambda: drive.run(part))

    assert work(records) < 5 * work(records[:600])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("contents", Contents)
def test_no_attack_alone_fills_more_memory_than_is_accounted_for(kind: str, contents: Contents) -> None:
    records = only(kind, 1_200)
    small = Bounds(open_bytes=MIB, open_blocks=200, finished_bytes=MIB)
    reassembler = Reassembler(None, THRESHOLD, prefixes=tuple(SCHEMA), bounds=small, contents=contents)
    reassembler.receive(digested(records[:100]) if contents is Contents.DIGESTS else records[:100])
    gc.collect()
    tracemalloc.start()
    for part in steps(records, 100):
        # Copies: what is held must be the reassembler's own, not what the list above holds anyway.
        own = [
            record._replace(key=bytes(bytearray(record.key)), value=bytes(bytearray(record.value))) for record in part
        ]
        reassembler.receive(digested(own) if contents is Contents.DIGESTS else own)
        assert reassembler.held_bytes <= 2 * MIB
    del own
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 2 * reassembler.held_bytes + MIB


# --- one short record against much that is held -------------------------------------------------------------

BLOCK = b"\5" * 32
MANY = 20_000
ENTRIES = [entry(b"%d" % index) for index in range(MANY)]
IDS = list(frozenset(index.to_bytes(32, "big") for index in range(1, MANY + 1)))
"""In the order of a set of them, which is the worst for who looks for the first that is missing."""
PART = b"\2" + BLOCK + BLOCK + b"\0"

Messages = list[tuple[bytes, bytes]]


def differing_batches(index: int) -> tuple[bytes, bytes]:
    return b"\0" + BLOCK, batch(5, bytes(32), 5, [entry(b"x%d" % index, count=1)])


def differing_parts(index: int) -> tuple[bytes, bytes]:
    return PART, avro.write_content([], [(b"%d" % index, b"")])


SHORT: dict[str, tuple[Messages, Callable[[int], tuple[bytes, bytes]]]] = {
    "a long open Batch, short ones that differ": (
        [(b"\0" + BLOCK, batch(5, bytes(32), 5, [*ENTRIES, entry(b"a/", count=1)]))],
        differing_batches,
    ),
    "a long completed Batch, short ones that differ": (
        [(b"\0" + BLOCK, batch(5, bytes(32), 5, ENTRIES))],
        differing_batches,
    ),
    "a long part, short copies that differ": (
        [(PART, avro.write_content([], [(b"%d" % index, b"") for index in range(MANY)]))],
        differing_parts,
    ),
    "a long part of a completed block, short copies that differ": (
        [
            (b"\0" + BLOCK, batch(5, bytes(32), 5, [entry(b"s", sub_batch=BLOCK)])),
            (PART, avro.write_content([], [(b"%d" % index, b"") for index in range(MANY)])),
            (b"\1" + BLOCK + BLOCK, zigzag(1)),
        ],
        differing_parts,
    ),
    "many sub batches, their headers one by one": (
        [(b"\0" + BLOCK, batch(5, bytes(32), 5, [entry(b"s%d" % i, sub_batch=one) for i, one in enumerate(IDS)]))]
        + [(b"\1" + BLOCK + one, zigzag(0)) for one in IDS[: MANY // 2]],
        lambda index: (b"\1" + BLOCK + IDS[MANY // 2 + index], zigzag(0)),
    ),
    "many counted prefixes, keys that none begins": (
        [(b"\0" + BLOCK, batch(5, bytes(32), 5, [entry(b"%d" % index, count=2) for index in range(MANY)]))],
        lambda index: (b"\3" + BLOCK + b"x%d" % index, b""),
    ),
    "many held messages, a fifth Batch of their block": (
        [(b"\3" + BLOCK + b"a/%d" % index, b"") for index in range(MANY)]
        + [(b"\0" + BLOCK, batch(5, bytes(32), 5, [entry(b"y%d" % index, count=1)])) for index in range(4)],
        differing_batches,
    ),
}


@pytest.mark.parametrize("case", SHORT)
def test_one_short_record_costs_little_at_any_number_of_held_blocks(case: str) -> None:
    """A thousand lines each, and no copy of what is held."""
    held, attack = SHORT[case]
    reassembler = Reassembler(None, THRESHOLD)
    reassembler.receive(Record("chain", 0, index, *one) for index, one in enumerate(held))
    records = [Record("chain", 0, MIB + index, *attack(index)) for index in range(100)]
    assert lines(lambda: reassembler.receive(records[:50])) < 50 * 1_000
    assert peak(lambda: reassembler.receive(records[50:])) < 8 * MANY


@pytest.mark.parametrize("kind", [b"\3", b"\4", b"\1", b"\2"], ids=["value", "delete", "header", "part"])
def test_long_keys_count_as_what_they_are(kind: bytes) -> None:
    """Or they would fill any memory: a key is as long as a message may be."""
    rng = random.Random(1)
    bounds = Bounds(open_bytes=MIB, open_blocks=1_000, finished_bytes=MIB)
    reassembler = Reassembler(None, THRESHOLD, bounds=bounds)
    for index in range(100):
        key = kind + rng.randbytes(64) + (zigzag(index) if kind == b"\2" else b"a/%d" % index + bytes(100_000))
        if kind == b"\1":
            key = key[:65]
        value = {b"\1": zigzag(1), b"\2": avro.write_content([bytes(100_000)], [])}.get(kind, b"")
        reassembler.receive([Record("chain", 0, index, key, value)])
        assert reassembler.held_bytes <= 2 * MIB
        held = map(reassembler.held, reassembler.open_blocks())
        assert sum(len(key) for block in held if isinstance(block, OpenBlock) for key in block.messages) <= MIB
