"""Arrow tables of decoded logs and inputs: ``decoded_logs`` and ``decoded_inputs``.

Rules:

1. Every log and every transaction has a row. Where no signature fits, ``name`` is null, ``reason`` explains it, and the
   raw columns (topics and data, or input) remain.
2. Arguments are JSON text, an array of ``{"name", "type", "value"}`` in the signature's order. Numbers in it are
   decimal text, so that no reader rounds them; bytes and addresses are ``0x`` text; an indexed value of a dynamic type
   is ``{"hash": "0x…"}``.
   A string that is not UTF-8 is its bytes. Where the encoding is not canonical (:mod:`cardinal_ethereum.abi.values`),
   ``strict`` is false.
3. The first columns, and ``block_date``, are those of every table (:mod:`.schemas`).
4. A table of many rows has several chunks: rows are Python objects only until some thousands are collected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from cardinal.errors import ConfigurationError, MissingExtraError
from cardinal.protocols.streams.payload import AnyPayload

try:
    import pyarrow as pa
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Arrow tables", "arrow") from absent

from cardinal_ethereum.abi.decoder import Abi, Decoded, TopicHash, Undecoded
from cardinal_ethereum.model.block import Block
from cardinal_ethereum.model.block_decoder import decode
from cardinal_ethereum.times import microseconds

from .rows import day_of

__all__ = ["SCHEMAS", "decoded_frames"]

_KEYS: Final = (
    pa.field("block_number", pa.int64(), nullable=False),
    pa.field("block_hash", pa.string(), nullable=False),
    pa.field("block_timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("transaction_index", pa.int64(), nullable=False),
)
_DATE: Final = pa.field("block_date", pa.date32())
_STRICT: Final = pa.field("strict", pa.bool_())
_RESULT: Final = (
    pa.field("name", pa.string()),
    pa.field("signature", pa.string()),
    pa.field("arguments", pa.string()),
    pa.field("reason", pa.string()),
)
SCHEMAS: Final = {
    "decoded_logs": pa.schema(
        [
            *_KEYS,
            pa.field("log_index", pa.int64(), nullable=False),
            pa.field("address", pa.string(), nullable=False),
            *_RESULT,
            pa.field("topics", pa.list_(pa.string()), nullable=False),
            pa.field("data", pa.string(), nullable=False),
            _DATE,
            _STRICT,
        ]
    ),
    "decoded_inputs": pa.schema(
        [
            *_KEYS,
            pa.field("transaction_hash", pa.string(), nullable=False),
            pa.field("to_address", pa.string()),
            *_RESULT,
            pa.field("input", pa.string()),
            _DATE,
            _STRICT,
        ]
    ),
}
"""Columns of both tables."""

_CHUNK: Final = 16_384
"""Rows that are dictionaries at once."""


def decoded_frames(
    payloads: Iterable[AnyPayload], abi: Abi, *, tables: Iterable[str] | None = None
) -> dict[str, pa.Table]:
    """Decode logs and inputs to Arrow tables.

    Arguments:
        payloads: blocks; their header and logs suffice for ``decoded_logs``.
        abi: the signatures.
        tables: names of ``SCHEMAS``; None means all.

    Raises:
        ApplicationError: a payload is not of this application, or has no content.
        ConfigurationError: there is no such table.

    """
    wanted = tuple(SCHEMAS) if tables is None else tuple(tables)
    for name in wanted:
        if name not in SCHEMAS:
            raise ConfigurationError(
                f"there is no table {name!r}; choose one of {', '.join(SCHEMAS)}", setting="tables"
            )
    made: dict[str, list[pa.RecordBatch]] = {name: [] for name in wanted}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in wanted}
    for payload in payloads:
        block = decode(payload)
        for name in wanted:
            rows[name] += _COLUMNS_OF[name](block, abi)
        if sum(map(len, rows.values())) >= _CHUNK:
            _move(rows, made)
    _move(rows, made)
    return {name: pa.Table.from_batches(made[name], schema=SCHEMAS[name]) for name in wanted}


def _move(rows: dict[str, list[dict[str, Any]]], made: dict[str, list[pa.RecordBatch]]) -> None:
    """Move the collected rows to a batch, which takes a fraction of the memory."""
    for name, held in rows.items():
        if held:
            made[name].append(pa.RecordBatch.from_pylist(held, schema=SCHEMAS[name]))
            held.clear()


def _logs(block: Block, abi: Abi) -> Iterable[dict[str, Any]]:
    for log in (*block.logs, *block.derived_logs):
        yield {
            **_keys(block, log.transaction_index),
            "log_index": log.log_index,
            "address": _text(log.address),
            **_result(abi.log(log)),
            "topics": [_text(topic) for topic in log.topics],
            "data": _text(log.data),
        }


def _inputs(block: Block, abi: Abi) -> Iterable[dict[str, Any]]:
    for transaction in block.transactions:
        yield {
            **_keys(block, transaction.index),
            "transaction_hash": _text(transaction.hash),
            "to_address": None if transaction.to is None else _text(transaction.to),
            **_result(abi.input(transaction)),
            "input": None if transaction.input is None else _text(transaction.input),
        }


_COLUMNS_OF: Final[Mapping[str, Callable[[Block, Abi], Iterable[dict[str, Any]]]]] = MappingProxyType(
    {"decoded_logs": _logs, "decoded_inputs": _inputs}
)


def _keys(block: Block, transaction: int) -> dict[str, Any]:
    time = None if block.header is None else microseconds(block.header.timestamp)
    return {
        "block_number": block.number,
        "block_hash": _text(block.hash),
        "block_timestamp": time,
        "block_date": day_of(time),
        "transaction_index": transaction,
    }


def _result(block_rows: Decoded | Undecoded) -> dict[str, str | bool | None]:
    if isinstance(block_rows, Undecoded):
        return {"name": None, "signature": None, "arguments": None, "reason": block_rows.reason, "strict": None}
    arguments = [{"name": each.name, "type": each.type, "value": _plain(each.value)} for each in block_rows.arguments]
    text = json.dumps(arguments, ensure_ascii=False)
    named = {"name": block_rows.name, "signature": block_rows.signature.text, "arguments": text}
    return {**named, "reason": None, "strict": block_rows.exact}


def _plain(value: Any) -> Any:  # noqa: ANN401 -- any ABI value
    match value:
        case bool() | str():
            return value
        case bytes():
            return _text(value)
        case TopicHash():
            return {"hash": _text(value.hash)}
        case tuple() | list():
            return [_plain(each) for each in value]
        case _:
            return str(value)


def _text(value: bytes) -> str:
    return "0x" + value.hex()
