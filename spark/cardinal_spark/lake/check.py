"""Check of a lake: of its tables against each other, and against the stream that it was made of.

Rules:

1. The ledger is dense, every row follows the chain before it, and ``canonical`` is the chain that it leads to.
2. A row of any other table belongs to a block that joined under its seq, by the ledger.
3. The typed rows of a block of the chain equal those decoded from its content, in ``payload``.
4. A stream that holds a height of the lake's chain holds the same block with the same content. Blocks above the lake's
   head, or no longer on the topics, are no difference.

A difference is reported once for a block and table, for any number of rows that differ.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.errors import ApplicationError
from cardinal.protocols.streams.payload import MissingPayload, PathMap, Payload
from cardinal.protocols.streams.types import path_text
from cardinal.texts import Count
from cardinal_spark.options import INTEGERS
from cardinal_spark.rows import ADDED, AppSpec

from .decode import key_columns, payload_rows
from .ledger import EventRow, event_rows
from .query import NumberRange
from .tables import CANONICAL, CURRENT, EVENTS, PAYLOAD, LakeSettings
from .typed import typed_rows, typed_schemas

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from .query import Snapshot

_WINDOW: Final = 256
"""Blocks that are compared at a time."""

_SENDER: Final = "from_address"
"""The column that is filled only if senders are recovered."""

Rows: TypeAlias = "dict[bytes, Counter[str]]"
"""The rows of each block, as text."""

_LATER: Final = "block_date"
"""The newest column that every row has: where it is null, the rows are older than it and the other new columns."""
_CAME_WITH_IT: Final = frozenset({_LATER, "topic0", "topic1", "topic2", "topic3"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between the lake and its expected content.

    Attributes:
        table: the table's name.
        number: the block's number, None where it is unknown.
        seq: the ledger's row, None where it has none.
        what: the difference in words.

    """

    table: str
    number: int | None
    seq: int | None
    what: str

    def __str__(self) -> str:
        """One line."""
        block = "" if self.number is None else f" block {self.number}"
        seq = "" if self.seq is None else f" (seq {self.seq})"
        return f"{self.table}:{block}{seq}: {self.what}"


class Check:
    """One check of one state of a lake. The ledger is held: about 450 bytes a row.

    Arguments:
        snapshot: of the lake.

    Attributes:
        blocks: the number of blocks of the chain that were checked.
        stream_blocks: the number of them that were compared with the stream's.

    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._spec = AppSpec.parse(snapshot.state.app)
        self._ledger = event_rows(snapshot.dataset(EVENTS).to_table())
        self._chain: dict[int, EventRow] = {}
        self.blocks = self.stream_blocks = 0

    def tables(self) -> Iterator[Difference]:
        """Differences between the lake's tables (rules 1 to 3)."""
        yield from self._follow_ledger()
        yield from self._canonical()
        for table in self._snapshot.state.versions:
            if table != EVENTS:
                yield from self._strangers(table)
        numbers = sorted(self._chain)
        for at in range(0, len(numbers), _WINDOW):
            yield from self._typed([self._chain[number] for number in numbers[at : at + _WINDOW]])

    def stream(self, blocks: Iterable[Payload]) -> Iterator[Difference]:
        """Differences from a stream's chain, lowest first (rule 4); after :meth:`tables`."""
        window: list[Payload] = []
        for block in blocks:
            row = self._chain.get(block.number)
            if row is None:
                continue
            if row.hash != block.hash:
                yield Difference(
                    CANONICAL,
                    block.number,
                    row.seq,
                    f"the stream has 0x{block.hash.hex()}, the lake 0x{row.hash.hex()}",
                )
                continue
            window.append(block)
            if len(window) == _WINDOW:
                yield from self._content(window)
                window = []
        yield from self._content(window)

    # --- the ledger ------------------------------------------------------------------------------------------

    def _follow_ledger(self) -> Iterator[Difference]:
        chain: list[EventRow] = []
        before = 0
        for row in self._ledger:
            if row.seq != before + 1:
                what = "is there twice" if row.seq == before else f"does not follow seq {before}"
                yield Difference(EVENTS, row.number, row.seq, what)
            before = row.seq
            if row.change != ADDED:
                if not chain or chain[-1].hash != row.hash:
                    yield Difference(EVENTS, row.number, row.seq, "removes a block that is not the head")
                else:
                    chain.pop()
                continue
            if chain and (row.number != chain[-1].number + 1 or row.parent not in (None, chain[-1].hash)):
                yield Difference(EVENTS, row.number, row.seq, f"does not follow block {chain[-1].number} of the chain")
            chain.append(row)
        if before != self._snapshot.seq:
            yield Difference(EVENTS, None, before, f"ends here, and canonical is at seq {self._snapshot.seq}")
        self._chain = {row.number: row for row in chain}

    def _canonical(self) -> Iterator[Difference]:
        found = self._snapshot.scan(CANONICAL, columns=["number", "hash", "seq"]).read_all().to_pylist()
        counts = Counter(row["number"] for row in found)
        for row in sorted(found, key=lambda row: row["number"]):
            due = self._chain.get(row["number"])
            if due is None:
                yield Difference(CANONICAL, row["number"], row["seq"], "is not in the chain of the ledger")
            elif (row["hash"], row["seq"]) != (due.hash, due.seq):
                named = f"0x{due.hash.hex()} at seq {due.seq}"
                yield Difference(CANONICAL, row["number"], row["seq"], f"the ledger's chain has {named} here")
        for number in sorted(self._chain.keys() - counts.keys()):
            yield Difference(CANONICAL, number, self._chain[number].seq, "is missing")
        for number in sorted(number for number, count in counts.items() if count > 1):
            yield Difference(CANONICAL, number, None, "is there twice")

    def _strangers(self, table: str) -> Iterator[Difference]:
        joined = {(row.seq, row.number, row.hash) for row in self._ledger if row.change == ADDED}
        names = ["_seq", "_block_number", "_block_hash"]
        strangers: set[tuple[int, int, bytes]] = set()
        for batch in self._snapshot.scan(table, columns=names):
            found = pa.Table.from_batches([batch]).group_by(names).aggregate([])
            keys = zip(*(found.column(name).to_pylist() for name in names), strict=True)
            strangers.update(key for key in keys if key not in joined)
        for seq, number, block_hash in sorted(strangers):
            yield Difference(table, number, seq, f"has rows of 0x{block_hash.hex()}, which did not join under this seq")

    # --- content ---------------------------------------------------------------------------------------------

    def _typed(self, window: Sequence[EventRow]) -> Iterator[Difference]:
        """Rule 3, for some blocks that follow each other."""
        self.blocks += len(window)
        tables = [name for name in typed_schemas(self._spec, LakeSettings()) if name in self._snapshot.state.versions]
        if not tables:
            return
        content = _content_of(self._current(PAYLOAD, window))
        rows = [row for row in window if row.hash in content]
        if not rows:
            return
        stored = {table: self._current(table, window) for table in tables}
        settings = self._settings(stored)
        payloads = [
            Payload(row.number, row.hash, row.parent or b"", int.from_bytes(row.weight), *content[row.hash])
            for row in rows
        ]
        try:
            due = typed_rows(self._spec, payloads, key_columns(rows), settings)
        except ApplicationError as error:
            yield Difference(PAYLOAD, rows[0].number, rows[0].seq, f"a block from here on does not decode: {error}")
            return
        for table in tables:
            names = [name for name in due[table].schema.names if name in stored[table].schema.names]
            wanted = due[table].select(names)
            held = stored[table].select(names).cast(wanted.schema)
            old = _older(held)
            yield from self._unequal(table, window, _by_block(held, old), _by_block(wanted, old))

    def _content(self, blocks: Sequence[Payload]) -> Iterator[Difference]:
        """Rule 4, for some blocks of the chain."""
        rows = [self._chain[block.number] for block in blocks]
        self.stream_blocks += len(rows)
        if rows:
            due = payload_rows(blocks, key_columns(rows))
            held = self._current(PAYLOAD, rows).select(due.schema.names).cast(due.schema)
            yield from self._unequal(PAYLOAD, rows, _by_block(held), _by_block(due))

    def _unequal(self, table: str, window: Sequence[EventRow], held: Rows, due: Rows) -> Iterator[Difference]:
        for row in window:
            is_there, should_be = held.get(row.hash, Counter()), due.get(row.hash, Counter())
            if is_there != should_be:
                lacks, more = (should_be - is_there).total(), (is_there - should_be).total()
                yield Difference(
                    table,
                    row.number,
                    row.seq,
                    f"{Count(lacks, 'row is', 'rows are')} missing, {more} should not be there",
                )

    def _current(self, table: str, window: Sequence[EventRow]) -> pa.Table:
        heights = NumberRange(window[0].number, window[-1].number)
        return self._snapshot.scan(f"{CURRENT}{table}", heights).read_all()

    def _settings(self, stored: Mapping[str, pa.Table]) -> LakeSettings:
        """The settings that the lake was written with, as its columns show."""
        for integers in INTEGERS:
            schemas = typed_schemas(self._spec, LakeSettings(integers))
            if all(_same_kinds(schemas[table], rows.schema) for table, rows in stored.items()):
                break
        senders = [rows.column(_SENDER) for rows in stored.values() if _SENDER in rows.schema.names]
        return LakeSettings(integers, any(column.null_count < len(column) for column in senders))


def _by_block(table: pa.Table, old: Container[bytes] = frozenset()) -> Rows:
    found: Rows = {}
    for row in table.to_pylist():
        block = row["_block_hash"]
        shown = {name: None if name in _CAME_WITH_IT else cell for name, cell in row.items()} if block in old else row
        found.setdefault(block, Counter())[repr(shown)] += 1
    return found


def _older(table: pa.Table) -> frozenset[bytes]:
    """The blocks whose rows were written before the lake had its newest columns."""
    if _LATER not in table.schema.names:
        return frozenset()
    rows = zip(table.column("_block_hash").to_pylist(), table.column(_LATER).to_pylist(), strict=True)
    return frozenset(block for block, day in rows if day is None)


def _content_of(table: pa.Table) -> dict[bytes, tuple[PathMap, frozenset[str]]]:
    """By block, the updates and deletes of its rows of ``payload``."""
    updates: dict[bytes, dict[bytes, bytes]] = {}
    deletes: dict[bytes, set[str]] = {}
    columns = (table.column(name).to_pylist() for name in ("_block_hash", "path", "raw_path", "value"))
    for block_hash, text, raw, value in zip(*columns, strict=True):
        path = raw if text is None else text.encode()
        here = updates.setdefault(block_hash, {})
        if value is None:
            deletes.setdefault(block_hash, set()).add(path_text(path))
        else:
            here[path] = value
    return {
        block_hash: (PathMap(found), frozenset(deletes.get(block_hash, ()))) for block_hash, found in updates.items()
    }


def _same_kinds(due: pa.Schema, held: pa.Schema) -> bool:
    return all(_kind(due.field(name).type) == _kind(held.field(name).type) for name in due.names if name in held.names)


def _kind(kind: pa.DataType) -> str:
    """The kind of a type, equal for all its encodings in files."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "bytes"
    return "nested" if pa.types.is_nested(kind) else str(kind)


def stream_chain(source: str, spec: str, **options: Any) -> Iterator[Payload]:  # noqa: ANN401 - a consumer's
    """The chain that a stream holds now, lowest first; its last blocks come at the end.

    Arguments:
        source: the stream's URL.
        spec: the application's specification.
        options: of the consumer.

    Raises:
        CardinalError: the stream cannot be read.

    """
    chosen = AppSpec.parse(spec)
    app = apps.get(chosen.name, **chosen.options)
    loose = app.reorg_threshold * 2
    held: deque[Payload | MissingPayload] = deque()
    with Consumer(source, app, until="end", max_update=_WINDOW, **options) as consumer:
        for update in consumer:
            for _ in update.removed:
                if held:
                    held.pop()
            held.extend(update.added)
            while len(held) > loose:
                if isinstance(block := held.popleft(), Payload):
                    yield block
    yield from (block for block in held if isinstance(block, Payload))
