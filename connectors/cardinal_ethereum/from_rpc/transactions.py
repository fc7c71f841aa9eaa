"""Encoding of transactions from JSON-RPC to canonical bytes: legacy RLP, or a type byte and RLP (EIP-2718).

Types: 0 legacy, 1 access list (EIP-2930), 2 fee market (EIP-1559), 3 blob (EIP-4844), 4 set code (EIP-7702), and those
of single families of chains (:mod:`cardinal_ethereum.model.transaction_types`). A type that is unknown there is
published by its bytes, which the caller adds to the transaction as ``raw``. Polygon's type 127: :mod:`.state_sync`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from msgspec import structs

from cardinal.errors import ApplicationError
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.transaction_types import (
    ADDRESSES,
    ARBITRUM_LEGACY,
    BARE,
    FIELDS,
    HASHES,
    LEGACY,
    OPTIONAL_ADDRESSES,
    TEXTS,
    Family,
    Fields,
    candidates,
)
from cardinal_ethereum.rlp import hex_text as hexrlp
from cardinal_ethereum.rlp.cache import Memo
from cardinal_ethereum.rlp.hex_text import (
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

from .structures import (
    UNREADABLE,
    JsonObject,
    RpcAccess,
    RpcAuthorization,
    RpcBlock,
    RpcTransaction,
    hexadecimal,
    raw,
    read,
)

_NO_DATA: Final = "0x"
_NO_ITEMS: Final = wrap(())


def encode_transaction(transaction: RpcTransaction | JsonObject, family: Family | None = None) -> bytes:
    """Canonical bytes of a transaction.

    Arguments:
        transaction: from JSON-RPC.
        family: of its chain; None where it is unknown.

    Raises:
        ApplicationError: a field is missing or invalid, or the type is unknown and its bytes are missing.

    """
    rpc = read(RpcTransaction, transaction)
    with hexadecimal("a transaction"):
        return hexrlp.to_bytes(_text(rpc, family))


def with_creations(block: RpcBlock) -> RpcBlock:
    """The block with a null receiver in every transaction that creates a contract.

    Nodes return null or ``0x``, which encode equally; checks and payload test for null alone.
    """
    if _NO_DATA not in [one.to for one in block.transactions]:
        return block
    replaced = [structs.replace(one, to=None) if one.to == _NO_DATA else one for one in block.transactions]
    return structs.replace(block, transactions=replaced)


def write_all(rpc: Iterable[RpcTransaction], family: Family | None) -> list[bytes]:
    """Canonical bytes of many transactions, within :func:`.structures.hexadecimal`."""
    return hexrlp.to_parts([_text(one, family) for one in rpc])


def lacking_bytes(rpc: Sequence[RpcTransaction], family: Family | None) -> list[int]:
    """Indexes of the transactions whose bytes have to be requested: their fields do not make up their hash.

    Only types beyond Ethereum's can be among them.
    """
    return [at for at, one in enumerate(rpc) if one.type not in _COMMON_TYPES and _lacks_bytes(one, family)]


def _lacks_bytes(rpc: RpcTransaction, family: Family | None) -> bool:
    if rpc.raw is not None:
        return False
    try:
        kind = int(rpc.type or "0x0", 16)
        return kind not in FIELDS and keccak(hexrlp.to_bytes(_text(rpc, family))) != raw(rpc.hash)
    except (ApplicationError, *UNREADABLE):
        return True


def _text(rpc: RpcTransaction, family: Family | None = None) -> str:
    """Encode a transaction; the two common types take a direct path in half of the table's time.

    So do common values: an address, empty input, and parts of a signature with all their digits (fifteen of sixteen).
    Those keep their ``0x``, which the last step replaces by the prefix of a word.
    """
    kind = rpc.type
    if kind != "0x2" and kind != "0x0" and kind:  # noqa: PLR1714 - twice as fast as looking for it in a tuple
        return _by_table(rpc, family)
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


def _by_table(rpc: RpcTransaction, family: Family | None) -> str:
    kind = int(rpc.type, 16) if rpc.type else LEGACY
    if kind in FIELDS:
        body = _body(rpc, FIELDS[kind])
        return body if kind == LEGACY else f"{kind:02x}{body}"
    if rpc.raw is not None:
        return provided(rpc, kind).hex()
    layouts = candidates(family, kind)
    # More than one on an unknown chain alone: the fields of the right one are there.
    layout = next((each for each in layouts if not _missing(rpc, each)), layouts[0] if layouts else None)
    if layout is None:
        raise ApplicationError(bytes_advice(kind, family), path="raw")
    return f"{kind:02x}{raw(rpc.input).hex() if layout == BARE else _body(rpc, layout)}"


def bytes_advice(kind: int, family: Family | None) -> str:
    """Advice for a type whose bytes do not follow from JSON-RPC's fields."""
    if kind == ARBITRUM_LEGACY and family == "arbitrum":
        return (
            "the hash of a transaction from before Nitro does not follow from its bytes: start at Nitro's first block"
        )
    return (
        "its bytes do not follow from its fields: use a node that serves eth_getRawTransactionByHash, "
        "debug_getRawTransaction or debug_getRawBlock, or add them to the transaction as `raw`"
    )


def provided(rpc: RpcTransaction, kind: int) -> bytes:
    """The bytes that the caller added; the checks compare their hash."""
    written = raw(rpc.raw)
    if written[:1] != bytes((kind,)):
        raise ApplicationError(f"the bytes that the node served for it do not begin with its type, {kind}", path="raw")
    return written


def field_writers(kind: int, family: Family | None) -> Mapping[str, Writer]:
    """Writers of the fields of a type, by the attribute of the structure; empty for an unknown type."""
    layouts = (FIELDS[kind],) if kind in FIELDS else candidates(family, kind)
    return {name: _SPECIAL.get(name, quantity.__getitem__) for name in (layouts[0] if layouts else ())}


def _missing(rpc: RpcTransaction, layout: Fields) -> list[str]:
    """Fields of a layout that the node did not return."""
    return [name for name in layout if name not in _OPTIONAL and getattr(rpc, name) is None]


def _body(rpc: RpcTransaction, layout: Fields) -> str:
    values, writers = _writers[layout]
    body = "".join([write(value) for write, value in zip(writers, values(rpc), strict=True)])
    return f"{list_prefix[len(body) >> 1]}{body}"


def _access_list(entries: Sequence[RpcAccess] | None) -> str:
    if not entries:
        return _NO_ITEMS
    return wrap([wrap((data(entry.address), wrap([data(key) for key in entry.storage_keys]))) for entry in entries])


def _receiver(to: str | None) -> str:
    """The receiver: an address or nothing; any other text is refused."""
    if to and to != _NO_DATA and len(to) != ADDRESS_TEXT:
        raise ValueError(f"{to[:20]!r} is no address")
    return optional_data(to)


def _flag(value: bool | None) -> str:  # noqa: FBT001 -- one value of a field, not a choice between operations
    return "01" if value else EMPTY


def _hashes(hashes: Sequence[str]) -> str:
    return wrap([data(value) for value in hashes])


def _authorizations(entries: Sequence[RpcAuthorization]) -> str:
    return wrap([_authorization(entry) for entry in entries])


def _authorization(entry: RpcAuthorization) -> str:
    who = quantity[entry.chain_id], data(entry.address), quantity[entry.nonce]
    return wrap((*who, quantity[entry.parity], word(entry.r), word(entry.s)))


Writer = Callable[[Any], str]
_SPECIAL: Final[Mapping[str, Writer]] = MappingProxyType(
    {
        **dict.fromkeys(TEXTS | HASHES | ADDRESSES, data),
        **dict.fromkeys(OPTIONAL_ADDRESSES, _receiver),
        **dict.fromkeys(("mint", "gateway_fee"), optional_quantity),
        "access_list": _access_list,
        "blob_versioned_hashes": _hashes,
        "authorization_list": _authorizations,
        "r": word,
        "s": word,
        "is_system_tx": _flag,
    }
)
"""Writers of the fields that are not numbers."""

_OPTIONAL: Final = OPTIONAL_ADDRESSES | {"mint", "gateway_fee", "access_list", "is_system_tx", "parity"}
_COMMON_TYPES: Final = frozenset({None, "", *map(hex, FIELDS)})


def _writers_of(layout: Fields) -> tuple[Callable[[RpcTransaction], tuple[Any, ...]], tuple[Writer, ...]]:
    return attrgetter(*layout), tuple(_SPECIAL.get(name, quantity.__getitem__) for name in layout)


_writers: Final = Memo(_writers_of, maxsize=64)
