"""Encoding of transactions from JSON-RPC to canonical bytes: legacy RLP, or a type byte and RLP (EIP-2718).

Types: 0 legacy, 1 access list (EIP-2930), 2 fee market (EIP-1559), 3 blob (EIP-4844), 4 set code (EIP-7702), 126
deposit (OP Stack specification, deposits; unsigned). Polygon's type 127: :mod:`.state_sync`.
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

_NO_DATA: Final = "0x"
_NO_ITEMS: Final = wrap(())


def encode_transaction(transaction: RpcTransaction | JsonObject) -> bytes:
    """Canonical bytes of a transaction; ApplicationError for an unsupported type or a bad field."""
    rpc = read(RpcTransaction, transaction)
    with hexadecimal("a transaction"):
        return hexrlp.to_bytes(_text(rpc))


def with_creations(block: RpcBlock) -> RpcBlock:
    """The block with a null receiver in every transaction that creates a contract.

    Nodes return null or ``0x``, which encode equally; checks and payload test for null alone.
    """
    if _NO_DATA not in [one.to for one in block.transactions]:
        return block
    replaced = [structs.replace(one, to=None) if one.to == _NO_DATA else one for one in block.transactions]
    return structs.replace(block, transactions=replaced)


def write_all(rpc: Iterable[RpcTransaction]) -> list[bytes]:
    """Canonical bytes of many transactions, within :func:`.structures.hexadecimal`."""
    return hexrlp.to_parts([_text(one) for one in rpc])


def _text(rpc: RpcTransaction) -> str:
    """Encode a transaction; the two common types take a direct path in half of the table's time.

    So do common values: an address, empty input, and parts of a signature with all their digits (fifteen of sixteen).
    Those keep their ``0x``, which the last step replaces by the prefix of a word.
    """
    kind = rpc.type
    if kind != "0x2" and kind != "0x0" and kind:  # noqa: PLR1714 - twice as fast as looking for it in a tuple
        return _by_table(rpc)
    to, input_, r, s = rpc.to, rpc.input, rpc.r, rpc.s
    to = f"94{to[2:]}" if to and len(to) == ADDRESS_TEXT else _receiver(to)
    input_ = EMPTY if input_ == "0x" else data(input_)
    whole = 2
    if not (r and "0x1" <= r < "0y" and len(r) == WORD_TEXT):
        r, whole = quantity[r], 1
    if not (s and "0x1" <= s < "0y" and len(s) == WORD_TEXT):
        s, whole = quantity[s], whole - 1
    if kind != "0x2":
        body = (
            f"{quantity[rpc.nonce]}{quantity[rpc.gas_price]}{quantity[rpc.gas]}{to}{quantity[rpc.value]}{input_}"
            f"{quantity[rpc.v]}{r}{s}"
        )
        return f"{list_prefix[len(body) >> 1]}{body}".replace("0x", "a0", whole)
    body = (
        f"{quantity[rpc.chain_id]}{quantity[rpc.nonce]}{quantity[rpc.max_priority_fee_per_gas]}"
        f"{quantity[rpc.max_fee_per_gas]}{quantity[rpc.gas]}{to}{quantity[rpc.value]}{input_}"
        f"{_access_list(rpc.access_list) if rpc.access_list else _NO_ITEMS}{quantity[rpc.parity]}{r}{s}"
    )
    return f"02{list_prefix[len(body) >> 1]}{body}".replace("0x", "a0", whole)


def _by_table(rpc: RpcTransaction) -> str:
    kind = int(rpc.type, 16) if rpc.type else LEGACY
    if kind not in _WRITERS:
        raise ApplicationError(f"transactions of type {kind} are not supported by this release", path="type")
    values, writers = _WRITERS[kind]
    body = "".join([write(value) for write, value in zip(writers, values(rpc), strict=True)])
    return f"{'' if kind == LEGACY else f'{kind:02x}'}{list_prefix[len(body) >> 1]}{body}"


def _access_list(entries: Sequence[RpcAccess] | None) -> str:
    if not entries:
        return _NO_ITEMS
    return wrap([wrap((data(entry.address), wrap([data(key) for key in entry.storage_keys]))) for entry in entries])


def _receiver(to: str | None) -> str:
    """The receiver: an address or nothing; any other text is refused."""
    if to and to != _NO_DATA and len(to) != ADDRESS_TEXT:
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
"""Writers of the fields that are not numbers."""

_WRITERS: Final[Mapping[int, tuple[Callable[[RpcTransaction], tuple[Any, ...]], tuple[_Writer, ...]]]] = (
    MappingProxyType(
        {
            kind: (attrgetter(*names), tuple(_SPECIAL.get(name, quantity.__getitem__) for name in names))
            for kind, names in FIELDS.items()
        }
    )
)
