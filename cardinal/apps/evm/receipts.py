"""Receipts and logs from JSON-RPC: the consensus form, whose root the header holds, and the stream's own forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from . import rlp
from .keccak import keccak
from .rpc import (
    JsonObject,
    RpcLog,
    RpcReceipt,
    RpcTransaction,
    data,
    hexadecimal,
    optional_quantity,
    quantity,
    raw,
    read,
)
from .transactions import DEPOSIT, LEGACY

BLOOM_SIZE: Final = 256
_NO_CONTRACT: Final = bytes(20)


def encode_log(log: RpcLog | JsonObject) -> bytes:
    """The RLP of a log (address, topics, data): as its receipt holds it, and as the stream carries it."""
    shown = read(RpcLog, log)
    with hexadecimal("a log"):
        return write_log(shown)


def write_log(shown: RpcLog) -> bytes:
    """Like :func:`encode_log`, within :func:`.rpc.hexadecimal`."""
    return rlp.wrap((data(shown.address), rlp.wrap([data(topic) for topic in shown.topics]), data(shown.data)))


def encode_receipt(receipt: RpcReceipt | JsonObject) -> bytes:
    """The consensus form: post-state root (before Byzantium) or status, gas, bloom and logs."""
    shown = read(RpcReceipt, receipt)
    with hexadecimal("a receipt"):
        return write_receipt(shown, [write_log(log) for log in shown.logs])


def write_receipt(shown: RpcReceipt, logs: Sequence[bytes]) -> bytes:
    """Like :func:`encode_receipt`, with its logs already written, within :func:`.rpc.hexadecimal`."""
    outcome = data(shown.root) if shown.root else quantity(shown.status)
    parts = [outcome, quantity(shown.cumulative_gas_used), data(shown.logs_bloom), rlp.wrap(logs)]
    kind = int(shown.type, 16) if shown.type else LEGACY
    if kind == DEPOSIT and shown.deposit_receipt_version is not None:
        # Nodes say the nonce before Canyon too, when no root covered it: the version tells (OP Stack, deposits).
        parts += [quantity(shown.deposit_nonce), quantity(shown.deposit_receipt_version)]
    body = rlp.wrap(parts)
    return body if kind == LEGACY else bytes((kind,)) + body


def write_receipt_meta(shown: RpcReceipt, log_offset: int, contract: bytes | None) -> bytes:
    """The stream's form of a receipt, within :func:`.rpc.hexadecimal`.

    It is [contract, cumulative gas, gas, bloom, status, number of logs, index of the first log (0 without logs)].

    Arguments:
        shown: as JSON-RPC shows it.
        log_offset: how many logs the block has before it.
        contract: what :func:`published_contract` says.

    """
    return rlp.wrap(
        (
            rlp.encode_bytes(_NO_CONTRACT if contract is None else contract),
            quantity(shown.cumulative_gas_used),
            quantity(shown.gas_used),
            data(shown.logs_bloom),
            optional_quantity(shown.status),
            rlp.encode_int(len(shown.logs)),
            rlp.encode_int(log_offset if shown.logs else 0),
        )
    )


def published_contract(transaction: RpcTransaction, receipt: RpcReceipt) -> bytes | None:
    """The contract that the stream names for a transaction, by the node's word; within :func:`.rpc.hexadecimal`.

    Nodes differ in what they say of a creation that failed: where the receipt names none, the address is computed.
    """
    if receipt.contract_address:
        return raw(receipt.contract_address)
    if transaction.to or not transaction.from_:
        return None
    return created_contract(transaction.from_, creation_nonce(transaction, receipt))


def creation_nonce(transaction: RpcTransaction, receipt: RpcReceipt) -> str:
    """The nonce that a creation's address is made of: a deposit says its own in the receipt only."""
    return receipt.deposit_nonce or transaction.nonce


def created_contract(sender: str, nonce: str) -> bytes:
    """The address (20 bytes) at which a transaction without ``to`` creates (yellow paper, 7).

    The reference names it also where the creation failed; nodes differ there, some say null.
    """
    return keccak(rlp.wrap((data(sender), quantity(nonce))))[12:]


def logs_bloom(logs: Iterable[RpcLog | JsonObject]) -> bytes:
    """The 2048-bit bloom filter over addresses and topics of logs (yellow paper, 4.4.1)."""
    bits, known = 0, Blooms()
    with hexadecimal("a log"):
        for log in logs:
            bits |= known.of(read(RpcLog, log))
    return bits.to_bytes(BLOOM_SIZE, "big")


class Blooms:
    """The bloom bits of logs; an address or topic that comes again in the same block is hashed once."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}

    def of(self, log: RpcLog) -> int:
        """The bits of one log, as a number of 2048 bits."""
        bits = self._value(log.address)
        for topic in log.topics:
            bits |= self._value(topic)
        return bits

    def _value(self, text: str) -> int:
        bits = self._bits.get(text)
        if bits is None:
            hashed = keccak(raw(text))
            places = (int.from_bytes(hashed[at : at + 2], "big") & 2047 for at in (0, 2, 4))
            bits = 0
            for place in places:
                bits |= 1 << place
            self._bits[text] = bits
        return bits
