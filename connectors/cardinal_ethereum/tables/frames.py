"""Arrow tables of blocks, transactions, receipts, logs and withdrawals.

Rules:

1. Columns are those of :mod:`.schemas`, always all of them and in their order; a table without rows has them too.
2. Rows are in the order of the payloads, and within a block in chain order.
3. Missing parts are null: the transaction hash in a log of a payload without transactions, the size of a block whose
   payload has only the header. ``blocks`` has a row for every payload.
4. A value that does not fit its column is never a wrong one: null where the column may be null (a header may hold any
   number), else an error. Wide numbers as ``decimal`` are an error in any column: the caller chose the digits.
5. Memory holds the tables and a few decoded blocks at a time, so a table of many rows has several chunks. Only the
   parts of a block that the requested tables need are decoded.

:mod:`.rows` fills the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

from cardinal.errors import ApplicationError, MissingExtraError
from cardinal.protocols.streams.payload import AnyPayload

try:
    import pyarrow as pa
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Arrow tables", "arrow") from absent

from cardinal_ethereum.model.block_decoder import decode_parts, present

from .rows import KINDS, BlockRows, Columns, block_rows, rows_of
from .schemas import DIGITS, TABLES, schema, wide_columns

__all__ = ["frames"]

_WIDE_BYTES: Final = 32
_LONG: Final = 2**63 - 1
_CHUNK: Final = 8 << 20
"""Bytes of values that are decoded at once: as Python objects they take some ten times as much."""


def frames(
    payloads: Iterable[AnyPayload],
    *,
    integers: Literal["string", "decimal", "binary"] = "string",
    tables: Sequence[str] | None = None,
    senders: bool = True,
) -> dict[str, pa.Table]:
    """Decode blocks to the typed tables.

    Arguments:
        payloads: complete blocks or some of their parts; any iterable.
        integers: representation of 256-bit numbers: ``string`` (decimal text), ``decimal`` (38 digits) or ``binary``
            (32 bytes, big-endian).
        tables: names of ``schemas.TABLES``; None means all.
        senders: fill ``from_address`` and an authorization's ``authority`` by recovering signatures, which takes more
            time than all the rest; else null.

    Raises:
        ApplicationError: a payload is not of this application, has no content
            (:class:`~cardinal.MissingPayload`), or has a number that does not fit its column.
        ConfigurationError: there is no such table or representation.
        MissingExtraError: the extra ``evm`` is not installed.

    """
    wanted = TABLES if tables is None else tuple(tables)
    columns = {name: schema(name, integers) for name in wanted}
    made: dict[str, list[pa.RecordBatch]] = {name: [] for name in wanted}
    for blocks in _chunks(payloads, frozenset[str]().union(*[KINDS[name] for name in wanted])):
        for name in wanted:
            values = rows_of(name, blocks, senders=senders)
            made[name].append(_batch(name, columns[name], values, _CONVERTERS[integers]))
    return {name: pa.Table.from_batches(made[name], schema=columns[name]) for name in wanted}


def _chunks(payloads: Iterable[AnyPayload], kinds: frozenset[str]) -> Iterator[list[BlockRows]]:
    """Decoded blocks in groups of some megabytes of values."""
    blocks: list[BlockRows] = []
    size = 0
    for payload in map(present, payloads):
        blocks.append(block_rows(*decode_parts(payload, kinds)))
        size += sum(map(len, payload.updates.values()))
        if size >= _CHUNK:
            yield blocks
            blocks, size = [], 0
    if blocks:
        yield blocks


def _batch(name: str, columns: pa.Schema, values: Columns, convert: Callable[[int], object]) -> pa.RecordBatch:
    wide = wide_columns(name)
    arrays = []
    for field in columns:
        cells = values[field.name]
        try:
            if field.name in wide:
                cells = [None if cell is None else convert(cell) for cell in cells]
            elif field.nullable and pa.types.is_int64(field.type):
                cells = [None if cell is None or cell > _LONG else cell for cell in cells]
            arrays.append(pa.array(cells, type=field.type))
        except (OverflowError, pa.ArrowInvalid):
            hint = "; choose integers='string' or 'binary'" if field.name in wide else ""
            raise ApplicationError(f"a number does not fit {field.type} of {name}.{field.name}{hint}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _decimal(number: int) -> int:
    if number >= 10**DIGITS:
        raise OverflowError
    return number


def _big_endian(number: int) -> bytes:
    return number.to_bytes(_WIDE_BYTES, "big")


_CONVERTERS: Final[Mapping[str, Callable[[int], object]]] = MappingProxyType(
    {"string": str, "decimal": _decimal, "binary": _big_endian}
)
