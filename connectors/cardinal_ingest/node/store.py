"""Store of an ingest node: one SQLite file that holds the bodies of verified blocks until they are on the topics.

Rules:

1. A block is durable when the transaction that holds its row is committed: the log is synced to the disk before that.
2. One thread writes. All that waits for it becomes one transaction, so that one sync serves many blocks.
3. A block that is on the topics loses its body, at once or, for peers, when enough newer ones are on the topics.
   Its row stays while a fork may begin at it.
4. One process has the file: a second one is refused.
"""

from __future__ import annotations

import queue
import shutil
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from cardinal._concurrency import new_future, settle
from cardinal.errors import ConfigurationError
from cardinal_ingest.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    Write: TypeAlias = Callable[[sqlite3.Connection], int]

_NAME: Final = "ingest.sqlite"
_SCHEMA: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (
    ticket INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL,
    hash BLOB NOT NULL,
    parent BLOB NOT NULL,
    size INTEGER NOT NULL,
    promoted INTEGER NOT NULL DEFAULT 0,
    body BLOB
);
CREATE UNIQUE INDEX IF NOT EXISTS refs ON blocks (number, hash);
CREATE INDEX IF NOT EXISTS retained ON blocks (number) WHERE promoted = 1 AND body IS NOT NULL;
"""
_SIGN: Final = 1 << 63


class StoredBlock(NamedTuple):
    """A block of the store; ``hash`` and ``parent`` are empty where headers carry none.

    ``retained``: its body is here.
    """

    ticket: int
    number: int
    hash: bytes
    parent: bytes
    size: int
    promoted: bool
    retained: bool


class BodyStore:
    """Bodies of blocks in a folder.

    Arguments:
        folder: made where it is missing.
        stream: the stream that the blocks are of; a folder of another one is refused.
        retain: numbers below the newest block on the topics whose bodies are retained.

    Attributes:
        pool_bytes: of bodies that are not on the topics.
        unpinned: called, on the writer's thread, with blocks whose bodies are to go; returns those that may.

    Raises:
        ConfigurationError: another process has the folder, or it belongs to another stream.
        StoreError: the disk refuses it.

    """

    def __init__(self, folder: Path, stream: str, *, retain: int = 0) -> None:
        self._retain = retain
        self._newest = -_SIGN
        self.unpinned: Callable[[list[tuple[int, bytes]]], list[tuple[int, bytes]]] = lambda blocks: blocks
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / _NAME
        try:
            self._database = sqlite3.connect(self._path, timeout=1, isolation_level=None, check_same_thread=False)
        except sqlite3.OperationalError as error:
            raise StoreError(f"the data folder {folder} cannot be used: {error}") from None
        try:
            for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
                self._database.execute(f"PRAGMA {pragma}")
            self._database.executescript(_TABLES)
            self._database.execute("BEGIN IMMEDIATE")
            known = dict(self._database.execute("SELECT key, value FROM meta"))
            wanted = {"schema": str(_SCHEMA), "stream": stream}
            self._database.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", wanted.items())
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self._database.close()
            if "locked" in str(error):
                raise ConfigurationError(
                    f"another process has the data folder {folder}: give each node a folder of its own", setting="data"
                ) from None
            raise StoreError(f"the data folder {folder} cannot be used: {error}") from None
        for key, value in wanted.items():
            if known.get(key, value) != value:
                self._database.close()
                raise ConfigurationError(
                    f"the data folder {folder} belongs to {key} {known[key]}, not {value}: choose another folder",
                    setting="data",
                )
        (self.pool_bytes,) = self._database.execute(
            "SELECT COALESCE(SUM(size), 0) FROM blocks WHERE promoted = 0"
        ).fetchone()
        self._reusable = self._free_pages()
        self._reading = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Write, Future[None]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._commit, name="cardinal-ingest-store", daemon=True)
        self._writer.start()

    # --- what is stored ---------------------------------------------------------------------------------------------

    def blocks(self) -> list[StoredBlock]:
        """All blocks, lowest first."""
        with self._reading:
            rows = self._database.execute(
                "SELECT ticket, number, hash, parent, size, promoted, body IS NOT NULL FROM blocks"
            ).fetchall()
        blocks = [
            StoredBlock(ticket, number % (2 * _SIGN), block_hash, parent, size, bool(promoted), bool(retained))
            for ticket, number, block_hash, parent, size, promoted, retained in rows
        ]
        return sorted(blocks, key=lambda block: (block.number, block.hash))

    def body(self, number: int, block_hash: bytes) -> bytes:
        """The body of a block that is not on the topics yet, or retained.

        Raises:
            StoreError: it is not here.

        """
        with self._reading:
            row = self._database.execute(
                "SELECT body FROM blocks WHERE number = ? AND hash = ?", (signed(number), block_hash)
            ).fetchone()
        if row is None or row[0] is None:
            raise StoreError(f"the store has no body of block {number}: it was changed by another process")
        body: bytes = row[0]
        return body

    def size(self, number: int, block_hash: bytes) -> int | None:
        """Bytes of a body; None where it is not here."""
        with self._reading:
            row = self._database.execute(
                "SELECT size FROM blocks WHERE number = ? AND hash = ? AND body IS NOT NULL",
                (signed(number), block_hash),
            ).fetchone()
        return None if row is None else int(row[0])

    def first(self) -> int | None:
        """The number of the block with which the stream begins; None while there is none."""
        with self._reading:
            row = self._database.execute("SELECT value FROM meta WHERE key = 'first'").fetchone()
        return None if row is None else int(row[0])

    def free_bytes(self) -> int:
        """Bytes that can be stored: free on the disk, or in the file, which does not shrink."""
        return shutil.disk_usage(self._path.parent).free + self._reusable

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        with self._reading:
            return self._database.execute(sql).fetchall()

    # --- changes: a future each, which ends when the change is durable ------------------------------------------------

    def add(self, number: int, block_hash: bytes, parent: bytes, body: bytes, first: int) -> Future[None]:
        """Keep a verified block; ``first``: with which the stream begins."""

        def write(database: sqlite3.Connection) -> int:
            database.execute("INSERT OR IGNORE INTO meta VALUES ('first', ?)", (str(first),))
            added = database.execute(
                "INSERT OR IGNORE INTO blocks (number, hash, parent, size, body) VALUES (?, ?, ?, ?, ?)",
                (signed(number), block_hash, parent, len(body), body),
            )
            return added.rowcount * len(body)

        return self.write(write)

    def promoted(self, number: int, block_hash: bytes) -> Future[None]:
        """A block is on the topics. Bodies that are not retained any more go."""
        body = "body" if self._retain else "NULL"

        def write(database: sqlite3.Connection) -> int:
            sizes = database.execute(
                f"UPDATE blocks SET promoted = 1, body = {body} WHERE number = ? AND hash = ? AND promoted = 0 "  # noqa: S608 - one of two words
                "RETURNING size",
                (signed(number), block_hash),
            ).fetchall()
            self._newest = max(self._newest, signed(number))
            going = database.execute(
                "SELECT number, hash FROM blocks WHERE promoted = 1 AND body IS NOT NULL AND number <= ?",
                (max(self._newest - self._retain, -_SIGN),),
            ).fetchall()
            if going:
                unpinned = self.unpinned([(number % (2 * _SIGN), one) for number, one in going])
                database.executemany(
                    "UPDATE blocks SET body = NULL WHERE number = ? AND hash = ?",
                    [(signed(number), one) for number, one in unpinned],
                )
            return -sum(int(size) for (size,) in sizes)

        return self.write(write)

    def remove(self, number: int, block_hash: bytes) -> Future[None]:
        """Remove a block that will never be on the topics: its chain left it behind."""

        def write(database: sqlite3.Connection) -> int:
            sizes = database.execute(
                "DELETE FROM blocks WHERE number = ? AND hash = ? AND promoted = 0 RETURNING size",
                (signed(number), block_hash),
            ).fetchall()
            return -sum(int(size) for (size,) in sizes)

        return self.write(write)

    def forget(self, below: int) -> Future[None]:
        """Delete the rows of promoted blocks below a number; retained bodies and parents of unpromoted blocks stay."""

        def write(database: sqlite3.Connection) -> int:
            (lowest,) = database.execute("SELECT MIN(number) FROM blocks WHERE promoted = 0").fetchone()
            end = signed(below) if lowest is None else min(signed(below), lowest - 1)
            database.execute(
                "DELETE FROM blocks WHERE promoted = 1 AND body IS NULL AND number < ? AND number >= 0", (end,)
            )
            return 0

        return self.write(write)

    def check(self) -> Future[None]:
        """Write a little, to see whether the disk can be written again."""

        def write(database: sqlite3.Connection) -> int:
            database.execute("INSERT OR REPLACE INTO meta VALUES ('checked', randomblob(16))")
            return 0

        return self.write(write)

    def close(self) -> None:
        """Finish what waits, and release the file. May be called twice."""
        if self._writer.is_alive():
            self._waiting.put(None)
            self._writer.join()
            self._database.close()

    def write(self, write: Write) -> Future[None]:
        """Make a change in the next transaction; ``write`` returns by how much the pool grew."""
        future = new_future()
        self._waiting.put((write, future))
        return future

    # --- inside -------------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        """Commit what waits, until the store is closed."""
        last = False
        while not last:
            waiting = [self._waiting.get()]
            while not self._waiting.empty():
                waiting.append(self._waiting.get())
            last = None in waiting
            writes = [one for one in waiting if one is not None]
            error: StoreError | None = None
            with self._reading:
                try:
                    self._database.execute("BEGIN IMMEDIATE")
                    change = sum([write(self._database) for write, _ in writes])
                    self._database.execute("COMMIT")
                    self.pool_bytes += change
                    self._reusable = self._free_pages()
                except sqlite3.Error as failure:
                    error = StoreError(f"the data folder {self._path.parent} cannot be written: {failure}")
                    if self._database.in_transaction:
                        self._database.execute("ROLLBACK")
            for _, future in writes:
                settle(future, error)

    def _free_pages(self) -> int:
        """Bytes of the file that hold nothing."""
        (pages,), (size,) = (
            self._database.execute(f"PRAGMA {name}").fetchone() for name in ("freelist_count", "page_size")
        )
        return int(pages) * int(size)


def signed(number: int) -> int:
    """SQLite's integers have a sign; numbers of blocks have 64 bits without one."""
    return number - 2 * _SIGN if number >= _SIGN else number
