"""From a payload to a typed block, without loss.

Rules:

1. What decodes also encodes: ``decode(payload).encode()`` equals the payload. Bytes for which that could not hold (a
   number with leading zeros, a list of another length, a path with another spelling) are refused by name.
2. A payload may have any of a block's parts; what it lacks is None or empty.
3. Nothing is verified: whether hashes and roots fit is the business of :mod:`.integrity`.

Paths and values: facts, EVM application layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from cardinal.errors import ApplicationError
from cardinal.protocols.streams.payload import PathMap, Payload

from . import rlp
from .keccak import keccak
from .transactions import ACCESS_LIST, BLOB, FEE_MARKET, LEGACY, SET_CODE
from .values import (
    HEADER_FIELDS,
    NO_CONTRACT,
    AccessEntry,
    Authorization,
    Block,
    Header,
    Log,
    ReceiptMeta,
    Transaction,
    Withdrawal,
)

__all__ = ["decode", "decode_transaction"]

_WIDEST: Final = 32
_HASH: Final = 32
_ADDRESS: Final = 20
_SIZES: Final = {"miner": _ADDRESS, "logs_bloom": 256, "nonce": 8}
_NUMBERS: Final = frozenset(
    {"difficulty", "number", "gas_limit", "gas_used", "timestamp"}
    | {"base_fee_per_gas", "blob_gas_used", "excess_blob_gas"}
)
_FIRST_HEADER: Final = 15
"""Fields that every header has."""

_FIELDS: Final = {LEGACY: 9, ACCESS_LIST: 11, FEE_MARKET: 12, BLOB: 14, SET_CODE: 13}
_LIST: Final = 0xC0
_CHAIN_V: Final = 35
_CHAIN: Final = re.compile(r"c/(0|[1-9a-f][0-9a-f]*)/")


def decode(payload: Payload) -> Block:
    """The block that a payload describes.

    Raises:
        ApplicationError: a value is not what its path promises; ``path`` names it.
        MissingExtraError: the extra ``evm`` is not installed.

    """
    parts = _Parts(payload.hash)
    for path, value in _items(payload.updates):
        try:
            parts.put(path, value)
        except ApplicationError as error:
            raise ApplicationError(f"block {payload.number}, {path}: {error}", path=path) from None
    return parts.block(payload)


def _items(updates: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
    """The updates; a view over byte paths is walked once instead of being asked for each path."""
    if isinstance(updates, PathMap):
        return zip(updates, updates.raw.values(), strict=True)
    return updates.items()


class _Parts:
    """The parts of one block as they are found; paths come in any order."""

    def __init__(self, block_hash: bytes) -> None:
        self._block = f"b/{block_hash.hex()}/"
        self._prefix: str | None = None
        self.chain_id: int | None = None
        self.header: Header | None = None
        self.total_difficulty: int | None = None
        self.withdrawals: tuple[Withdrawal, ...] | None = None
        self.uncles: dict[int, Header] = {}
        self.transactions: dict[int, Transaction] = {}
        self.receipts: dict[int, ReceiptMeta] = {}
        self.logs: dict[int, Log] = {}
        self.rest: dict[str, bytes] = {}

    def put(self, path: str, value: bytes) -> None:
        """Take one update."""
        if self._prefix is None and (chain := _CHAIN.match(path)):
            self.chain_id = int(chain[1], 16)
            self._prefix = f"{chain[0]}{self._block}"
        if self._prefix is None or not path.startswith(self._prefix):
            self.rest[path] = value
            return
        kind, _, place = path[len(self._prefix) :].partition("/")
        if kind == "l":
            transaction, _, place = place.partition("/")
            log = _log(value, _index(transaction), _index(place))
            if self.logs.setdefault(log.log_index, log) is not log:
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

    def _single(self, path: str, kind: str, value: bytes) -> None:
        if kind == "h":
            self.header = _header(value)
        elif kind == "d":
            self.total_difficulty = _number(value)
        elif kind == "w":
            self.withdrawals = tuple(_withdrawal(item) for item in rlp.decode_list(value))
        else:
            self.rest[path] = value

    def block(self, payload: Payload) -> Block:
        """The block of the parts that were taken."""
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
        )


_T = TypeVar("_T")


def _ordered(parts: dict[int, _T]) -> tuple[_T, ...]:
    return tuple([parts[index] for index in sorted(parts)])


def _index(text: str) -> int:
    try:
        index = int(text, 16)
    except ValueError:
        index = -1
    if f"{index:x}" != text or index < 0:
        raise ApplicationError(f"{text!r} is no index in hexadecimal")
    return index


def _number(item: rlp.Decoded) -> int:
    if not isinstance(item, bytes) or len(item) > _WIDEST or item[:1] == b"\0":
        raise ApplicationError("a number was expected: up to 32 bytes, the first not zero")
    return int.from_bytes(item, "big")


def _bytes(item: rlp.Decoded, size: int | None = None) -> bytes:
    if not isinstance(item, bytes) or (size is not None and len(item) != size):
        raise ApplicationError(f"{'bytes' if size is None else f'{size} bytes'} were expected")
    return item


def _list(item: rlp.Decoded, size: int | None = None) -> list[rlp.Decoded]:
    if isinstance(item, bytes) or (size is not None and len(item) != size):
        raise ApplicationError(f"a list{'' if size is None else f' of {size} items'} was expected")
    return item


def _hashes(item: rlp.Decoded) -> tuple[bytes, ...]:
    return tuple([_bytes(entry, _HASH) for entry in _list(item)])


def _header(value: bytes) -> Header:
    items = rlp.decode_list(value)
    if len(items) < _FIRST_HEADER:
        raise ApplicationError(f"a header has {_FIRST_HEADER} fields or more, not {len(items)}")
    known: dict[str, Any] = {}
    for name, item in zip(HEADER_FIELDS, items, strict=False):
        if name in _NUMBERS:
            known[name] = _number(item)
        else:
            known[name] = _bytes(item, None if name == "extra_data" else _SIZES.get(name, _HASH))
    return Header(**known, more=tuple(items[len(HEADER_FIELDS) :]))


def _log(value: bytes, transaction: int, index: int) -> Log:
    address, topics, data = _list(rlp.decode(value), 3)
    return Log(transaction, index, _bytes(address, _ADDRESS), _hashes(topics), _bytes(data))


def _receipt(value: bytes, transaction: int) -> ReceiptMeta:
    contract, cumulative, gas, bloom, status, count, offset = _list(rlp.decode(value), 7)
    created = _bytes(contract, _ADDRESS)
    return ReceiptMeta(
        transaction,
        None if created == NO_CONTRACT else created,
        _number(cumulative),
        _number(gas),
        _bytes(bloom, _SIZES["logs_bloom"]),
        _number(status),
        _number(count),
        _number(offset),
    )


def _withdrawal(item: rlp.Decoded) -> Withdrawal:
    index, validator, address, amount = _list(item, 4)
    return Withdrawal(_number(index), _number(validator), _bytes(address, _ADDRESS), _number(amount))


def decode_transaction(raw: bytes, index: int) -> Transaction:
    """A transaction from its canonical bytes (EIP-2718): a list is legacy, else the first byte is the type.

    Arguments:
        raw: what :func:`.transactions.encode_transaction` writes.
        index: its place in the block.

    Raises:
        ApplicationError: these bytes are no transaction of a known type.

    """
    if not raw:
        raise ApplicationError("a transaction has no bytes")
    kind = LEGACY if raw[0] >= _LIST else raw[0]
    if kind not in _FIELDS or (kind == LEGACY and raw[0] < _LIST):
        raise ApplicationError(f"transactions of type {raw[0]} are not known to this release")
    items = _list(rlp.decode(raw if kind == LEGACY else raw[1:]), _FIELDS[kind])
    v, r, s = [_number(item) for item in items[-3:]]
    chain_id = _legacy_chain(v) if kind == LEGACY else _number(items.pop(0))
    nonce = _number(items.pop(0))
    prices = [_number(items.pop(0)) for _ in range(1 if kind in (LEGACY, ACCESS_LIST) else 2)]
    gas, to, amount, data, *more = items[:-3]
    single = prices[0] if len(prices) == 1 else None
    priority, highest = (None, None) if single is not None else prices
    return Transaction(
        index=index,
        raw=raw,
        hash=keccak(raw),
        type=kind,
        chain_id=chain_id,
        nonce=nonce,
        gas_price=single,
        max_priority_fee_per_gas=priority,
        max_fee_per_gas=highest,
        gas=_number(gas),
        to=None if to == b"" else _bytes(to, _ADDRESS),
        value=_number(amount),
        input=_bytes(data),
        v=v,
        r=r,
        s=s,
        access_list=tuple([_access(item) for item in _list(more[0])]) if more else (),
        max_fee_per_blob_gas=_number(more[1]) if kind == BLOB else None,
        blob_versioned_hashes=_hashes(more[2]) if kind == BLOB else (),
        authorizations=tuple([_authorization(item) for item in _list(more[1])]) if kind == SET_CODE else (),
    )


def _legacy_chain(v: int) -> int | None:
    """The chain that a legacy signature is bound to (EIP-155); None where it is bound to none."""
    return (v - _CHAIN_V) // 2 if v >= _CHAIN_V else None


def _access(item: rlp.Decoded) -> AccessEntry:
    address, keys = _list(item, 2)
    return AccessEntry(_bytes(address, _ADDRESS), _hashes(keys))


def _authorization(item: rlp.Decoded) -> Authorization:
    chain_id, address, *numbers = _list(item, 6)
    nonce, parity, r, s = [_number(entry) for entry in numbers]
    return Authorization(_number(chain_id), _bytes(address, _ADDRESS), nonce, parity, r, s)
