"""Transactions from JSON-RPC to their canonical bytes: legacy RLP, or a type byte and RLP (EIP-2718).

Types: 0 legacy, 1 access list (EIP-2930), 2 fee market (EIP-1559), 3 blob (EIP-4844), 4 set code (EIP-7702).
"""

from __future__ import annotations

from typing import Final

from cardinal.errors import ApplicationError

from . import rlp
from .jsonrpc import JsonObject, data, minimal, number, to_minimal

LEGACY: Final = 0
ACCESS_LIST: Final = 1
FEE_MARKET: Final = 2
BLOB: Final = 3
SET_CODE: Final = 4


def transaction_type(transaction: JsonObject) -> int:
    """The type of a transaction or receipt; 0 where none is named."""
    return number(transaction, "type") if transaction.get("type") is not None else LEGACY


def encode_transaction(transaction: JsonObject) -> bytes:
    """The bytes whose hash names the transaction. ApplicationError for a type or field that is not known."""
    kind = transaction_type(transaction)
    to = data(transaction, "to") if transaction.get("to") else b""
    call = [minimal(transaction, "gas"), to, minimal(transaction, "value"), data(transaction, "input")]
    signature = [minimal(transaction, "r"), minimal(transaction, "s")]
    if kind == LEGACY:
        prices = [minimal(transaction, "nonce"), minimal(transaction, "gasPrice")]
        return rlp.encode([*prices, *call, minimal(transaction, "v"), *signature])
    head = [minimal(transaction, "chainId"), minimal(transaction, "nonce")]
    if kind == ACCESS_LIST:
        head.append(minimal(transaction, "gasPrice"))
    elif kind in (FEE_MARKET, BLOB, SET_CODE):
        head += [minimal(transaction, "maxPriorityFeePerGas"), minimal(transaction, "maxFeePerGas")]
    else:
        raise ApplicationError(f"transactions of type {kind} are not known to this release", path="type")
    parity = minimal(transaction, "yParity" if transaction.get("yParity") is not None else "v")
    body = [*head, *call, _access_list(transaction), *_extra(transaction, kind), parity, *signature]
    return bytes((kind,)) + rlp.encode(body)


def _access_list(transaction: JsonObject) -> list[rlp.Item]:
    return [
        [data(entry, "address"), [bytes.fromhex(key[2:]) for key in entry["storageKeys"]]]
        for entry in transaction.get("accessList") or ()
    ]


def _extra(transaction: JsonObject, kind: int) -> list[rlp.Item]:
    """What only one type has, between the access list and the signature."""
    if kind == BLOB:
        hashes = [bytes.fromhex(value[2:]) for value in transaction["blobVersionedHashes"]]
        return [minimal(transaction, "maxFeePerBlobGas"), hashes]
    if kind == SET_CODE:
        return [[_authorization(entry) for entry in transaction["authorizationList"]]]
    return []


def _authorization(entry: JsonObject) -> list[bytes]:
    return [
        to_minimal(number(entry, "chainId")),
        data(entry, "address"),
        minimal(entry, "nonce"),
        minimal(entry, "yParity"),
        minimal(entry, "r"),
        minimal(entry, "s"),
    ]
