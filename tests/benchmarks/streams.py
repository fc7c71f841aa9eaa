"""What the streams core costs: records in memory to chain updates, on one core.

    python tests/benchmarks/streams.py              # everything, minutes
    python tests/benchmarks/streams.py --quick      # less of everything, half a minute

Blocks have 800 messages of 300 bytes and a Batch, with keys as long as an EVM chain's, on 4 partitions. Times are CPU
time of this process, the median of several rounds; a round runs every case once, so that ratios hold on a machine that
does other things too. The floor is a loop that only touches every record.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeAlias

from cardinal.protocols.streams import BlockRef, Completed, Follower, FollowerSettings, Orderer, Reassembler, Record
from cardinal.protocols.streams.assembly.digests import Contents, digested
from cardinal.protocols.streams.types import NO_ID
from cardinal.protocols.streams.wire.avro import Entry, write_batch

TOPIC: Final = "chain"
PARTITIONS: Final = 4
STEP: Final = 2_000
"""Records of one read."""

VALUE: Final = 300
KINDS: Final = (b"t", b"r", b"l")
PREFIXES: Final = ("c/[0-9a-z]+/b/[0-9a-z]+/[trl]/",)
POOL: Final = random.Random(1).randbytes(1 << 16)
NEW: Final = partial(tuple.__new__, Record)
"""Builds a record of a tuple, three times as fast as `Record(*row)`."""

MIB: Final = 1 << 20
BESIDE: Final = 40

Row: TypeAlias = tuple[str, int, int, bytes, bytes, int, tuple[tuple[str, bytes], ...]]
Drive: TypeAlias = Callable[[], object]


def block_hash(number: int, branch: int = 0) -> bytes:
    """Repeatable, and like no other."""
    return random.Random(number << 20 | branch).randbytes(32)


class Maker:
    """Makes the messages of blocks and places them on partitions.

    Arguments:
        messages: of one block, beside its Batch.

    """

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.ends = [0] * PARTITIONS

    def block(self, number: int, branch: int = 0, parent: bytes | None = None, weight: int | None = None) -> list[Row]:
        """One block; without a parent it stands on the main branch."""
        name = block_hash(number, branch)
        directory = b"c/1/b/" + name.hex().encode()
        counts = dict.fromkeys(KINDS, 0)
        rows = []
        for index in range(self.messages):
            kind = KINDS[index * len(KINDS) // self.messages]
            key = b"\3%b%b/%b/%x" % (name, directory, kind, counts[kind])
            counts[kind] += 1
            at = (number * 31 + index * 7) % (len(POOL) - VALUE)
            rows.append(self.place(index * PARTITIONS // self.messages, key, POOL[at : at + VALUE]))
        entries = [Entry(directory + b"/h", POOL[:VALUE], 0, delete=False, sub_batch=NO_ID)]
        entries += [
            Entry(b"%b/%b/" % (directory, kind), b"", count, delete=False, sub_batch=NO_ID)
            for kind, count in counts.items()
        ]
        value = write_batch(number, number if weight is None else weight, parent or block_hash(number - 1), entries)
        return [*rows, self.place(0, b"\0" + name, value, (("cardinal-sealed", b"1"),))]

    def place(self, partition: int, key: bytes, value: bytes, sealed: tuple[tuple[str, bytes], ...] = ()) -> Row:
        """A message on a partition."""
        self.ends[partition] += 1
        return TOPIC, partition, self.ends[partition] - 1, key, value, 1, (*sealed, ("cardinal-producer", b"one"))

    def again(self, row: Row) -> Row:
        """The same from another producer: other objects, equal bytes, at the end of its partition."""
        partition = row[1]
        self.ends[partition] += 1
        key, value = bytes(bytearray(row[3])), bytes(bytearray(row[4]))
        return TOPIC, partition, self.ends[partition] - 1, key, value, 1, row[6]


def steps(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Reads of equal size."""
    rows = iter(rows)
    while part := list(islice(rows, STEP)):
        yield part


class Reader:
    """Reads into a follower as :class:`cardinal.Consumer` does, and counts what is delivered.

    Arguments:
        values: whether it looks at every value of every block too.

    """

    def __init__(self, *, values: bool = False) -> None:
        settings = FollowerSettings("bench", "bench:1", prefixes=PREFIXES, start=BlockRef(0, block_hash(0)))
        self.follower = Follower(settings)
        self.values = values
        self.blocks = 0
        self.bytes = 0

    def read(self, records: Sequence[Record]) -> None:
        """One read."""
        positions = {(record[0], record[1]): record[2] + 1 for record in records[-4 * PARTITIONS :]}
        for update in self.follower.step(records, positions).updates:
            for added in update.added:
                self.blocks += 1
                if self.values:
                    self.bytes += sum(map(len, added.updates.raw.values()))


def cpu_seconds(work: Drive) -> float:
    """CPU time of one call. What was made before is not the collector's to look at."""
    gc.collect()
    gc.freeze()
    began = time.process_time()
    work()
    took = time.process_time() - began
    gc.unfreeze()
    return took


# --- the cases ---------------------------------------------------------------------------------------------


def floor(records: Sequence[Record]) -> None:
    """Touch every record."""
    size = 0
    for record in records:
        size += len(record[3]) + len(record[4])


def follow(records: Sequence[Record], blocks: int, *, values: bool = False) -> None:
    """To chain updates."""
    reader = Reader(values=values)
    for part in steps(records):
        reader.read(part)
    assert reader.blocks == blocks, (reader.blocks, blocks)


def follow_rows(rows: Sequence[Row], blocks: int) -> None:
    """To chain updates, and build the records from what a transport has."""
    reader = Reader()
    for part in steps(rows):
        reader.read(list(map(NEW, part)))
    assert reader.blocks == blocks, (reader.blocks, blocks)


def build(rows: Sequence[Row]) -> None:
    """Build the records only."""
    for part in steps(rows):
        list(map(NEW, part))


def reassemble(records: Sequence[Record], blocks: int, contents: Contents = Contents.VALUES) -> None:
    """To complete blocks in chain order, without cursors."""
    reassembler = Reassembler(prefixes=PREFIXES, contents=contents)
    orderer = Orderer(start=BlockRef(0, block_hash(0)))
    added = 0
    for part in steps(records):
        for event in reassembler.receive(part):
            if isinstance(event, Completed):
                for update in orderer.receive(event):
                    added += len(update.added)
                    reassembler.head_moved(update.added[-1].number)
    assert added == blocks, (added, blocks)


def throughput(blocks: int, rounds: int) -> float:
    """Messages of one chain, seen in many ways; returns the seconds that a message costs from records."""
    maker = Maker(800)
    by_block = [maker.block(number) for number in range(1, blocks + 1)]
    rows = list(chain.from_iterable(by_block))
    twice = [each for row in rows for each in (row, maker.again(row))]
    behind = [row for block in by_block for row in (*block, *map(maker.again, block))]
    first = [row for block in by_block for row in (block[-1], *block[:-1])]
    turns = [block[(at % PARTITIONS) * 200 + at // PARTITIONS] for block in by_block for at in range(800)]
    turns = [row for at in range(blocks) for row in (*turns[at * 800 : at * 800 + 800], by_block[at][-1])]
    records, pairs, copies, ahead, mixed = (
        [Record(*row) for row in some] for some in (rows, twice, behind, first, turns)
    )
    digests = digested(records)
    cases: dict[str, tuple[int, Drive]] = {
        "floor: touch every record": (len(records), lambda: floor(records)),
        "build the records": (len(rows), lambda: build(rows)),
        "records -> complete blocks -> chain": (len(records), lambda: reassemble(records, blocks)),
        "records -> chain updates with cursors": (len(records), lambda: follow(records, blocks)),
        "  the same, building the records": (len(rows), lambda: follow_rows(rows, blocks)),
        "  the same, and every value is looked at": (len(records), lambda: follow(records, blocks, values=True)),
        "the Batch first": (len(ahead), lambda: follow(ahead, blocks)),
        "partitions in turn, message by message": (len(mixed), lambda: follow(mixed, blocks)),
        "every message twice, one after the other": (len(pairs), lambda: follow(pairs, blocks)),
        "every message twice, block after block": (len(copies), lambda: follow(copies, blocks)),
        "digests -> complete blocks -> chain": (
            len(digests),
            lambda: reassemble(digests, blocks, Contents.DIGESTS),
        ),
        "  making the digests": (len(records), lambda: digested(records)),
    }
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (count, work) in cases.items():
            taken[name].append(cpu_seconds(work) / count)
    lowest = statistics.median(taken["floor: touch every record"])
    title(f"{blocks} blocks of 800 messages, {rounds} rounds", "messages/s", "ns each", "of floor")
    for name, each in taken.items():
        cost = statistics.median(each)
        line(name, f"{1 / cost:,.0f}", f"{cost * 1e9:.0f}", f"{cost / lowest:.1f}")
    return statistics.median(taken["records -> chain updates with cursors"])


# --- as work grows -----------------------------------------------------------------------------------------


def beside(what: str, others: Callable[[Maker], Iterable[Row]], messages: int, blocks: int, rounds: int) -> None:
    """A chain that goes on while much else is held, and one that goes on alone."""
    costs: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for each, alone in zip(costs, (True, False), strict=True):
            maker, reader = Maker(4), Reader()
            rows = maker.block(1) + maker.block(2)
            rows += [] if alone else others(maker)
            # Far enough for what is overdue to be reported once, not so far that forks would leave below the threshold.
            rows += [row for number in range(3, BESIDE) for row in maker.block(number)]
            for part in steps(map(Record._make, rows)):
                reader.read(part)
            maker.messages = messages
            going_on = [row for number in range(BESIDE, BESIDE + blocks) for row in maker.block(number)]
            records = [Record(*row) for row in going_on]
            each.append(cpu_seconds(lambda: [reader.read(part) for part in steps(records)]) / len(records))  # noqa: B023 - called at once
            assert reader.blocks == BESIDE + blocks - 1, (what, reader.blocks, blocks)
    alone, among = map(statistics.median, costs)
    line(f"beside {what}, {messages} a block", f"{1 / among:,.0f}", f"{among * 1e9:.0f}", f"{among / alone:.2f}")


def of_forks(maker: Maker) -> list[Row]:
    """Ten thousand complete side branches of one parent."""
    return [row for at in range(10_000) for row in maker.block(2, at + 1, block_hash(1), 1)]


def of_open_blocks(maker: Maker) -> list[Row]:
    """Nine thousand blocks far ahead that lack a message; of ten thousand some would be evicted."""
    return [row for at in range(9_000) for row in maker.block(10**6 + at)[1:]]


def long_blocks(messages: int, blocks: int, rounds: int, plain: float) -> None:
    """Blocks of very many messages."""
    maker = Maker(messages)
    rows = [row for number in range(1, blocks + 1) for row in maker.block(number)]
    records = [Record(*row) for row in rows]
    cost = statistics.median(cpu_seconds(lambda: follow(records, blocks)) / len(records) for _ in range(rounds))
    line(f"blocks of {messages:,} messages", f"{1 / cost:,.0f}", f"{cost * 1e9:.0f}", f"{cost / plain:.2f}")


def resident() -> int:
    """Bytes that the process holds now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def many_blocks(blocks: int) -> None:
    """So many ten-message blocks, one after the other: what a message costs, and what is held, on the way."""
    maker, reader = Maker(10), Reader()
    tenth = blocks // 10
    costs: list[float] = []
    for part in range(10):
        spent, fed = 0.0, 0
        for first in range(part * tenth + 1, (part + 1) * tenth + 1, 1000):
            rows = [
                row for number in range(first, min(first + 1000, (part + 1) * tenth + 1)) for row in maker.block(number)
            ]
            records = [Record(*row) for row in rows]
            del rows
            began = time.process_time()
            for some in steps(records):
                reader.read(some)
            spent += time.process_time() - began
            fed += len(records)
            del records
        costs.append(spent / fed)
        held = reader.follower.reassembler.held_bytes
        line(
            f"ten-message blocks, up to {(part + 1) * tenth:,}",
            f"{1 / costs[-1]:,.0f}",
            f"{costs[-1] * 1e9:.0f}",
            f"{costs[-1] / costs[0]:.2f}",
            f"{resident() / MIB:.0f} MiB resident, {held / MIB:.0f} accounted for",
        )
    assert reader.blocks == 10 * tenth
    line("the most that was resident", "", "", "", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


# --- the table ---------------------------------------------------------------------------------------------


def title(what: str, *columns: str) -> None:
    """Begin a table."""
    sys.stdout.write("\n")
    line(what, *columns)


def line(what: str, rate: str = "", each: str = "", ratio: str = "", more: str = "") -> None:
    """One line of it."""
    sys.stdout.write(f"{what:50} {rate:>12} {each:>8} {ratio:>9}  {more}".rstrip() + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """Everything."""
    parser = argparse.ArgumentParser(description="What the streams core costs.")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--only", choices=["throughput", "forks", "long", "many"], help="one part")
    options = parser.parse_args(arguments)
    quick, only = options.quick, options.only
    plain = 0.0
    if only in (None, "throughput", "long"):
        plain = throughput(100 if quick else 300, 3 if quick else 5)
    title("as work grows", "messages/s", "ns each", "of plain")
    if only in (None, "long"):
        long_blocks(100_000, 1 if quick else 3, 3, plain)
    if only in (None, "forks"):
        for messages in (800, 10):
            beside("10,000 forks", of_forks, messages, 85, 3 if quick else 7)
            beside("9,000 open blocks", of_open_blocks, messages, 85, 3 if quick else 7)
    if only in (None, "many"):
        many_blocks(20_000 if quick else 1_000_000)


if __name__ == "__main__":
    main(sys.argv[1:])
