"""Publisher process of tests: pushes a growing chain from a file, and prints what was acknowledged.

    python pushing.py PORT[,PORT] FILE blob

The application is blob, or items, which has no forks. A line of the file is a block: number, hash, parent and content,
in hex. The last line is the head; a block whose parent is not the line before begins another branch. The hash of each
block that a node acknowledged is printed.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from cardinal.apps import Application, blob, get
from cardinal.errors import NodeBehindError, RefusedError, UnreachableError
from cardinal.protocols.streams import Payload
from cardinal_ingest import Publisher, items
from cardinal_ingest.body import items_of
from cardinal_ingest.body.body_pb2 import Header, Item, Proof

HELD_AT_START = 100
MOST_KNOWN = 1_000
TAIL_BYTES = 1 << 24
PAUSE_SECONDS = 0.01


class Mined(NamedTuple):
    """A line of the file."""

    number: int
    hash: bytes
    parent: bytes
    content: bytes

    @classmethod
    def of(cls, line: str) -> Mined:
        number, *parts = line.split(",")
        return cls(int(number), *map(bytes.fromhex, parts))

    @property
    def line(self) -> str:
        return f"{self.number},{self.hash.hex()},{self.parent.hex()},{self.content.hex()}\n"

    def payload(self, app: str) -> Payload:
        """What a consumer gets."""
        if app == "items":
            return items.payload(items.Block(self.number, self.items(app)))
        half = len(self.content) // 2
        keys = {"one": self.content[:half], "two": self.content[half:]}
        return blob.payload(blob.Blob(self.number, self.hash, self.parent, keys))

    def items(self, app: str) -> tuple[bytes, ...]:
        """What is pushed."""
        if app == "blob":
            return items_of(self.payload(app), chain_id=1)
        header: bytes = Item(header=Header(number=self.number)).SerializeToString()
        proof: bytes = Item(proof=Proof(number=self.number, digest=self.hash)).SerializeToString()
        return header, b"\x25" + self.hash[:4], proof


class Source:
    """The file as a chain."""

    def __init__(self, file: Path) -> None:
        self._lines = file.open()
        self._lines.seek(max(0, file.stat().st_size - TAIL_BYTES))
        if self._lines.tell():
            self._lines.readline()  # its beginning is missing
        self._partial = ""
        self._blocks: dict[bytes, Mined] = {}
        self._head: Mined | None = None

    def branch(self, known: dict[int, bytes], most: int) -> list[Mined]:
        """The head's newest ancestors that are not known, lowest first."""
        *complete, self._partial = (self._partial + self._lines.read()).split("\n")
        for line in complete:
            self._head = Mined.of(line)
            self._blocks[self._head.hash] = self._head
        if self._head is not None and len(self._blocks) > 2 * MOST_KNOWN:
            newest = self._head.number - MOST_KNOWN
            self._blocks = {block.hash: block for block in self._blocks.values() if block.number > newest}
        new: list[Mined] = []
        block = self._head
        while block is not None and known.get(block.number) != block.hash and len(new) < most:
            new.append(block)
            block = self._blocks.get(block.parent)
        return new[::-1]


def push(ports: list[str], source: Source, app_name: str) -> None:
    """Follow the source for ever: publish what is new on its head's branch."""
    app = get(app_name)
    url = "ingest://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    needed: SimpleQueue[int] = SimpleQueue()
    with opened(url, app) as publisher:
        known: dict[int, bytes] = {}
        while True:
            while not needed.empty():  # a chain that grows no more is not added to, so add() would not say it
                lowest = needed.get()
                known = {number: block_hash for number, block_hash in known.items() if number < lowest}
            new = source.branch(known, 10**9 if known else HELD_AT_START)
            if not new:
                time.sleep(PAUSE_SECONDS)
            for block in new:
                known = {number: block_hash for number, block_hash in known.items() if number < block.number}
                known[block.number] = block.hash
                try:
                    publisher.add(block.payload(app_name)).add_done_callback(partial(report, block.hash, needed))
                except NodeBehindError as behind:
                    known = {number: block_hash for number, block_hash in known.items() if number < behind.number}
                    break


def opened(url: str, app: Application) -> Publisher:
    """A publisher, as soon as the node answers."""
    while True:
        try:
            return Publisher(url, app, publisher_id="pushing")
        except (RefusedError, UnreachableError):
            time.sleep(PAUSE_SECONDS)


def report(block_hash: bytes, needed: SimpleQueue[int], done: Future[None]) -> None:
    """Print a block that was acknowledged; note the number from which a node needs blocks again."""
    error = done.exception()
    if error is None:
        print(block_hash.hex(), flush=True)  # noqa: T201 - to the test
    elif isinstance(error, NodeBehindError):
        needed.put(error.number)


if __name__ == "__main__":
    push(sys.argv[1].split(","), Source(Path(sys.argv[2])), sys.argv[3])
