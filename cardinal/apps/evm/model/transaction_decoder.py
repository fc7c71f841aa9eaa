"""Decoding of transactions from their canonical bytes."""

from __future__ import annotations

from typing import Final

from cardinal.apps.evm import rlp
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.rlp.fields import ADDRESS, HASH, bytes_of, hashes, list_of, number
from cardinal.errors import ApplicationError

from .transaction import (
    ACCESS_LIST,
    BLOB,
    DEPOSIT,
    FIELDS,
    LEGACY,
    SET_CODE,
    STATE_SYNC,
    AccessEntry,
    Authorization,
    Deposit,
    SyncedState,
    Transaction,
)

_LIST: Final = 0xC0
_CHAIN_V: Final = 35


def decode_transaction(raw: bytes, index: int) -> Transaction:
    """A transaction from its canonical bytes (EIP-2718): a list is legacy, else the first byte is the type.

    Arguments:
        raw: canonical bytes, as ``rpc.transactions.encode_transaction`` writes them.
        index: position in the block.

    Raises:
        ApplicationError: the bytes are no transaction of a supported type.

    """
    if not raw:
        raise ApplicationError("a transaction has no bytes")
    kind = raw[0]
    if kind >= _LIST:
        return _legacy(raw, index)
    if kind == STATE_SYNC:
        return _state_sync(raw, index)
    if kind not in FIELDS or kind == LEGACY:
        raise ApplicationError(f"transactions of type {kind} are not supported by this release")
    items = list_of(rlp.decode(raw[1:]), len(FIELDS[kind]))
    return _deposit(raw, index, items) if kind == DEPOSIT else _typed(raw, index, kind, items)


# Most transactions are decoded by the next two functions: positional arguments take half the time of named ones.
def _legacy(raw: bytes, index: int) -> Transaction:
    nonce, price, gas, to, amount, data, *signature = list_of(rlp.decode(raw), len(FIELDS[LEGACY]))
    v, r, s = [number(item) for item in signature]
    chain_id = (v - _CHAIN_V) // 2 if v >= _CHAIN_V else None  # else the signature is bound to no chain (EIP-155)
    hashed, called = keccak(raw), _recipient(to)
    return Transaction(
        index,
        raw,
        hashed,
        LEGACY,
        chain_id,
        number(nonce),
        number(price),
        None,
        None,
        number(gas),
        called,
        number(amount),
        bytes_of(data),
        v,
        r,
        s,
    )


def _typed(raw: bytes, index: int, kind: int, items: list[rlp.Decoded]) -> Transaction:
    price = priority = highest = None
    if kind == ACCESS_LIST:
        chain_id, nonce, single, gas, to, amount, data, listed, *more = items
        price = number(single)
    else:
        chain_id, nonce, tip, fee_cap, gas, to, amount, data, listed, *more = items
        priority, highest = number(tip), number(fee_cap)
    v, r, s = [number(item) for item in more[-3:]]
    access = tuple([_access(item) for item in list_of(listed)])
    blob_price, blobs = (number(more[0]), hashes(more[1])) if kind == BLOB else (None, ())
    authorizations = tuple([_authorization(item) for item in list_of(more[0])]) if kind == SET_CODE else ()
    hashed, called = keccak(raw), _recipient(to)
    return Transaction(
        index,
        raw,
        hashed,
        kind,
        number(chain_id),
        number(nonce),
        price,
        priority,
        highest,
        number(gas),
        called,
        number(amount),
        bytes_of(data),
        v,
        r,
        s,
        access,
        blob_price,
        blobs,
        authorizations,
    )


def _recipient(item: rlp.Decoded) -> bytes | None:
    return None if item == b"" else bytes_of(item, ADDRESS)


def _deposit(raw: bytes, index: int, items: list[rlp.Decoded]) -> Transaction:
    source, sender, to, mint, amount, gas, system, data = items
    if system not in (b"", b"\1"):
        raise ApplicationError("a deposit's system flag must be empty or 1")
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
        to=_recipient(to),
        value=number(amount),
        input=bytes_of(data),
        v=0,
        r=0,
        s=0,
        deposit=Deposit(bytes_of(source, HASH), bytes_of(sender, ADDRESS), number(mint), bool(system)),
    )


def _state_sync(raw: bytes, index: int) -> Transaction:
    return Transaction(
        *(index, raw, keccak(raw), STATE_SYNC, None, 0, 0, 0, 0, 0, bytes(ADDRESS), 0, b"", 0, 0, 0),
        synced=tuple([_synced(item) for item in list_of(rlp.decode(raw[1:]))]),
    )


def _synced(item: rlp.Decoded) -> SyncedState:
    number_below, contract, data, transaction = list_of(item, 4)
    return SyncedState(number(number_below), bytes_of(contract, ADDRESS), bytes_of(data), bytes_of(transaction, HASH))


def _access(item: rlp.Decoded) -> AccessEntry:
    address, keys = list_of(item, 2)
    return AccessEntry(bytes_of(address, ADDRESS), hashes(keys))


def _authorization(item: rlp.Decoded) -> Authorization:
    chain_id, address, *numbers = list_of(item, 6)
    nonce, parity, r, s = [number(entry) for entry in numbers]
    return Authorization(number(chain_id), bytes_of(address, ADDRESS), nonce, parity, r, s)
