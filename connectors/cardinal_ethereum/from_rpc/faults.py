"""Names of the malformed fields of a block, for errors.

Encoding joins the texts of many fields, so its own errors name none of them. :func:`fault_of` is for a block that was
refused: it tries every field by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from cardinal.errors import ApplicationError
from cardinal_ethereum.chains import Chain
from cardinal_ethereum.rlp.hex_text import ADDRESS_TEXT, WORD_TEXT, to_bytes, word

from .header import FIELD_WRITERS, seal_writers
from .structures import UNREADABLE, RpcBlock, RpcHeader, RpcReceipt, RpcTransaction, raw
from .transactions import field_writers, write_all

Writer: TypeAlias = Callable[[Any], object]
Fault: TypeAlias = tuple[str, str]
"""Description and path of a malformed field."""

_BLOOM: Final = 514
_SHOWN: Final = 20
_KIND_TEXT: Final = "0x0"


def fault_of(
    block: RpcBlock, receipts: Sequence[RpcReceipt], uncles: Sequence[RpcHeader], chain: Chain | None
) -> Fault | None:
    """The first malformed field of a block; None where every field is well-formed by itself."""
    return next(_faults(block, receipts, uncles, chain), None)


def _faults(
    block: RpcBlock, receipts: Sequence[RpcReceipt], uncles: Sequence[RpcHeader], chain: Chain | None
) -> Iterator[Fault]:
    yield from _in("its header", "", block, _header(block))
    for index, transaction in enumerate(block.transactions):
        path = f"transactions[{index}]."
        where = f"transaction {index} ({_short(transaction.hash)}, type {_kind_name(transaction)})"
        yield from _in(where, path, transaction, _transaction(transaction, chain))
    for index, receipt in enumerate(receipts):
        yield from _in(f"receipt {index}", f"receipts[{index}].", receipt, _RECEIPT)
        for place, log in enumerate(receipt.logs):
            yield from _in(f"log {place} of receipt {index}", f"receipts[{index}].logs[{place}].", log, _LOG)
    for index, withdrawal in enumerate(block.withdrawals or ()):
        yield from _in(f"withdrawal {index}", f"withdrawals[{index}].", withdrawal, _WITHDRAWAL)
    for index, uncle in enumerate(uncles):
        yield from _in(f"uncle {index}", f"uncles[{index}].", uncle, _header(uncle))


def _in(where: str, path: str, part: msgspec.Struct, writers: Mapping[str, Writer]) -> Iterator[Fault]:
    """Faults of a structure's fields."""
    names = dict(zip(part.__struct_fields__, part.__struct_encode_fields__, strict=True))
    for name, write in writers.items():
        value = getattr(part, name)
        shown = names.get(name, name)
        try:
            text = write(value)
            if isinstance(text, str):
                to_bytes(text)
        except ApplicationError as error:
            yield f"{where}: {error}", path + shown
        except UNREADABLE as error:
            reason = f"has no {shown}" if value is None else f"has a {shown} that cannot be read: {_reason(error)}"
            yield f"{where} {reason}", path + shown


def _reason(error: Exception) -> str:
    """Reason in our words: those of Python's own conversions name no value."""
    return str(error) if type(error) is ValueError else "it has another form than JSON-RPC's"


def _short(text: str) -> str:
    return text if len(text) <= WORD_TEXT else f"{text[:_SHOWN]}…"


def _kind_name(transaction: RpcTransaction) -> str:
    try:
        return str(int(transaction.type or _KIND_TEXT, 16))
    except ValueError:
        return repr((transaction.type or "")[:_SHOWN])


def _header(header: RpcHeader) -> Mapping[str, Writer]:
    later = {name: write for name, write in FIELD_WRITERS.items() if getattr(header, name) is not None}
    sized: dict[str, Writer] = {name: partial(_sized, size) for name, size in _HEADER_SIZES.items()}
    return {"hash": partial(_sized, WORD_TEXT), **sized, **_NUMBERS, **later, **seal_writers(header)}


def _transaction(transaction: RpcTransaction, chain: Chain | None) -> Mapping[str, Writer]:
    try:
        kind = int(transaction.type or _KIND_TEXT, 16)
    except ValueError:
        return {"type": _number}
    family = None if chain is None else chain.family
    fields = {} if transaction.raw is not None else field_writers(kind, family)
    return {"hash": partial(_sized, WORD_TEXT), **fields, "type": lambda _: write_all((transaction,), family)}


def _sized(size: int, text: str | None) -> bytes:
    if text is not None and len(text) != size:
        raise ValueError(f"{text[:_SHOWN]!r} is not {size // 2 - 1} bytes")
    return raw(text)


def _number(text: str | None) -> int:
    word(text)
    return int(text or "", 16)


def _optional(write: Callable[[Any], Any]) -> Writer:
    return lambda text: "" if text is None or text == "" else write(text)


def _hashes(texts: Sequence[str]) -> str:
    for text in texts:
        _sized(WORD_TEXT, text)
    return ""


_HEADER_SIZES: Final = {
    **dict.fromkeys(("parent_hash", "sha3_uncles", "state_root", "transactions_root", "receipts_root"), WORD_TEXT),
    "miner": ADDRESS_TEXT,
    "logs_bloom": _BLOOM,
}
_NUMBERS: Final[Mapping[str, Writer]] = dict.fromkeys(
    ("difficulty", "number", "gas_limit", "gas_used", "timestamp"), _number
)
_LOG: Final[Mapping[str, Writer]] = {
    "address": partial(_sized, ADDRESS_TEXT),
    "topics": _hashes,
    "data": raw,
    "log_index": _number,
}
_RECEIPT: Final[Mapping[str, Writer]] = {
    "cumulative_gas_used": _number,
    "gas_used": _number,
    "logs_bloom": partial(_sized, _BLOOM),
    "status": _optional(_number),
    "root": _optional(raw),
    "type": _optional(_number),
    "contract_address": _optional(raw),
    "block_hash": _optional(raw),
    "deposit_nonce": _optional(_number),
    "deposit_receipt_version": _optional(_number),
}
_WITHDRAWAL: Final[Mapping[str, Writer]] = {
    "index": _number,
    "validator_index": _number,
    "address": raw,
    "amount": _number,
}
