"""Rows of a cluster's member: what its replica has committed, in the same file as the bodies.

Rules:

1. The rows of a step are one transaction, in the order of the steps. After one that fails no later one is committed:
   it may vouch for what the failed one held, as a signature does for bodies.
2. A block's body is in the table ``blocks`` of the :class:`~cardinal_ingest.node.store.BodyStore`, which marks an
   agreed block as promoted: its row outlives its body while a fork may begin at it.
3. A body that is being sent to a peer outlives its deletion by one step at least.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cardinal.errors import ConfigurationError
from cardinal_ingest.body_exchange.objects import Objects, object_of
from cardinal_ingest.errors import ViolationError
from cardinal_ingest.node.store import signed
from cardinal_ingest.protocols import cbor
from cardinal_ingest.protocols.publish import BlockId
from cardinal_ingest.protocols.replication import (
    Block,
    DeleteBlock,
    DeleteCandidates,
    DeleteWinner,
    Header,
    Position,
    PutBlock,
    PutCandidate,
    PutPosition,
    PutPromoted,
    PutWinner,
    Ref,
    Row,
    Rules,
    State,
    Stored,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from cardinal_ingest.node.store import BodyStore
    from cardinal_ingest.protocols.cbor import Value

_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS facts (
        hash BLOB PRIMARY KEY, number INTEGER NOT NULL, parent BLOB NOT NULL, weight BLOB NOT NULL,
        content BLOB NOT NULL, size INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS candidates (
        batch BLOB PRIMARY KEY, num INTEGER NOT NULL, header BLOB NOT NULL, signature BLOB NOT NULL
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS winners (num INTEGER PRIMARY KEY, header BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS replica (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)
_POSITION: Final = "position"
_PROMOTED: Final = "promoted"
_CLUSTER: Final = "cluster"


class AgreedBlock(NamedTuple):
    """An agreed block from which a fork may still begin."""

    block: BlockId
    parent: BlockId


class ReplicaRows:
    """Rows of a replica.

    Arguments:
        store: of the bodies, with the file.
        objects: how blocks are named.
        cluster: whose replica it is; a folder of another cluster is refused.

    Raises:
        ConfigurationError: the folder belongs to another cluster.

    """

    def __init__(self, store: BodyStore, objects: Objects, cluster: bytes) -> None:
        self._store = store
        self._objects = objects
        self._pinned: list[tuple[int, bytes]] = []
        """Blocks whose bodies are to go when peers have them."""
        self._last: Future[None] | None = None
        """The commit of the newest step."""

        def create(database: sqlite3.Connection) -> int:
            for table in _TABLES:
                database.execute(table)
            database.execute("INSERT OR IGNORE INTO replica VALUES (?, ?)", (_CLUSTER, cluster))
            return 0

        store.write(create).result()
        ((found,),) = store.query(f"SELECT value FROM replica WHERE name = '{_CLUSTER}'")  # noqa: S608 - a constant
        if found != cluster:
            raise ConfigurationError(
                "the data folder belongs to another cluster, or another epoch of it: choose an empty folder",
                setting="data",
            )

    # --- queries ------------------------------------------------------------------------------------------------------

    def stored(self) -> list[Stored]:
        """All rows of the replica."""
        query = self._store.query
        rows: list[Stored] = [
            PutBlock(_block(row)) for row in query("SELECT number, hash, parent, weight, content, size FROM facts")
        ]
        rows += (
            PutCandidate(read_header(header), signature)
            for header, signature in query("SELECT header, signature FROM candidates")
        )
        rows += (PutWinner(read_header(header)) for (header,) in query("SELECT header FROM winners"))
        values = dict(query("SELECT name, value FROM replica"))
        if _POSITION in values:
            rows.append(PutPosition(_position(values[_POSITION])))
        if _PROMOTED in values:
            num, index = _numbers(values[_PROMOTED])
            rows.append(PutPromoted(num, index))
        return rows

    def agreed(self) -> list[AgreedBlock]:
        """Agreed blocks from which a fork may begin, lowest first."""
        return [
            AgreedBlock(BlockId(block.number, block.hash), BlockId(block.number - 1, block.parent))
            for block in self._store.blocks()
            if block.promoted
        ]

    # --- changes ------------------------------------------------------------------------------------------------------

    def apply(self, rows: Sequence[Row], bodies: Mapping[Ref, bytes]) -> Future[None]:
        """Commit the rows of a step; ``bodies`` has those of its new blocks."""
        before = self._last

        def write(database: sqlite3.Connection) -> int:
            # One that is not done is in the same transaction.
            if before is not None and before.done() and before.exception() is not None:
                raise sqlite3.OperationalError("an earlier step could not be stored")
            return sum(self._write(database, row, bodies) for row in rows)

        self._last = self._store.write(write)
        return self._last

    def _write(self, database: sqlite3.Connection, row: Row, bodies: Mapping[Ref, bytes]) -> int:
        match row:
            case PutBlock(block):
                return self._put_block(database, block, bodies[block.ref])
            case DeleteBlock(ref):
                return self._delete_block(database, ref)
            case PutCandidate(header, signature):
                fields = header.hash, header.num, header.raw, signature
                database.execute("INSERT OR REPLACE INTO candidates VALUES (?, ?, ?, ?)", fields)
            case DeleteCandidates(below):
                database.execute("DELETE FROM candidates WHERE num < ?", (below,))
            case PutWinner(header):
                return self._put_winner(database, header)
            case DeleteWinner(num):
                database.execute("DELETE FROM winners WHERE num = ?", (num,))
            case PutPosition(position):
                self._put(database, _POSITION, _position_value(position))
                if position.state is not None:
                    self._forget(database, position.state)
            case PutPromoted(num, index):
                self._put(database, _PROMOTED, (num, index))
        return 0

    @staticmethod
    def _put(database: sqlite3.Connection, name: str, value: Value) -> None:
        database.execute("INSERT OR REPLACE INTO replica VALUES (?, ?)", (name, cbor.dump(value)))

    def _put_block(self, database: sqlite3.Connection, block: Block, body: bytes) -> int:
        named = self._objects.block_of(object_of(BlockId(block.number, block.hash)))
        parent = block.parent if named.hash else b""
        name = signed(block.number), named.hash
        # A body of other content may be here, deleted and still being sent to a peer.
        self._pinned = [one for one in self._pinned if one != named]
        counted = database.execute(
            "SELECT size FROM blocks WHERE number = ? AND hash = ? AND promoted = 0", name
        ).fetchall()
        ((promoted,),) = database.execute(
            "INSERT INTO blocks (number, hash, parent, size, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT (number, hash) "
            "DO UPDATE SET body = excluded.body, size = excluded.size RETURNING promoted",
            (*name, parent, len(body), body),
        ).fetchall()
        fields = block.hash, signed(block.number), block.parent, _weight(block.weight), block.content, block.size
        database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?, ?)", fields)
        return 0 if promoted else len(body) - sum(int(size) for (size,) in counted)

    def _delete_block(self, database: sqlite3.Connection, ref: Ref) -> int:
        block = self._objects.block_of(object_of(BlockId(*ref)))
        database.execute("DELETE FROM facts WHERE hash = ?", (ref.hash,))
        going = [*self._pinned, (block.number, block.hash)]
        unpinned = self._store.unpinned(going)
        self._pinned = [one for one in going if one not in unpinned]
        freed = 0
        for number, block_hash in unpinned:
            name = signed(number), block_hash
            database.execute("UPDATE blocks SET body = NULL WHERE number = ? AND hash = ? AND promoted = 1", name)
            gone = database.execute(
                "DELETE FROM blocks WHERE number = ? AND hash = ? AND promoted = 0 RETURNING size", name
            ).fetchall()
            freed += sum(int(size) for (size,) in gone)
        return -freed

    def _put_winner(self, database: sqlite3.Connection, header: Header) -> int:
        """Store an agreed batch: a path of blocks, which are agreed whether their bodies are here or not."""
        database.execute("INSERT OR REPLACE INTO winners VALUES (?, ?)", (header.num, header.raw))
        freed, parent = 0, header.parent
        for item in header.items:
            block = self._objects.block_of(object_of(BlockId(item.number, item.hash)))
            name = signed(block.number), block.hash
            was = database.execute(
                "UPDATE blocks SET promoted = 1 WHERE number = ? AND hash = ? AND promoted = 0 RETURNING size", name
            ).fetchall()
            freed += sum(int(size) for (size,) in was)
            database.execute(
                "INSERT OR IGNORE INTO blocks (number, hash, parent, size, promoted) VALUES (?, ?, ?, 0, 1)",
                (*name, parent if block.hash else b""),
            )
            parent = item.hash
        return -freed

    @staticmethod
    def _forget(database: sqlite3.Connection, state: State) -> None:
        """Delete the rows of agreed blocks below the window whose bodies are gone."""
        floor = state.highest - state.rules.window
        if floor > 0:
            database.execute(
                "DELETE FROM blocks WHERE promoted = 1 AND body IS NULL AND number < ? AND number >= 0",
                (signed(floor),),
            )


# --- values -----------------------------------------------------------------------------------------------------------


def _weight(weight: int) -> bytes:
    return weight.to_bytes((weight.bit_length() + 7) // 8, "big")


def _block(row: tuple[Any, ...]) -> Block:
    number, block_hash, parent, weight, content, size = row
    return Block(number % (1 << 64), block_hash, parent, int.from_bytes(weight, "big"), content, size)


def _position_value(position: Position) -> Value:
    rules, state = position.rules, position.state
    return (
        position.offset,
        position.record,
        position.skips,
        int(position.closed),
        () if rules is None else (rules.start, rules.window, rules.max_blocks),
        b"" if state is None else state.raw,
    )


def _position(value: bytes) -> Position:
    offset, record, skips, closed, numbers, raw = _read(value)
    rules = Rules(*numbers) if numbers else None
    state = State.read(raw, rules)[2] if raw and rules is not None else None
    return Position(offset, record, skips, bool(closed), rules, state)


def _numbers(value: bytes) -> list[int]:
    numbers: list[int] = _read(value)
    return numbers


def _read(value: bytes) -> Any:  # noqa: ANN401 - as it was written here
    try:
        return cbor.load(value)
    except ViolationError as error:
        raise ConfigurationError(
            f"the data folder was changed by somebody else ({error.reason}): remove it, and start the node again",
            setting="data",
        ) from None
