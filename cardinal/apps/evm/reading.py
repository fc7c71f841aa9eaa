"""Transactions from their canonical bytes to values."""

from __future__ import annotations

from typing import Final

from cardinal.errors import ApplicationError

from . import rlp
from .items import ADDRESS, HASH, exactly, hashes, items_of, number
from .keccak import keccak
from .signed import AccessEntry, Authorization, Deposit, SyncedState, Transaction
from .transactions import ACCESS_LIST, BLOB, DEPOSIT, FIELDS, LEGACY, SET_CODE, STATE_SYNC

_LIST: Final = 0xC0
_CHAIN_V: Final = 35


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
    if kind == STATE_SYNC:
        return _state_sync(raw, index)
    if kind not in FIELDS or (kind == LEGACY and raw[0] < _LIST):
        raise ApplicationError(f"transactions of type {raw[0]} are not known to this release")
    items = items_of(rlp.decode(raw if kind == LEGACY else raw[1:]), len(FIELDS[kind]))
    if kind == DEPOSIT:
        return _deposit(raw, index, items)
    v, r, s = [number(item) for item in items[-3:]]
    chain_id = _legacy_chain(v) if kind == LEGACY else number(items.pop(0))
    nonce = number(items.pop(0))
    prices = [number(items.pop(0)) for _ in range(1 if kind in (LEGACY, ACCESS_LIST) else 2)]
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
        gas=number(gas),
        to=None if to == b"" else exactly(to, ADDRESS),
        value=number(amount),
        input=exactly(data),
        v=v,
        r=r,
        s=s,
        access_list=tuple([_access(item) for item in items_of(more[0])]) if more else (),
        max_fee_per_blob_gas=number(more[1]) if kind == BLOB else None,
        blob_versioned_hashes=hashes(more[2]) if kind == BLOB else (),
        authorizations=tuple([_authorization(item) for item in items_of(more[1])]) if kind == SET_CODE else (),
    )


def _deposit(raw: bytes, index: int, items: list[rlp.Decoded]) -> Transaction:
    source, sender, to, mint, amount, gas, system, data = items
    if system not in (b"", b"\1"):
        raise ApplicationError("a deposit says whether it is the system's with nothing or 1")
    return Transaction(
        index=index,
        raw=raw,
        hash=keccak(raw),
        type=DEPOSIT,
        chain_id=None,
        nonce=0,
        gas_price=0,
        max_priority_fee_per_gas=None,
        max_fee_per_gas=None,
        gas=number(gas),
        to=None if to == b"" else exactly(to, ADDRESS),
        value=number(amount),
        input=exactly(data),
        v=0,
        r=0,
        s=0,
        deposit=Deposit(exactly(source, HASH), exactly(sender, ADDRESS), number(mint), bool(system)),
    )


def _state_sync(raw: bytes, index: int) -> Transaction:
    return Transaction(
        *(index, raw, keccak(raw), STATE_SYNC, None, 0, 0, 0, 0, 0, bytes(ADDRESS), 0, b"", 0, 0, 0),
        synced=tuple([_synced(item) for item in items_of(rlp.decode(raw[1:]))]),
    )


def _synced(item: rlp.Decoded) -> SyncedState:
    number_below, contract, data, transaction = items_of(item, 4)
    return SyncedState(number(number_below), exactly(contract, ADDRESS), exactly(data), exactly(transaction, HASH))


def _legacy_chain(v: int) -> int | None:
    """The chain that a legacy signature is bound to (EIP-155); None where it is bound to none."""
    return (v - _CHAIN_V) // 2 if v >= _CHAIN_V else None


def _access(item: rlp.Decoded) -> AccessEntry:
    address, keys = items_of(item, 2)
    return AccessEntry(exactly(address, ADDRESS), hashes(keys))


def _authorization(item: rlp.Decoded) -> Authorization:
    chain_id, address, *numbers = items_of(item, 6)
    nonce, parity, r, s = [number(entry) for entry in numbers]
    return Authorization(number(chain_id), exactly(address, ADDRESS), nonce, parity, r, s)
