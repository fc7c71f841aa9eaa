"""SQLite store of the cases' consumer: every update with its cursor, each pair in one transaction.

It is written by one process, which may be killed at any moment, and read by others meanwhile.
"""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any, Final

from .history import Delivery, Seen

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from cardinal.protocols.streams.events import ChainUpdate

_LOCKED_SECONDS: Final = 60.0
"""How long the consumer waits for those who look how far it is."""

_TABLES: Final = """
    create table if not exists updates (
        place integer primary key autoincrement,
        seq integer unique not null, first_seq integer not null, removed text not null, added text not null
    );
    create table if not exists place (one integer primary key check (one = 1), cursor text not null);
    create table if not exists reports (block blob, report text not null, seq integer not null);
    create table if not exists starts (cursor text not null);
"""


def opened(database: Path) -> sqlite3.Connection:
    """Open it to write; made where it is missing."""
    store = sqlite3.connect(database, timeout=_LOCKED_SECONDS)
    with store:
        store.executescript(_TABLES)
    store.execute("pragma synchronous = off")  # what a kill takes is the process, not the machine
    return store


def begun(store: sqlite3.Connection) -> str:
    """Where a consumer begins that starts now."""
    found = store.execute("select cursor from place").fetchone()
    start = str(found[0]) if found else "earliest"
    with store:
        store.execute("insert into starts values (?)", (start,))  # for whoever looks for a cause
    return start


def add(store: sqlite3.Connection, update: ChainUpdate, told: Iterable[tuple[bytes | None, str]]) -> None:
    """Store an update, its cursor, and the events that the consumer reported before it."""
    delivery = Delivery.of(update)
    with store:
        row = (delivery.seq, delivery.first_seq, _seen(delivery.removed), _seen(delivery.added))
        store.execute("insert into updates (seq, first_seq, removed, added) values (?, ?, ?, ?)", row)
        store.execute("insert or replace into place values (1, ?)", (str(update.cursor),))
        store.executemany("insert into reports values (?, ?, ?)", [(*report, delivery.seq) for report in told])


def deliveries(database: Path) -> list[Delivery]:
    """What a consumer has stored, in the order in which it stored it."""
    rows = _rows(database, "select first_seq, seq, removed, added from updates order by place")
    return [Delivery(first, seq, _unseen(removed), _unseen(added)) for first, seq, removed, added in rows]


def cursor(database: Path) -> str | None:
    """The cursor that stands beside the data."""
    rows = _rows(database, "select cursor from place")
    return rows[0][0] if rows else None


def reports(database: Path) -> list[tuple[bytes | None, str]]:
    """Events of a consumer that no honest producer causes, with the block's hash where one was abandoned."""
    return [(block, report) for block, report in _rows(database, "select block, report from reports")]


def given_up(database: Path) -> frozenset[bytes]:
    """The blocks that a consumer reported as quarantined."""
    return frozenset(block for block, _ in reports(database) if block is not None)


def blocks(database: Path) -> int:
    """How many blocks were delivered."""
    rows = _rows(database, "select max(seq) from updates")
    return int(rows[0][0] or 0) if rows else 0


def head(database: Path) -> int:
    """The number of the newest block that was delivered; 0 before the first."""
    rows = _rows(database, "select added from updates where added <> '[]' order by place desc limit 1")
    return _unseen(rows[0][0])[-1].number if rows else 0


def _rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    if not database.exists():
        return []
    store = sqlite3.connect(f"file:{database}?mode=rw", uri=True, timeout=_LOCKED_SECONDS)
    try:
        return store.execute(query).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return []  # the tables are about to be made
        raise
    finally:
        store.close()


def _seen(blocks: tuple[Seen, ...]) -> str:
    return json.dumps([[block.number, block.hash.hex(), block.digest.hex()] for block in blocks])


def _unseen(text: str) -> tuple[Seen, ...]:
    return tuple(Seen(number, bytes.fromhex(name), bytes.fromhex(digest)) for number, name, digest in json.loads(text))
