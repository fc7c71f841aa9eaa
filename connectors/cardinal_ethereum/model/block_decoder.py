"""Decoding of payloads to typed blocks, without loss.

Rules:

1. ``decode(payload).encode()`` equals the payload. Bytes for which that cannot hold (a number with leading zeros, a
   list of another length, a path with another spelling) are refused, and the error names the path.
2. A payload may have any of a block's parts; missing parts are None or empty.
3. Hashes and roots are not verified here: see :mod:`cardinal_ethereum.checks.integrity`.

Paths and values: ``connectors/cardinal_ethereum/docs/application.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

from cardinal.errors import ApplicationError
from cardinal.protocols.streams.payload import AnyPayload, MissingPayload, PathMap, Payload
from cardinal_ethereum import rlp
from cardinal_ethereum.chains import family_of
from cardinal_ethereum.rlp.fields import ADDRESS, HASH, bytes_of, hashes, list_of, number

from .block import (
    HEADER_FIELDS,
    NO_CONTRACT,
    AuthoritySeal,
    Block,
    Header,
    Log,
    ReceiptMeta,
    Transaction,
    Withdrawal,
)
from .transaction_decoder import decode_transaction
from .transaction_types import Family

__all__ = ["decode", "decode_parts", "decode_transaction", "present"]

_SIZES: Final = {"miner": ADDRESS, "logs_bloom": 256, "nonce": 8}
_NUMBERS: Final = frozenset(
    {"difficulty", "number", "gas_limit", "gas_used", "timestamp"}
    | {"base_fee_per_gas", "blob_gas_used", "excess_blob_gas", "slot_number"}
)
_SEAL: Final = ("mix_hash", "nonce")
_SIGNATURE: Final = 65
_FIRST_HEADER: Final = 15
"""Fields that every header has."""

RAW: Final = "raw"
"""Kind that requests the transactions' bytes without decoding them, instead of ``t``."""

_CHAIN: Final = re.compile(r"c/(0|[1-9a-f][0-9a-f]*)/")


def decode(payload: AnyPayload) -> Block:
    """Decode a payload to a block.

    Raises:
        ApplicationError: a value does not fit its path, which ``path`` names, or the block has no content
            (:class:`~cardinal.MissingPayload`).
        MissingExtraError: the extra ``evm`` is not installed.

    """
    return _parts(present(payload), None).block()


def decode_parts(payload: Payload, kinds: frozenset[str]) -> tuple[Block, Mapping[int, bytes]]:
    """Decode the requested parts of a block, with the bytes of its transactions by index.

    Arguments:
        payload: a complete block or some of its parts.
        kinds: path segments after the block's hash (``h``, ``t``, ``r`` …), or :data:`RAW`. ``t`` includes the bytes.
            Updates that are not part of the block are skipped.

    Raises:
        ApplicationError: as in :func:`decode`, for the requested parts.

    """
    parts = _parts(payload, kinds)
    block = parts.block()
    return block, parts.raw or {entry.index: entry.raw for entry in block.transactions}


def present(payload: AnyPayload) -> Payload:
    """Return the payload; ApplicationError for a block without content, TypeError for what is no block."""
    if isinstance(payload, MissingPayload):
        raise ApplicationError(
            f"block {payload.number} (0x{payload.hash.hex()}) has no content (MissingPayload): skip it, or "
            "consume with on_incomplete='halt'"
        )
    if not isinstance(payload, Payload):
        raise TypeError(f"write a block of an update, such as update.added[0], not {type(payload).__name__}")
    return payload


def _parts(payload: Payload, kinds: frozenset[str] | None) -> _Parts:
    parts = _Parts(payload, kinds)
    for path, value in _items(payload.updates):
        try:
            parts.add(path, value)
        except ApplicationError as error:
            raise ApplicationError(f"block {payload.number}, {path}: {error}", path=path) from None
    return parts


def _items(updates: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
    """The updates; a view over byte paths is iterated once, without a lookup per path."""
    if isinstance(updates, PathMap):
        return zip(updates, updates.raw.values(), strict=True)
    return updates.items()


class _Parts:
    """Collected parts of one block; paths come in any order."""

    def __init__(self, payload: Payload, kinds: frozenset[str] | None) -> None:
        self._payload = payload
        self._block = f"b/{payload.hash.hex()}/"
        self._kinds = kinds
        self._prefix: str | None = None
        self.chain_id: int | None = None
        self.family: Family | None = None
        self.header: Header | None = None
        self.total_difficulty: int | None = None
        self.withdrawals: tuple[Withdrawal, ...] | None = None
        self.uncles: dict[int, Header] = {}
        self.transactions: dict[int, Transaction] = {}
        self.receipts: dict[int, ReceiptMeta] = {}
        self.logs: dict[int, Log] = {}
        self.derived_logs: dict[int, Log] = {}
        self.raw: dict[int, bytes] = {}
        self.rest: dict[str, bytes] = {}

    def add(self, path: str, value: bytes) -> None:
        """Add one update."""
        if self._prefix is None and (chain := _CHAIN.match(path)):
            self.chain_id = int(chain[1], 16)
            self.family = family_of(self.chain_id)
            self._prefix = f"{chain[0]}{self._block}"
        if self._prefix is None or not path.startswith(self._prefix):
            if self._kinds is None:
                self.rest[path] = value
            return
        kind, _, field = path[len(self._prefix) :].partition("/")
        if self._kinds is not None and kind not in self._kinds:
            self._skip(kind, field, value)
        elif kind in ("l", "bl"):
            transaction, _, field = field.partition("/")
            log = _log(value, _index(transaction), _index(field))
            logs = self.logs if kind == "l" else self.derived_logs
            if logs.setdefault(log.log_index, log) is not log:
                raise ApplicationError("another log of the block has this index")
        elif kind == "t":
            index = _index(field)
            self.transactions[index] = decode_transaction(value, index, self.family)
        elif kind == "r":
            index = _index(field)
            self.receipts[index] = _receipt(value, index)
        elif kind == "u":
            self.uncles[_index(field)] = _header(value)
        else:
            self._single(path, path[len(self._prefix) :], value)

    def _skip(self, kind: str, field: str, value: bytes) -> None:
        """Skip an update that was not requested; a transaction's bytes are stored when RAW is."""
        if kind == "t" and self._kinds is not None and RAW in self._kinds:
            self.raw[_index(field)] = value

    def _single(self, path: str, kind: str, value: bytes) -> None:
        if kind == "h":
            self.header = _header(value)
        elif kind == "d":
            self.total_difficulty = number(value)
        elif kind == "w":
            self.withdrawals = tuple(_withdrawal(item) for item in rlp.decode_list(value))
        else:
            self.rest[path] = value

    def block(self) -> Block:
        """Block of the collected parts."""
        payload = self._payload
        if sorted(self.uncles) != list(range(len(self.uncles))):
            raise ApplicationError(f"block {payload.number} lacks an uncle between others", path=f"{self._prefix}u/")
        return Block(
            self.chain_id,
            payload.number,
            payload.hash,
            payload.parent,
            payload.weight,
            header=self.header,
            total_difficulty=self.total_difficulty,
            uncles=_ordered(self.uncles),
            transactions=_ordered(self.transactions),
            receipts=_ordered(self.receipts),
            logs=_ordered(self.logs),
            withdrawals=self.withdrawals,
            rest=self.rest,
            deletes=payload.deletes,
            sub_batches=payload.sub_batches,
            derived_logs=_ordered(self.derived_logs),
        )


_T = TypeVar("_T")


def _ordered(parts: dict[int, _T]) -> tuple[_T, ...]:
    return tuple([parts[index] for index in sorted(parts)])


@lru_cache(maxsize=4096)
def _index(text: str) -> int:
    try:
        index = int(text, 16)
    except ValueError:
        index = -1
    if f"{index:x}" != text or index < 0:
        raise ApplicationError(f"{text!r} is no index in hexadecimal")
    return index


def _header(value: bytes) -> Header:
    items = rlp.decode_list(value)
    if len(items) < _FIRST_HEADER:
        raise ApplicationError(f"a header has {_FIRST_HEADER} fields or more, not {len(items)}")
    values: dict[str, Any] = {}
    seal = _authority_seal(items)
    for name, item in zip(HEADER_FIELDS, items, strict=False):
        if seal is not None and name in _SEAL:
            values[name] = None
        elif name in _NUMBERS:
            values[name] = number(item)
        else:
            values[name] = bytes_of(item, None if name == "extra_data" else _SIZES.get(name, HASH))
    return Header(**values, more=tuple(items[len(HEADER_FIELDS) :]), seal=seal)


def _authority_seal(items: list[rlp.Decoded]) -> AuthoritySeal | None:
    """Seal of a proof-of-authority header, recognised by a signature that is longer than any nonce."""
    step, signature = [items[HEADER_FIELDS.index(name)] for name in _SEAL]
    if len(signature) != _SIGNATURE:
        return None
    return AuthoritySeal(number(step), bytes_of(signature, _SIGNATURE))


def _log(value: bytes, transaction: int, index: int) -> Log:
    address, topics, data = list_of(rlp.decode(value), 3)
    return Log(transaction, index, bytes_of(address, ADDRESS), hashes(topics), bytes_of(data))


def _receipt(value: bytes, transaction: int) -> ReceiptMeta:
    contract, cumulative, gas, bloom, status, count, offset = list_of(rlp.decode(value), 7)
    created = bytes_of(contract, ADDRESS)
    return ReceiptMeta(
        transaction,
        None if created == NO_CONTRACT else created,
        number(cumulative),
        number(gas),
        bytes_of(bloom, _SIZES["logs_bloom"]),
        number(status),
        number(count),
        number(offset),
    )


def _withdrawal(item: rlp.Decoded) -> Withdrawal:
    index, validator, address, amount = list_of(item, 4)
    return Withdrawal(number(index), number(validator), bytes_of(address, ADDRESS), number(amount))
