"""Rows of ``payload`` in columns: the messages of many blocks are converted to Arrow as read, not block by block.

Rules:

1. A block takes this fast path if as many messages of it were read as its one Batch counts. Then each was read once:
   the planner has verified that none is missing, or the seal guarantees it.
2. Any other block (copies, deletes, sub batches, entries that are not followed) is assembled from the same records, by
   the usual rules.
3. Rows are unordered. ``_seq`` and ``path`` identify them.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from cardinal.errors import DecodeError
from cardinal.protocols.streams.assembly.digests import Contents
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.payload import PathMap, Payload
from cardinal.protocols.streams.types import Record, path_bytes
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG
from cardinal_spark.rows import AppSpec

from .offsets import spanned
from .tables import TableSettings, block_batches, block_time, key_batch, payload_table, time_path
from .tasks import assembled, not_whole, read_patiently

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from cardinal.protocols.streams.types import Row

    from .offsets import PlannedRow
    from .options import StreamSpec
    from .tables import KeyRow

_LONGEST: Final = 2**31 - 1
"""Arrow's slice fails without an end."""

_KIND: Final = pa.scalar(bytes((BATCH_MSG,)), pa.binary())


class _Columns:
    """The messages of some blocks, chunk by chunk.

    Arguments:
        stream: the stream to read.
        rows: the rows to make; a block may join and leave among them.

    """

    def __init__(self, stream: StreamSpec, rows: Sequence[PlannedRow]) -> None:
        self._planned = {planned.row.hash: planned for planned in rows if planned.ranges}
        self._hashes = list(self._planned)
        self._wanted = pa.array(self._hashes, pa.binary())
        spec = AppSpec.parse(stream.spec)
        paths = (time_path(spec, block_hash) for block_hash in self._hashes)
        self._times = {
            bytes((BATCH_MSG,)) + block_hash + path_bytes(path): block_hash
            for block_hash, path in zip(self._hashes, paths, strict=True)
            if path is not None
        }
        self._time_keys = pa.array(list(self._times), pa.binary())
        self.log = ""
        self.rows: list[Sequence[Row]] = []
        self.chunks: list[tuple[pa.Array, pa.Array, pa.Array]] = []
        """Block by its number among the hashes, key and value of BatchMsgs."""
        self.others: dict[bytes, list[Row]] = {}
        """All messages that are no BatchMsgs, by their block."""
        self.headers: dict[bytes, bytes] = {}
        """By block, the value that holds its time."""

    def take(self, rows: Sequence[Row]) -> None:
        """Receive the next records."""
        if not rows:
            return
        *_, keys, values, _, _ = zip(*rows, strict=True)
        key = pa.array(keys, pa.binary())
        block = pc.index_in(pc.binary_slice(key, 1, HASH_END), value_set=self._wanted)
        messages = pc.and_(pc.equal(pc.binary_slice(key, 0, 1), _KIND), pc.is_valid(block))
        taken = pc.sum(messages).as_py() or 0
        wanted = block.is_valid()
        whole = block.null_count == 0
        self.rows.append(rows if whole else [row for row, kept in zip(rows, wanted.to_pylist(), strict=True) if kept])
        if taken < len(rows):
            for at in pc.indices_nonzero(pc.invert(messages)).to_pylist():
                row = rows[at]
                block_hash = row[3][1:HASH_END]
                if block_hash in self._planned and row[3][0] != BATCH_MSG:
                    self.others.setdefault(block_hash, []).append(row)
        for at in pc.indices_nonzero(pc.is_in(key, value_set=self._time_keys)).to_pylist():
            self.headers[self._times[keys[at]]] = values[at]
        chunk = (block, key, pa.array(values, pa.binary()))
        if taken == len(rows):
            self.chunks.append(chunk)
        elif taken:
            self.chunks.append(tuple(column.filter(messages) for column in chunk))

    def of(self, blocks: Container[bytes]) -> dict[bytes, list[Row]]:
        """The records of these blocks, each in its own ranges."""
        found: dict[bytes, list[Row]] = {}
        for row in chain.from_iterable(self.rows):
            block_hash = row[3][1:HASH_END]
            if block_hash in blocks:
                low, high = self._planned[block_hash].ranges.get((row[0], row[1]), (0, 0))
                if low <= row[2] < high:
                    found.setdefault(block_hash, []).append(row)
        return found

    def counts(self) -> dict[bytes, int]:
        """The number of BatchMsgs read of each block."""
        counts: dict[bytes, int] = {}
        for block, _, _ in self.chunks:
            for each in pc.value_counts(block).to_pylist():
                block_hash = self._hashes[each["values"]]
                counts[block_hash] = counts.get(block_hash, 0) + each["counts"]
        return counts

    def own_content(self, counts: Mapping[bytes, int], follows: Reassembler) -> dict[bytes, Mapping[bytes, bytes]]:
        """By block, the values inside the Batches of those on the fast path (rule 1)."""
        found: dict[bytes, Mapping[bytes, bytes]] = {}
        for block_hash in self._planned:
            others = self.others.get(block_hash, ())
            if len(others) != 1 or others[0][3][0] != BATCH:
                continue
            try:
                candidate = follows.candidate(Record._make(others[0]))
            except DecodeError:
                continue
            counted = candidate.counters.missing()
            plain = not (candidate.announced or candidate.deletes)
            twice = any(path.startswith(prefix) for path in candidate.values for prefix in counted)
            if plain and not twice and sum(counted.values()) == counts.get(block_hash, 0):
                found[block_hash] = candidate.values
        return found

    def tables(self, keys: pa.RecordBatch, indexes: Mapping[bytes, Sequence[int]]) -> Iterator[pa.Table]:
        """The rows of all messages.

        Arguments:
            keys: the columns that rows begin with.
            indexes: by block, the numbers of its rows among them; more than one where it joins and leaves.

        """
        for turn in range(max(map(len, indexes.values()), default=0)):
            places = [indexes.get(block_hash, ())[turn : turn + 1] for block_hash in self._hashes]
            row_of = pa.array([location[0] if location else None for location in places], pa.int64())
            for block, key, value in self.chunks:
                row = row_of.take(block)
                if row.null_count:
                    here = row.is_valid()
                    row, key, value = row.filter(here), key.filter(here), value.filter(here)  # noqa: PLW2901
                yield payload_table(keys, row, pc.binary_slice(key, HASH_END, _LONGEST), value)


def payload_batches(
    stream: StreamSpec, rows: Sequence[PlannedRow], settings: TableSettings
) -> Iterator[pa.RecordBatch]:
    """The rows of ``payload``. Raises as :func:`.tasks.read_blocks`."""
    rows = [planned for planned in rows if planned.ranges]
    columns = read_patiently(stream, spanned(rows), partial(_Columns, stream, rows))
    follows = stream.reassembler(Contents.VALUES)
    counts = columns.counts()
    # With a quorum there is no planner; its assembler cannot judge a Batch alone.
    as_they_came = columns.own_content(counts, follows) if isinstance(follows, Reassembler) else {}
    assembled_apart = {planned.row.hash for planned in rows} - as_they_came.keys()
    yield from block_batches(
        _assembled(stream, rows, columns.of(assembled_apart) if assembled_apart else {}, assembled_apart), settings
    )
    columns.rows.clear()
    spec = AppSpec.parse(stream.spec)
    indexes: dict[bytes, list[int]] = {}
    times: list[int | None] = []
    here = [planned.row for planned in rows if planned.row.hash in as_they_came]
    own: list[tuple[int, bytes, bytes]] = []
    for at, row in enumerate(here):
        indexes.setdefault(row.hash, []).append(at)
        header = columns.headers.get(row.hash)
        path = time_path(spec, row.hash)
        content = {} if path is None or header is None else {path_bytes(path): header}
        times.append(block_time(spec, Payload(row.number, row.hash, row.parent, row.weight, PathMap(content))))
        own += [(at, path, value) for path, value in as_they_came[row.hash].items()]
    keys = key_batch(here, times)
    if own:
        numbers, paths, values = zip(*own, strict=True)
        arrays = pa.array(numbers, pa.int64()), pa.array(paths, pa.binary()), pa.array(values, pa.binary())
        yield from payload_table(keys, *arrays).to_batches()
    for table in columns.tables(keys, indexes):
        yield from table.combine_chunks().to_batches()


def _assembled(
    stream: StreamSpec,
    rows: Sequence[PlannedRow],
    found: Mapping[bytes, Sequence[Row]],
    assembled_apart: Container[bytes],
) -> Iterator[tuple[KeyRow, Payload | None]]:
    """The rows of these blocks, with their content."""
    for planned in rows:
        if planned.row.hash in assembled_apart:
            payload = assembled(stream, found.get(planned.row.hash, ()), Contents.VALUES)
            if not isinstance(payload, Payload):
                raise not_whole(planned.row.number, planned.row.hash)
            yield planned.row, payload
