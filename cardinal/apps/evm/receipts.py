"""Receipts and logs from JSON-RPC: the consensus form, whose root the header holds, and the stream's own forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from . import rlp
from .jsonrpc import JsonObject, data, minimal, to_minimal
from .keccak import keccak
from .transactions import LEGACY, transaction_type

BLOOM_SIZE: Final = 256
_NO_CONTRACT: Final = bytes(20)


def log_fields(log: JsonObject) -> list[rlp.Item]:
    """Address, topics and data."""
    return [data(log, "address"), [bytes.fromhex(topic[2:]) for topic in log["topics"]], data(log, "data")]


def encode_log(log: JsonObject) -> bytes:
    """The RLP of a log, as the stream carries it."""
    return rlp.encode(log_fields(log))


def encode_receipt(receipt: JsonObject) -> bytes:
    """The consensus form: post-state root (before Byzantium) or status, gas, bloom and logs."""
    outcome = data(receipt, "root") if receipt.get("root") else minimal(receipt, "status")
    body = rlp.encode(
        [
            outcome,
            minimal(receipt, "cumulativeGasUsed"),
            data(receipt, "logsBloom"),
            [log_fields(log) for log in receipt["logs"]],
        ]
    )
    kind = transaction_type(receipt)
    return body if kind == LEGACY else bytes((kind,)) + body


def encode_receipt_meta(receipt: JsonObject, log_offset: int) -> bytes:
    """The stream's form of a receipt.

    It is [contract, cumulative gas, gas, bloom, status, number of logs, index of the first log (0 without logs)].
    """
    contract = data(receipt, "contractAddress") if receipt.get("contractAddress") else _NO_CONTRACT
    status = minimal(receipt, "status") if receipt.get("status") is not None else b""
    return rlp.encode(
        [
            contract,
            minimal(receipt, "cumulativeGasUsed"),
            minimal(receipt, "gasUsed"),
            data(receipt, "logsBloom"),
            status,
            to_minimal(len(receipt["logs"])),
            to_minimal(log_offset if receipt["logs"] else 0),
        ]
    )


def logs_bloom(logs: Iterable[JsonObject]) -> bytes:
    """The 2048-bit bloom filter over addresses and topics of logs (yellow paper, 4.4.1)."""
    bits = 0
    for log in logs:
        for value in (log["address"], *log["topics"]):
            hashed = keccak(bytes.fromhex(value[2:]))
            for at in (0, 2, 4):
                bits |= 1 << (int.from_bytes(hashed[at : at + 2], "big") & 2047)
    return bits.to_bytes(BLOOM_SIZE, "big")
