"""Decoding of transactions from their canonical bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from cardinal.errors import ApplicationError
from cardinal_ethereum import rlp
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.rlp.fields import ADDRESS, HASH, bytes_of, hashes, list_of, number

from .transaction import AccessEntry, Authorization, Deposit, SyncedState, Transaction
from .transaction_types import (
    ACCESS_LIST,
    ADDRESSES,
    ARBITRUM_INTERNAL,
    ARBITRUM_SUBMIT,
    BARE,
    BLOB,
    DEPOSIT,
    DEPOSIT_FIELDS,
    FIELDS,
    HASHES,
    LEGACY,
    OPTIONAL_ADDRESSES,
    POST_EXECUTION,
    SET_CODE,
    STATE_SYNC,
    TEXTS,
    Family,
    Fields,
    candidates,
)

_LIST: Final = 0xC0
_LAST_TYPE: Final = 0x7F
_CHAIN_V: Final = 35
_ACCESS: Final = "access_list"
_COMMON: Final = (
    *("chain_id", "nonce", "gas_price", "max_priority_fee_per_gas", "max_fee_per_gas", "gas", "to", "value", "input"),
    *("v", "r", "s"),
)
_ZEROS: Final = MappingProxyType[str, Any]({**dict.fromkeys(("nonce", "gas", "value", "v", "r", "s"), 0), "input": b""})
_ARBOS: Final = bytes.fromhex("00000000000000000000000000000000000a4b05")
_TICKETS: Final = bytes(19) + b"\x6e"
_IMPLIED: Final[Mapping[int, Mapping[str, Any]]] = MappingProxyType(
    {
        ARBITRUM_INTERNAL: {**_ZEROS, "from_": _ARBOS, "to": _ARBOS},
        ARBITRUM_SUBMIT: {**_ZEROS, "to": _TICKETS},
        POST_EXECUTION: {**_ZEROS, "from_": bytes(ADDRESS)},
    }
)
"""Values that follow from the type alone (nitro, arbitrum_signer and arb_types; op-geth, tx_post_exec)."""

_SUBMIT: Final = bytes.fromhex("c9f95d32")


def decode_transaction(raw: bytes, index: int, family: Family | None = None) -> Transaction:
    """A transaction from its canonical bytes (EIP-2718): a list is legacy, else the first byte is the type.

    Bytes of a type beyond Ethereum's that do not have the form of the chain's are kept as they are: only the type is
    decoded then.

    Arguments:
        raw: canonical bytes, as ``rpc.transactions.encode_transaction`` writes them.
        index: position in the block.
        family: of the chain; None where it is unknown.

    Raises:
        ApplicationError: the bytes are no transaction, or not one of their type.

    """
    if not raw:
        raise ApplicationError("a transaction has no bytes")
    kind = raw[0]
    if kind >= _LIST:
        return _legacy(raw, index)
    if kind > _LAST_TYPE:
        raise ApplicationError("a transaction begins with a byte that is neither a type nor a list")
    if kind not in FIELDS:
        return _beyond(raw, index, family)
    if kind == LEGACY:
        raise ApplicationError("a legacy transaction is a list, without a type")
    return _typed(raw, index, kind, list_of(rlp.decode(raw[1:]), len(FIELDS[kind])))


def _beyond(raw: bytes, index: int, family: Family | None) -> Transaction:
    """A transaction of a type that only some chains have."""
    kind = raw[0]
    layouts = candidates(family, kind)
    try:
        if layouts == (BARE,):
            return _special(raw, index, BARE, [raw[1:]])
        items = list_of(rlp.decode(raw[1:]))
        if kind == STATE_SYNC and family in (None, "polygon"):
            return _state_sync(raw, index, items)
        layout = next((each for each in layouts if len(each) == len(items)), ())
        if layout == DEPOSIT_FIELDS:
            return _deposit(raw, index, items)
        return _special(raw, index, layout, items) if layout else _opaque(raw, index)
    except ApplicationError:  # another form than this release knows
        return _opaque(raw, index)


def _opaque(raw: bytes, index: int) -> Transaction:
    nothing = (None,) * 12
    return Transaction(index, raw, keccak(raw), raw[0], *nothing, layout=())


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


def _state_sync(raw: bytes, index: int, items: list[rlp.Decoded]) -> Transaction:
    return Transaction(
        *(index, raw, keccak(raw), STATE_SYNC, None, 0, 0, 0, 0, 0, bytes(ADDRESS), 0, b"", 0, 0, 0),
        synced=tuple([_synced(item) for item in items]),
    )


def _special(raw: bytes, index: int, layout: Fields, items: list[rlp.Decoded]) -> Transaction:
    """A transaction of a type whose fields are a list of :mod:`.transaction_types`."""
    values = {name: _value(name, item) for name, item in zip(layout, items, strict=True)}
    access = values.pop(_ACCESS, ())
    own = {**_IMPLIED.get(raw[0], _ZEROS), **values}
    if "parity" in own:
        own["v"] = own.pop("parity")
    if raw[0] == ARBITRUM_SUBMIT:
        own["input"] = _submitted(values)
    if "max_fee_per_gas" not in own:
        own["gas_price"] = 0  # nodes return it for a transaction that pays no fee
    common = {name: own.pop(name) for name in list(own) if name in _COMMON}
    return Transaction(
        **{**dict.fromkeys(_COMMON), **common},
        index=index,
        raw=raw,
        hash=keccak(raw),
        type=raw[0],
        access_list=access,
        layout=layout,
        special=tuple(own.items()),
    )


def _value(name: str, item: rlp.Decoded) -> Any:  # noqa: ANN401 -- as the field's attribute has it
    """Value of a field by its name."""
    if name == _ACCESS:
        return tuple([_access(entry) for entry in list_of(item)])
    if name in OPTIONAL_ADDRESSES:
        return _recipient(item)
    if name in TEXTS:
        return bytes_of(item)
    if name in ADDRESSES:
        return bytes_of(item, ADDRESS)
    return bytes_of(item, HASH) if name in HASHES else number(item)


def _submitted(values: Mapping[str, Any]) -> bytes:
    """Input of a retryable ticket's submission as nodes return it: a call with the ticket's fields (nitro)."""
    numbers = ("l1_base_fee", "deposit_value", "retry_value", "max_fee_per_gas", "gas", "max_submission_fee")
    words = [values["request_id"], *[values[name].to_bytes(HASH, "big") for name in numbers]]
    words += [(values[name] or b"").rjust(HASH, b"\0") for name in ("refund_to", "beneficiary", "retry_to")]
    data: bytes = values["retry_data"]
    head: bytes = b"".join(words)
    sizes = (len(head) + HASH).to_bytes(HASH, "big") + len(data).to_bytes(HASH, "big")
    return _SUBMIT + head + sizes + data + bytes(-len(data) % HASH)


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
