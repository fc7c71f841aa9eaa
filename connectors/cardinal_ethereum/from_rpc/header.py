"""Encoding of block headers and withdrawals from JSON-RPC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, TypeAlias

from cardinal_ethereum.rlp.hex_text import data, quantity, to_bytes, to_parts, word, wrap

from .structures import JsonObject, RpcHeader, RpcWithdrawal, hexadecimal, read

_NUMBERS: Final = frozenset(
    {"difficulty", "number", "gas_limit", "gas_used", "timestamp"}
    | {"base_fee_per_gas", "blob_gas_used", "excess_blob_gas", "slot_number"}
)
_ALWAYS: Final = (
    *("parent_hash", "sha3_uncles", "miner", "state_root", "transactions_root", "receipts_root", "logs_bloom"),
    *("difficulty", "number", "gas_limit", "gas_used", "timestamp", "extra_data"),
)
_SEAL: Final = ("mix_hash", "nonce")
_AURA_SEAL: Final = ("step", "signature")

# Fields added by forks, in the order of the forks; the first absent one ends the header.
_LATER: Final = (
    "base_fee_per_gas",  # London
    "withdrawals_root",  # Shanghai
    "blob_gas_used",  # Cancun
    "excess_blob_gas",
    "parent_beacon_block_root",
    "requests_hash",  # Prague
    "block_access_list_hash",  # Amsterdam
    "slot_number",
)
Writer: TypeAlias = Callable[[str | None], str]
_Writers: TypeAlias = tuple[Callable[[RpcHeader], tuple[Any, ...]], tuple[Writer, ...]]


def _writers(names: tuple[str, ...]) -> _Writers:
    numbers = _NUMBERS | {"step"}
    return attrgetter(*names), tuple(word if name in numbers else data for name in names)


_WORK: Final = _writers((*_ALWAYS, *_SEAL))
_AURA: Final = _writers((*_ALWAYS, *_AURA_SEAL))
_UNSEALED: Final = _writers(_ALWAYS)
_SINCE: Final = _writers(_LATER)
FIELD_WRITERS: Final[Mapping[str, Writer]] = dict(zip(("extra_data", *_LATER), (data, *_SINCE[1]), strict=True))
"""Writers of fields of any size, and of those that a fork added."""

_SIZED: Final = attrgetter(
    *("parent_hash", "sha3_uncles", "miner", "state_root", "transactions_root", "receipts_root", "logs_bloom"),
    *("mix_hash", "nonce"),
)
_SIZES: Final = [66, 66, 42, 66, 66, 66, 514, 66, 18]
"""Characters of those fields, except in proof-of-authority headers."""


def encode_header(header: RpcHeader | JsonObject) -> bytes:
    """RLP of a header or of a block's header; ApplicationError for a missing field."""
    rpc = read(RpcHeader, header)
    with hexadecimal("the header"):
        return write_header(rpc)


def write_header(rpc: RpcHeader) -> bytes:
    """Like :func:`encode_header`, within :func:`.structures.hexadecimal`."""
    encoded = [_required(rpc)]
    values, writers = _SINCE
    for write, text in zip(writers, values(rpc), strict=True):
        if text is None:
            break
        encoded.append(write(text))
    return to_bytes(wrap([*encoded, *[item for _, item in rpc.more]]))


def _required(rpc: RpcHeader) -> str:
    """RLP of the fields that every header has; common sizes take a direct path in half of the table's time."""
    sealed = rpc.signature is not None or rpc.seal_fields is not None
    if not sealed and rpc.mix_hash and rpc.nonce and rpc.miner and list(map(len, _SIZED(rpc))) == _SIZES:
        return (
            f"a0{rpc.parent_hash[2:]}a0{rpc.sha3_uncles[2:]}94{rpc.miner[2:]}a0{rpc.state_root[2:]}"
            f"a0{rpc.transactions_root[2:]}a0{rpc.receipts_root[2:]}b90100{rpc.logs_bloom[2:]}"
            f"{quantity[rpc.difficulty]}{word(rpc.number)}{quantity[rpc.gas_limit]}{word(rpc.gas_used)}"
            f"{word(rpc.timestamp)}{data(rpc.extra_data)}a0{rpc.mix_hash[2:]}88{rpc.nonce[2:]}"
        )
    values, writers = _WORK
    if rpc.signature is not None:
        values, writers = _AURA
    elif rpc.seal_fields is not None and rpc.mix_hash is None:
        values, writers = _UNSEALED
    texts = values(rpc)
    if None in texts[len(_ALWAYS) :]:
        raise ValueError("a header lacks the seal: mixHash and nonce, or step and signature")
    written = [write(text) for write, text in zip(writers, texts, strict=True)]
    if values is _UNSEALED[0]:
        written += [item.removeprefix("0x") for item in rpc.seal_fields or ()]
    return "".join(written)


def known_fields(rpc: RpcHeader) -> tuple[list[str], list[str]]:
    """Names of the fields of forks in a header as this release encodes it, and of those beyond a missing one."""
    present = [getattr(rpc, name) is not None for name in _LATER]
    count = (*present, False).index(False)
    names = dict(zip(rpc.__struct_fields__, rpc.__struct_encode_fields__, strict=True))
    have = [names[name] for name, there in zip(_LATER, present, strict=True) if there]
    return have[:count], have[count:]


def seal_writers(rpc: RpcHeader) -> Mapping[str, Writer]:
    """Writers of the fields of a header's seal."""
    if rpc.signature is not None:
        return {"step": word, "signature": data}
    if rpc.seal_fields is not None and rpc.mix_hash is None:
        return {}
    return {"mix_hash": data, "nonce": data}


def encode_withdrawal(withdrawal: RpcWithdrawal | JsonObject) -> bytes:
    """RLP of a withdrawal (EIP-4895): index, validator, address and amount."""
    rpc = read(RpcWithdrawal, withdrawal)
    with hexadecimal("a withdrawal"):
        return to_bytes(_withdrawal(rpc))


def write_withdrawals(rpc: Iterable[RpcWithdrawal]) -> list[bytes]:
    """Like :func:`encode_withdrawal` for many, within :func:`.structures.hexadecimal`."""
    return to_parts([_withdrawal(one) for one in rpc])


def _withdrawal(rpc: RpcWithdrawal) -> str:
    numbers = word(rpc.index), quantity[rpc.validator_index]
    return wrap((*numbers, data(rpc.address), quantity[rpc.amount]))
