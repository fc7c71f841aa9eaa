"""Fields of every transaction type, by family of chains: the same type means different things on different chains.

Names are those of JSON-RPC in this package's spelling, in encoding order; ``from_`` is the sender of an unsigned
transaction. Encoding from JSON-RPC, decoding and re-encoding all follow these lists.

Sources: EIPs 155, 2930, 1559, 4844, 7702; OP Stack specification, deposits, and op-geth, tx_post_exec; nitro's
go-ethereum, arb_types; celo-org/op-geth, celo_dynamic_fee_tx and celo_dynamic_fee_tx_v2; scroll's go-ethereum,
l1_message_tx.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Family: TypeAlias = Literal["ethereum", "polygon", "optimism", "arbitrum", "celo", "scroll"]
"""Family of chains that share their transaction types."""

LEGACY: Final = 0
ACCESS_LIST: Final = 1
FEE_MARKET: Final = 2
BLOB: Final = 3
SET_CODE: Final = 4
ARBITRUM_DEPOSIT: Final = 0x64
ARBITRUM_UNSIGNED: Final = 0x65
ARBITRUM_CONTRACT: Final = 0x66
ARBITRUM_RETRY: Final = 0x68
ARBITRUM_SUBMIT: Final = 0x69
ARBITRUM_INTERNAL: Final = 0x6A
ARBITRUM_LEGACY: Final = 0x78
CELO_2: Final = 0x7B
CELO_1: Final = 0x7C
POST_EXECUTION: Final = 0x7D
DEPOSIT: Final = 0x7E
STATE_SYNC: Final = 0x7F

_PRICES: Final = ("max_priority_fee_per_gas", "max_fee_per_gas")
_CALL: Final = ("gas", "to", "value", "input")
_LIST: Final = "access_list"
SIGNATURE: Final = ("parity", "r", "s")
_ARBITRUM_CALL: Final = ("max_fee_per_gas", *_CALL)

Fields: TypeAlias = tuple[str, ...]
FIELDS: Final[Mapping[int, Fields]] = MappingProxyType(
    {
        LEGACY: ("nonce", "gas_price", *_CALL, "v", "r", "s"),
        ACCESS_LIST: ("chain_id", "nonce", "gas_price", *_CALL, _LIST, *SIGNATURE),
        FEE_MARKET: ("chain_id", "nonce", *_PRICES, *_CALL, _LIST, *SIGNATURE),
        BLOB: (
            *("chain_id", "nonce", *_PRICES, *_CALL, _LIST, "max_fee_per_blob_gas", "blob_versioned_hashes"),
            *SIGNATURE,
        ),
        SET_CODE: ("chain_id", "nonce", *_PRICES, *_CALL, _LIST, "authorization_list", *SIGNATURE),
    }
)
"""Fields of Ethereum's types, which every family has."""

DEPOSIT_FIELDS: Final = ("source_hash", "from_", "to", "mint", "value", "gas", "is_system_tx", "input")
BARE: Final = ("input",)
"""Of a type whose bytes are the input alone, outside any list."""

_OPTIMISM: Final = {POST_EXECUTION: BARE, DEPOSIT: DEPOSIT_FIELDS}
_CELO: Final = {
    CELO_2: ("chain_id", "nonce", *_PRICES, *_CALL, _LIST, "fee_currency", *SIGNATURE),
    CELO_1: (
        *("chain_id", "nonce", *_PRICES, "gas", "fee_currency", "gateway_fee_recipient", "gateway_fee"),
        *("to", "value", "input", _LIST, *SIGNATURE),
    ),
}
_ARBITRUM: Final = {
    ARBITRUM_DEPOSIT: ("chain_id", "request_id", "from_", "to", "value"),
    ARBITRUM_UNSIGNED: ("chain_id", "from_", "nonce", *_ARBITRUM_CALL),
    ARBITRUM_CONTRACT: ("chain_id", "request_id", "from_", *_ARBITRUM_CALL),
    ARBITRUM_RETRY: (
        *("chain_id", "nonce", "from_", *_ARBITRUM_CALL),
        *("ticket_id", "refund_to", "max_refund", "submission_fee_refund"),
    ),
    ARBITRUM_SUBMIT: (
        *("chain_id", "request_id", "from_", "l1_base_fee", "deposit_value", "max_fee_per_gas", "gas"),
        *("retry_to", "retry_value", "beneficiary", "max_submission_fee", "refund_to", "retry_data"),
    ),
    ARBITRUM_INTERNAL: ("chain_id", "input"),
}
_SCROLL: Final = {DEPOSIT: ("queue_index", "gas", "to", "value", "input", "from_")}

_OWN: Final[Mapping[Family, Mapping[int, Fields]]] = MappingProxyType(
    {
        "ethereum": {},
        "polygon": {},  # its state sync has no list of fields
        "optimism": _OPTIMISM,
        "arbitrum": _ARBITRUM,
        "celo": _OPTIMISM | _CELO,
        "scroll": _SCROLL,
    }
)

ADDRESSES: Final = frozenset({"from_", "refund_to", "beneficiary"})
OPTIONAL_ADDRESSES: Final = frozenset({"to", "retry_to", "fee_currency", "gateway_fee_recipient"})
HASHES: Final = frozenset({"source_hash", "request_id", "ticket_id"})
TEXTS: Final = frozenset({"input", "retry_data"})
"""Kinds of fields; others are numbers, lists and flags."""


def candidates(family: Family | None, kind: int) -> tuple[Fields, ...]:
    """Field lists that a type beyond Ethereum's can have; none where it is unknown.

    On a chain of a known family there is one at most. On other chains the bytes decide: no two lists of one type have
    the same length, and a type without a list stays unknown.
    """
    if family is not None:
        return (_OWN[family][kind],) if kind in _OWN[family] else ()
    lists = dict.fromkeys(own[kind] for own in _OWN.values() if kind in own)
    return tuple(each for each in lists if each != BARE)


SIGNED: Final = frozenset({*FIELDS, CELO_1, CELO_2})
"""Types with a signature."""

WITH_ACCOUNT_NONCE: Final = SIGNED | {ARBITRUM_UNSIGNED}
"""Types whose bytes have their sender's account nonce, so that the contract they create follows from them."""
