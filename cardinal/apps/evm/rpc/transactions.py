"""Transactions from JSON-RPC to their canonical bytes: legacy RLP, or a type byte and RLP (EIP-2718).

Types: 0 legacy, 1 access list (EIP-2930), 2 fee market (EIP-1559), 3 blob (EIP-4844), 4 set code (EIP-7702), 126
deposit (OP Stack specification, deposits), which nobody signs. Type 127 of Polygon is :mod:`.state_sync`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from msgspec import structs

from cardinal.apps.evm.model.transaction import FIELDS, LEGACY
from cardinal.apps.evm.rlp import hex_text as hexrlp
from cardinal.apps.evm.rlp.hex_text import (
    ADDRESS_TEXT,
    EMPTY,
    WORD_TEXT,
    data,
    list_prefix,
    optional_data,
    optional_quantity,
    quantity,
    word,
    wrap,
)
from cardinal.errors import ApplicationError

from .structures import JsonObject, RpcAccess, RpcAuthorization, RpcBlock, RpcTransaction, hexadecimal, read

_NOBODY: Final = "0x"
_NO_ITEMS: Final = wrap(())


def encode_transaction(transaction: RpcTransaction | JsonObject) -> bytes:
    """The bytes whose hash names the transaction. ApplicationError for a type or field that is not known."""
    shown = read(RpcTransaction, transaction)
    with hexadecimal("a transaction"):
        return hexrlp.to_bytes(_text(shown))


def with_creations(block: RpcBlock) -> RpcBlock:
    """The block with null wherever a transaction is sent to nobody, and so creates a contract.

    In its bytes ``0x`` is the same, and a node may say either. Whoever asks whether a transaction creates anything, the
    check as well as the payload, asks for null alone.
    """
    if _NOBODY not in [one.to for one in block.transactions]:
        return block
    told = [structs.replace(one, to=None) if one.to == _NOBODY else one for one in block.transactions]
    return structs.replace(block, transactions=told)


def write_all(shown: Iterable[RpcTransaction]) -> list[bytes]:
    """The bytes of many transactions, within :func:`.structures.hexadecimal`."""
    return hexrlp.to_parts([_text(one) for one in shown])


def _text(shown: RpcTransaction) -> str:
    """Nearly all transactions are of two types: written out they take half of the time of the table's way.

    So is the common form of what is no number: an address, no input, and parts of a signature that have all their
    digits, as fifteen of sixteen have. Of those the ``0x`` becomes a word's prefix at the end, and no other one does.
    """
    kind = shown.type
    if kind != "0x2" and kind != "0x0" and kind:  # noqa: PLR1714 - twice as fast as looking for it in a tuple
        return _by_table(shown)
    to, given, r, s = shown.to, shown.input, shown.r, shown.s
    to = f"94{to[2:]}" if to and len(to) == ADDRESS_TEXT else _receiver(to)
    given = EMPTY if given == "0x" else data(given)
    whole = 2
    if not (r and "0x1" <= r < "0y" and len(r) == WORD_TEXT):
        r, whole = quantity[r], 1
    if not (s and "0x1" <= s < "0y" and len(s) == WORD_TEXT):
        s, whole = quantity[s], whole - 1
    if kind != "0x2":
        body = (
            f"{quantity[shown.nonce]}{quantity[shown.gas_price]}{quantity[shown.gas]}{to}{quantity[shown.value]}{given}"
            f"{quantity[shown.v]}{r}{s}"
        )
        return f"{list_prefix[len(body) >> 1]}{body}".replace("0x", "a0", whole)
    body = (
        f"{quantity[shown.chain_id]}{quantity[shown.nonce]}{quantity[shown.max_priority_fee_per_gas]}"
        f"{quantity[shown.max_fee_per_gas]}{quantity[shown.gas]}{to}{quantity[shown.value]}{given}"
        f"{_access_list(shown.access_list) if shown.access_list else _NO_ITEMS}{quantity[shown.parity]}{r}{s}"
    )
    return f"02{list_prefix[len(body) >> 1]}{body}".replace("0x", "a0", whole)


def _by_table(shown: RpcTransaction) -> str:
    kind = int(shown.type, 16) if shown.type else LEGACY
    if kind not in _WRITERS:
        raise ApplicationError(f"transactions of type {kind} are not known to this release", path="type")
    values, writers = _WRITERS[kind]
    body = "".join([write(value) for write, value in zip(writers, values(shown), strict=True)])
    return f"{'' if kind == LEGACY else f'{kind:02x}'}{list_prefix[len(body) >> 1]}{body}"


def _access_list(entries: Sequence[RpcAccess] | None) -> str:
    if not entries:
        return _NO_ITEMS
    return wrap([wrap((data(entry.address), wrap([data(key) for key in entry.storage_keys]))) for entry in entries])


def _receiver(to: str | None) -> str:
    """To whom a transaction is sent: an address, or nobody. Any other text of two characters would be nobody, too."""
    if to and to != _NOBODY and len(to) != ADDRESS_TEXT:
        raise ValueError(f"{to[:20]!r} is no address")
    return optional_data(to)


def _flag(value: bool) -> str:  # noqa: FBT001 -- one value of a field, not a choice between operations
    return "01" if value else EMPTY


def _hashes(hashes: Sequence[str]) -> str:
    return wrap([data(value) for value in hashes])


def _authorizations(entries: Sequence[RpcAuthorization]) -> str:
    return wrap([_authorization(entry) for entry in entries])


def _authorization(entry: RpcAuthorization) -> str:
    who = quantity[entry.chain_id], data(entry.address), quantity[entry.nonce]
    return wrap((*who, quantity[entry.parity], word(entry.r), word(entry.s)))


_Writer = Callable[[Any], str]
_SPECIAL: Final[Mapping[str, _Writer]] = MappingProxyType(
    {
        "to": _receiver,
        "input": data,
        "access_list": _access_list,
        "blob_versioned_hashes": _hashes,
        "authorization_list": _authorizations,
        "source_hash": data,
        "from_": data,
        "mint": optional_quantity,
        "r": word,
        "s": word,
        "is_system_tx": _flag,
    }
)
"""How the fields are written that are no numbers."""

_WRITERS: Final[Mapping[int, tuple[Callable[[RpcTransaction], tuple[Any, ...]], tuple[_Writer, ...]]]] = (
    MappingProxyType(
        {
            kind: (attrgetter(*names), tuple(_SPECIAL.get(name, quantity.__getitem__) for name in names))
            for kind, names in FIELDS.items()
        }
    )
)
