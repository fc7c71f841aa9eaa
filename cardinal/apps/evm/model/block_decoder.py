"""From a payload to a typed block, without loss.

Rules:

1. What decodes also encodes: ``decode(payload).encode()`` equals the payload. Bytes for which that could not hold (a
   number with leading zeros, a list of another length, a path with another spelling) are refused by name.
2. A payload may have any of a block's parts; what it lacks is None or empty.
3. Nothing is verified: whether hashes and roots fit is the business of :mod:`cardinal.apps.evm.checks.integrity`.

Paths and values: facts, EVM application layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

from cardinal.apps.evm import rlp
from cardinal.apps.evm.rlp.fields import ADDRESS, HASH, exactly, hashes, items_of, number
from cardinal.errors import ApplicationError
from cardinal.protocols.streams.payload import AnyPayload, MissingPayload, PathMap, Payload

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

__all__ = ["decode", "decode_parts", "decode_transaction", "present"]

_SIZES: Final = {"miner": ADDRESS, "logs_bloom": 256, "nonce": 8}
_NUMBERS: Final = frozenset(
    {"difficulty", "number", "gas_limit", "gas_used", "timestamp"}
    | {"base_fee_per_gas", "blob_gas_used", "excess_blob_gas"}
)
_SEAL: Final = ("mix_hash", "nonce")
_SIGNATURE: Final = 65
_FIRST_HEADER: Final = 15
"""Fields that every header has."""

RAW: Final = "raw"
"""Instead of the kind ``t``: the transactions' bytes, not decoded."""

_CHAIN: Final = re.compile(r"c/(0|[1-9a-f][0-9a-f]*)/")


def decode(payload: AnyPayload) -> Block:
    """The block that a payload describes.

    Raises:
        ApplicationError: a value is not what its path promises; ``path`` names it. Or the block has no content
            (:class:`~cardinal.MissingPayload`).
        MissingExtraError: the extra ``evm`` is not installed.

    """
    return _parts(present(payload), None).block()


def decode_parts(payload: Payload, kinds: frozenset[str]) -> tuple[Block, Mapping[int, bytes]]:
    """Those parts of a block that are asked for, and the bytes of its transactions by index.

    Arguments:
        payload: a block, whole or with some of its parts.
        kinds: what stands in the paths after the block's hash (``h``, ``t``, ``r`` …), or :data:`RAW`. With ``t`` the
            bytes are there too. What is no part of the block is left out.

    Raises:
        ApplicationError: as in :func:`decode`, for the parts that are asked for.

    """
    parts = _parts(payload, kinds)
    block = parts.block()
    return block, parts.raw or {entry.index: entry.raw for entry in block.transactions}


def present(payload: AnyPayload) -> Payload:
    """The payload. ApplicationError for a block without content."""
    if isinstance(payload, MissingPayload):
        raise ApplicationError(
            f"block {payload.number} (0x{payload.hash.hex()}) has no content (MissingPayload): leave it out, or "
            "consume with on_incomplete='halt'"
        )
    return payload


def _parts(payload: Payload, kinds: frozenset[str] | None) -> _Parts:
    parts = _Parts(payload, kinds)
    for path, value in _items(payload.updates):
        try:
            parts.put(path, value)
        except ApplicationError as error:
            raise ApplicationError(f"block {payload.number}, {path}: {error}", path=path) from None
    return parts


def _items(updates: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
    """The updates; a view over byte paths is walked once instead of being asked for each path."""
    if isinstance(updates, PathMap):
        return zip(updates, updates.raw.values(), strict=True)
    return updates.items()


class _Parts:
    """The parts of one block as they are found; paths come in any order."""

    def __init__(self, payload: Payload, kinds: frozenset[str] | None) -> None:
        self._payload = payload
        self._block = f"b/{payload.hash.hex()}/"
        self._kinds = kinds
        self._prefix: str | None = None
        self.chain_id: int | None = None
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

    def put(self, path: str, value: bytes) -> None:
        """Take one update."""
        if self._prefix is None and (chain := _CHAIN.match(path)):
            self.chain_id = int(chain[1], 16)
            self._prefix = f"{chain[0]}{self._block}"
        if self._prefix is None or not path.startswith(self._prefix):
            if self._kinds is None:
                self.rest[path] = value
            return
        kind, _, place = path[len(self._prefix) :].partition("/")
        if self._kinds is not None and kind not in self._kinds:
            self._passed(kind, place, value)
        elif kind in ("l", "bl"):
            transaction, _, place = place.partition("/")
            log = _log(value, _index(transaction), _index(place))
            known = self.logs if kind == "l" else self.derived_logs
            if known.setdefault(log.log_index, log) is not log:
                raise ApplicationError("another log of the block has this index")
        elif kind == "t":
            index = _index(place)
            self.transactions[index] = decode_transaction(value, index)
        elif kind == "r":
            index = _index(place)
            self.receipts[index] = _receipt(value, index)
        elif kind == "u":
            self.uncles[_index(place)] = _header(value)
        else:
            self._single(path, path[len(self._prefix) :], value)

    def _passed(self, kind: str, place: str, value: bytes) -> None:
        """Take nothing of what was not asked for but a transaction's bytes, where they were."""
        if kind == "t" and self._kinds is not None and RAW in self._kinds:
            self.raw[_index(place)] = value

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
        """The block of the parts that were taken."""
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
    known: dict[str, Any] = {}
    seal = _authority_seal(items)
    for name, item in zip(HEADER_FIELDS, items, strict=False):
        if seal is not None and name in _SEAL:
            known[name] = None
        elif name in _NUMBERS:
            known[name] = number(item)
        else:
            known[name] = exactly(item, None if name == "extra_data" else _SIZES.get(name, HASH))
    return Header(**known, more=tuple(items[len(HEADER_FIELDS) :]), seal=seal)


def _authority_seal(items: list[rlp.Decoded]) -> AuthoritySeal | None:
    """The seal of an authority; its signature is longer than any nonce."""
    step, signature = [items[HEADER_FIELDS.index(name)] for name in _SEAL]
    if len(signature) != _SIGNATURE:
        return None
    return AuthoritySeal(number(step), exactly(signature, _SIGNATURE))


def _log(value: bytes, transaction: int, index: int) -> Log:
    address, topics, data = items_of(rlp.decode(value), 3)
    return Log(transaction, index, exactly(address, ADDRESS), hashes(topics), exactly(data))


def _receipt(value: bytes, transaction: int) -> ReceiptMeta:
    contract, cumulative, gas, bloom, status, count, offset = items_of(rlp.decode(value), 7)
    created = exactly(contract, ADDRESS)
    return ReceiptMeta(
        transaction,
        None if created == NO_CONTRACT else created,
        number(cumulative),
        number(gas),
        exactly(bloom, _SIZES["logs_bloom"]),
        number(status),
        number(count),
        number(offset),
    )


def _withdrawal(item: rlp.Decoded) -> Withdrawal:
    index, validator, address, amount = items_of(item, 4)
    return Withdrawal(number(index), number(validator), exactly(address, ADDRESS), number(amount))
