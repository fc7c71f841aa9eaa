"""Block headers from JSON-RPC to the bytes whose hash names the block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, TypeAlias

from cardinal.apps.evm.rlp.hex_text import data, quantity, to_bytes, to_parts, word, wrap

from .structures import JsonObject, RpcHeader, RpcWithdrawal, hexadecimal, read

_NUMBERS: Final = frozenset(
    {"difficulty", "number", "gas_limit", "gas_used", "timestamp"}
    | {"base_fee_per_gas", "blob_gas_used", "excess_blob_gas"}
)
_ALWAYS: Final = (
    *("parent_hash", "sha3_uncles", "miner", "state_root", "transactions_root", "receipts_root", "logs_bloom"),
    *("difficulty", "number", "gas_limit", "gas_used", "timestamp", "extra_data"),
)
_SEAL: Final = ("mix_hash", "nonce")
_AURA_SEAL: Final = ("step", "signature")

# Fields that came with a fork stand at the end, in the order of the forks; the first one absent ends the header.
_LATER: Final = (
    "base_fee_per_gas",  # London
    "withdrawals_root",  # Shanghai
    "blob_gas_used",  # Cancun
    "excess_blob_gas",
    "parent_beacon_block_root",
    "requests_hash",  # Prague
)
_Writers: TypeAlias = tuple[Callable[[RpcHeader], tuple[Any, ...]], tuple[Callable[[str], str], ...]]


def _writers(names: tuple[str, ...]) -> _Writers:
    numbers = _NUMBERS | {"step"}
    return attrgetter(*names), tuple(word if name in numbers else data for name in names)


_WORK: Final = _writers((*_ALWAYS, *_SEAL))
_AURA: Final = _writers((*_ALWAYS, *_AURA_SEAL))
_SINCE: Final = _writers(_LATER)
_SIZED: Final = attrgetter(
    *("parent_hash", "sha3_uncles", "miner", "state_root", "transactions_root", "receipts_root", "logs_bloom"),
    *("mix_hash", "nonce"),
)
_SIZES: Final = [66, 66, 42, 66, 66, 66, 514, 66, 18]
"""Characters of those fields, but for authorities' headers."""


def encode_header(header: RpcHeader | JsonObject) -> bytes:
    """The RLP of a header, or of a block's header. ApplicationError where a field is missing."""
    shown = read(RpcHeader, header)
    with hexadecimal("the header"):
        return write_header(shown)


def write_header(shown: RpcHeader) -> bytes:
    """Like :func:`encode_header`, within :func:`.structures.hexadecimal`."""
    encoded = [_required(shown)]
    values, writers = _SINCE
    for write, text in zip(writers, values(shown), strict=True):
        if text is None:
            break
        encoded.append(write(text))
    return to_bytes(wrap(encoded))


def _required(shown: RpcHeader) -> str:
    """The fields that a header always has. Of common sizes, they are written out: in half of the table's time."""
    if shown.mix_hash and shown.nonce and list(map(len, _SIZED(shown))) == _SIZES:
        return (
            f"a0{shown.parent_hash[2:]}a0{shown.sha3_uncles[2:]}94{shown.miner[2:]}a0{shown.state_root[2:]}"
            f"a0{shown.transactions_root[2:]}a0{shown.receipts_root[2:]}b90100{shown.logs_bloom[2:]}"
            f"{quantity[shown.difficulty]}{word(shown.number)}{quantity[shown.gas_limit]}{word(shown.gas_used)}"
            f"{word(shown.timestamp)}{data(shown.extra_data)}a0{shown.mix_hash[2:]}88{shown.nonce[2:]}"
        )
    values, writers = _AURA if shown.mix_hash is None and shown.signature is not None else _WORK
    texts = values(shown)
    if None in texts:
        raise ValueError("a header lacks the seal: mixHash and nonce, or step and signature")
    return "".join([write(text) for write, text in zip(writers, texts, strict=True)])


def encode_withdrawal(withdrawal: RpcWithdrawal | JsonObject) -> bytes:
    """The RLP of one withdrawal (EIP-4895): index, validator, address and amount."""
    shown = read(RpcWithdrawal, withdrawal)
    with hexadecimal("a withdrawal"):
        return to_bytes(_withdrawal(shown))


def write_withdrawals(shown: Iterable[RpcWithdrawal]) -> list[bytes]:
    """Like :func:`encode_withdrawal` for many, within :func:`.structures.hexadecimal`."""
    return to_parts([_withdrawal(one) for one in shown])


def _withdrawal(shown: RpcWithdrawal) -> str:
    numbers = word(shown.index), quantity[shown.validator_index]
    return wrap((*numbers, data(shown.address), quantity[shown.amount]))
