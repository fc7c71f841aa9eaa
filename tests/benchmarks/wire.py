"""Cost of the wire: our Avro codec compared with fastavro, splitting with and without its fast path, sealing.

python tests/benchmarks/wire.py
"""

from __future__ import annotations

import random
import sys
import timeit
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fastavro import schemaless_reader, schemaless_writer

from cardinal.apps import get
from cardinal.protocols.streams import Payload, SealQueue, split
from cardinal.protocols.streams.publishing.topic_schema import Router, Unsure
from cardinal.protocols.streams.wire import avro

sys.path.insert(0, str(Path(__file__).parents[1] / "properties"))
import test_avro_laws as laws


def micros(work: Callable[[], object]) -> float:
    """Microseconds of one call, the best of five rounds of about 20 ms."""
    timer = timeit.Timer(work)
    number = max(1, int(0.02 / max(timer.timeit(1), 1e-7)))
    return min(timer.repeat(5, number)) / number * 1e6


def beside(name: str, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
    """One line of the table."""
    one, other = micros(ours), micros(theirs)
    sys.stdout.write(f"{name:44} {one:10.2f} {other:10.2f} {other / one:8.2f}\n")


def of_avro() -> None:
    """Reading and writing values."""
    rng = random.Random(1)
    for count in (1, 7, 1_000):
        paths = [b"c/1/b/%064x/%d" % (7, index) for index in range(count)]
        entries = [avro.Entry(path, rng.randbytes(60), 0, delete=False, sub_batch=bytes(32)) for path in paths]
        batch = avro.write_batch(15_000_000, 15_000_000, bytes(32), entries)
        beside(
            f"read a Batch of {count}",
            lambda b=batch: avro.read_batch(b),
            lambda b=batch: entries_of(theirs(laws.BATCH, b)),
        )
        pairs = [(path, rng.randbytes(60)) for path in paths]
        content = avro.write_content([], pairs)
        beside(
            f"read a SubBatchMsg of {count}",
            lambda c=content: avro.read_content(c),
            lambda c=content: {entry["path"]: entry["value"] for entry in theirs(laws.CONTENT, c)["updates"]},
        )
        value = {"delete": [], "updates": [{"path": path, "value": value} for path, value in pairs]}
        beside(
            f"write a SubBatchMsg of {count}",
            lambda p=pairs: avro.write_content([], p),
            lambda v=value: schemaless_writer(BytesIO(), laws.CONTENT, v),
        )
    beside("read an int", lambda: avro.read_int(b"\xc8\1"), lambda: theirs("int", b"\xc8\1"))


def theirs(schema: object, data: bytes) -> Any:  # noqa: ANN401 - what fastavro returns depends on the schema
    """By fastavro."""
    return schemaless_reader(BytesIO(data), schema, None)


def entries_of(batch: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[bytes, avro.Entry]:
    """What fastavro's dicts have to be turned into."""
    return {
        raw["path"]: avro.Entry(raw["path"], raw["value"], raw["count"], raw["delete"] == b"\1", raw["subbatch"])
        for raw in batch["updates"]
    }


def of_split() -> None:
    """A block like mainnet's: 200 transactions, their receipts and 400 logs."""
    app, block = get("evm", chain_id=1), f"c/1/b/{7:064x}"
    paths = [
        f"{block}/{kind}/{index:x}" for kind, count in (("t", 200), ("r", 200), ("l", 400)) for index in range(count)
    ]
    payload = Payload(1, b"\7" * 32, b"\6" * 32, 1, dict.fromkeys([*paths, f"{block}/h", f"{block}/d"], bytes(200)))

    def slow() -> object:
        with patch.object(Router, "directory", lambda _router, _directory: Unsure.NEEDS_PATH):
            return split(payload, app.topics, app.default_topic)

    beside("split a block of 800 messages", lambda: split(payload, app.topics, app.default_topic), slow)


def of_sealing() -> None:
    """A block in a chain of so many under way, from its coming to its end; beside one of ten times as many."""

    def chain(count: int) -> Callable[[], object]:
        names = [b"%032d" % index for index in range(count + 1)]

        def seal() -> None:
            queue = SealQueue()
            for parent, name in pairwise(names):
                queue.add(name, parent)
            for name in names[1:]:
                queue.acknowledged(name)
            while (free := queue.next_free()) is not None:
                queue.hand_over(free)
                queue.sealed(free)

        return seal

    for count in (100, 1_000, 10_000):
        sys.stdout.write(f"{f'seal, {count} blocks under way':44} {micros(chain(count)) / count:10.2f}   per block\n")


if __name__ == "__main__":
    sys.stdout.write(f"{'microseconds':44} {'ours':>10} {'beside':>10} {'times':>8}\n")
    of_avro()
    of_split()
    of_sealing()
