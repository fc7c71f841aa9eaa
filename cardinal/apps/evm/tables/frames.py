"""Arrow tables of blocks, transactions, receipts, logs and withdrawals.

Rules:

1. Columns are those of :mod:`.schemas`, always all of them and in their order; a table without rows has them too.
2. Rows stand in the order of the payloads, and within a block in the order of the chain.
3. What a payload does not have is null: a transaction's hash in a log of a payload without transactions, the size of
   a block of which only the header is there. ``blocks`` has a row for every payload.
4. A number that does not fit its column is an error, never a wrong number.
5. Blocks are taken a few at a time: what is held is the tables and a few blocks, not all of them decoded. So a table of
   many rows is in several chunks. Only those parts of a block are decoded that the wanted tables are made of.

How a column is filled is :mod:`.rows`' business.
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

from cardinal.apps.evm.model.block_decoder import decode_parts, present

from .rows import KINDS, Columns, Found, found, rows_of
from .schemas import DIGITS, TABLES, schema, wide_columns

__all__ = ["frames"]

_WIDE_BYTES: Final = 32
_CHUNK: Final = 8 << 20
"""Bytes of values that are decoded at once: as objects and lists of Python they take some ten times as much."""


def frames(
    payloads: Iterable[AnyPayload],
    *,
    integers: Literal["string", "decimal", "binary"] = "string",
    tables: Sequence[str] | None = None,
    senders: bool = True,
) -> dict[str, pa.Table]:
    """The typed tables of some blocks.

    Arguments:
        payloads: blocks, whole or with some of their parts; they may come one by one.
        integers: how 256-bit numbers are kept: ``string`` (decimal text), ``decimal`` (38 digits) or ``binary``
            (32 bytes, big-endian).
        tables: which of ``schemas.TABLES``; None means all.
        senders: fill ``from_address`` and an authorization's ``authority`` by recovering signatures, which takes more
            time than all the rest; else null.

    Raises:
        ApplicationError: a payload is none of this application, has no content
            (:class:`~cardinal.MissingPayload`), or holds a number that does not fit its column.
        ConfigurationError: there is no such table or way to keep numbers.
        MissingExtraError: the extra ``evm`` is not installed.

    """
    wanted = TABLES if tables is None else tuple(tables)
    columns = {name: schema(name, integers) for name in wanted}
    made: dict[str, list[pa.RecordBatch]] = {name: [] for name in wanted}
    for blocks in _chunks(payloads, frozenset[str]().union(*[KINDS[name] for name in wanted])):
        for name in wanted:
            values = rows_of(name, blocks, senders=senders)
            made[name].append(_batch(name, columns[name], values, _WAYS[integers]))
    return {name: pa.Table.from_batches(made[name], schema=columns[name]) for name in wanted}


def _chunks(payloads: Iterable[AnyPayload], kinds: frozenset[str]) -> Iterator[list[Found]]:
    """The blocks, decoded, so many at a time as hold some megabytes of values."""
    blocks: list[Found] = []
    size = 0
    for payload in map(present, payloads):
        blocks.append(found(*decode_parts(payload, kinds)))
        size += sum(map(len, payload.updates.values()))
        if size >= _CHUNK:
            yield blocks
            blocks, size = [], 0
    if blocks:
        yield blocks


def _batch(name: str, columns: pa.Schema, values: Columns, way: Callable[[int], object]) -> pa.RecordBatch:
    wide = wide_columns(name)
    arrays = []
    for field in columns:
        cells = values[field.name]
        try:
            if field.name in wide:
                cells = [None if cell is None else way(cell) for cell in cells]
            arrays.append(pa.array(cells, type=field.type))
        except (OverflowError, pa.ArrowInvalid):
            kept = "; keep 256-bit numbers as string or binary" if field.name in wide else ""
            raise ApplicationError(f"a number does not fit {field.type} of {name}.{field.name}{kept}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _decimal(number: int) -> int:
    if number >= 10**DIGITS:
        raise OverflowError
    return number


def _big_endian(number: int) -> bytes:
    return number.to_bytes(_WIDE_BYTES, "big")


_WAYS: Final[Mapping[str, Callable[[int], object]]] = MappingProxyType(
    {"string": str, "decimal": _decimal, "binary": _big_endian}
)
