"""Cost of typed blocks and tables: CPU per row and peak memory, on recorded mainnet blocks.

python tests/benchmarks/evm_tables.py [rows]

Every line is measured in a process of its own, so that its peak is its own. ``beside`` is what was held at the peak
beside the values before and the tables after.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from cardinal.apps.evm import decode, frames
from cardinal.protocols.streams import Payload

FIXTURES: Final = Path(__file__).parents[3] / "shared/fixtures/mainnet"
DEFAULT_ROWS: Final = 250_000
ROWS_OF_ALL: Final = 751
"""Rows of all tables that a recorded block has on average."""


def recorded() -> list[Payload]:
    """The recorded blocks with the reference's values."""
    found = []
    for file in sorted(FIXTURES.glob("14*[0-9].json.gz")):
        case = json.loads(gzip.decompress(file.read_bytes()))
        values = {path: bytes.fromhex(value) for path, value in case["values"].items()}
        hashes = bytes.fromhex(case["hash"]), bytes.fromhex(case["parent"])
        found.append(Payload(int(case["block"]["number"], 16), *hashes, int(case["weight"]), values))
    return found


def decoded(blocks: Iterator[Payload]) -> tuple[int, int]:
    """Typed blocks, one after the other: how many rows they would be, and no tables."""
    rows = 0
    for block in map(decode, blocks):
        rows += len(block.transactions) + len(block.receipts) + len(block.logs)
    return rows, 0


def tables(names: list[str] | None) -> Callable[[Iterator[Payload]], tuple[int, int]]:
    """Some tables without senders: rows, and bytes of the tables."""

    def made(blocks: Iterator[Payload]) -> tuple[int, int]:
        found = frames(blocks, tables=names, senders=False).values()
        return sum(table.num_rows for table in found), sum(table.nbytes for table in found)

    return made


def with_senders(blocks: Iterator[Payload]) -> tuple[int, int]:
    """Transactions with who signed them."""
    found = frames(blocks, tables=["transactions"])["transactions"]
    return found.num_rows, found.nbytes


WORK: Final = {
    "decode": decoded,
    "all tables": tables(None),
    "blocks": tables(["blocks"]),
    "transactions": tables(["transactions"]),
    "transactions, senders": with_senders,
    "logs": tables(["logs"]),
}


def measure(name: str, blocks: int) -> str:
    """One line, in this process."""
    payloads = recorded()
    held, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    rows, size = WORK[name](islice(cycle(payloads), blocks))
    spent = time.process_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024
    beside = max(grown - size / 2**20, 0)
    return f"{name:24}{rows:>10}{spent / rows * 1e6:>10.2f}{size / 2**20:>12.0f}{beside:>12.0f}\n"


def main() -> None:
    """The table."""
    if not FIXTURES.is_dir():
        sys.exit("the recorded mainnet blocks are not at ../shared/fixtures")
    blocks = max(1, (int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_ROWS) // ROWS_OF_ALL)
    sys.stdout.write(f"{blocks} blocks\n{'':24}{'rows':>10}{'us a row':>10}{'tables MB':>12}{'beside MB':>12}\n")
    for name in WORK:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            sys.stdout.write(process.apply(measure, (name, blocks)))


if __name__ == "__main__":
    main()
