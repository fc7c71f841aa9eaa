"""Receipts and logs from JSON-RPC: the consensus form, whose root the header holds, and the stream's own forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from . import rlp
from .hexrlp import data, list_prefix, optional_quantity, quantity, string_prefix, to_bytes, wrap
from .keccak import keccak, keccak_256
from .rpc import JsonObject, RpcLog, RpcReceipt, RpcTransaction, hexadecimal, raw, read
from .transactions import DEPOSIT, LEGACY

BLOOM_SIZE: Final = 256
NO_BLOOM: Final = "0x" + bytes(BLOOM_SIZE).hex()
"""The bloom of no logs, as JSON-RPC shows it."""

_NO_CONTRACT: Final = bytes(20).hex()
_TOPIC_TEXT: Final = 66
_ADDRESS_TEXT: Final = 42
_ONE_BYTE_TEXT: Final = 4
_TOPICS: Final = tuple(
    (list_prefix(33 * count), 21 + len(list_prefix(33 * count)) // 2 + 33 * count) for count in range(5)
)
"""For every number of topics: what stands before their list, and how many bytes address and topics take together."""


def encode_log(log: RpcLog | JsonObject) -> bytes:
    """The RLP of a log (address, topics, data): as its receipt holds it, and as the stream carries it."""
    shown = read(RpcLog, log)
    with hexadecimal("a log"):
        return write_log(shown)


def write_log(shown: RpcLog) -> bytes:
    """Like :func:`encode_log`, within :func:`.rpc.hexadecimal`."""
    topics, address, text = shown.topics, shown.address, shown.data
    count, joined = len(topics), "".join(topics)
    if (
        count < len(_TOPICS)
        and len(joined) == count * _TOPIC_TEXT
        and joined[1::_TOPIC_TEXT] == "x" * count  # where every topic has its size, and none the next one's digits
        and len(address) == _ADDRESS_TEXT
        and len(text) != _ONE_BYTE_TEXT
        and not len(text) % 2
    ):
        # All sizes are known: one text with RLP's prefixes in it, read at once.
        listed, size = _TOPICS[count]
        own = len(text) // 2 - 1
        prefix = string_prefix(own)
        whole = list_prefix(size + own + len(prefix) // 2)
        return to_bytes(f"{whole}94{address[2:]}{listed}{joined.replace('0x', 'a0')}{prefix}{text[2:]}")
    return to_bytes(wrap((data(address), wrap([data(topic) for topic in topics]), data(text))))


def encode_receipt(receipt: RpcReceipt | JsonObject) -> bytes:
    """The consensus form: post-state root (before Byzantium) or status, gas, bloom and logs."""
    shown = read(RpcReceipt, receipt)
    with hexadecimal("a receipt"):
        return write_receipt(shown, [write_log(log) for log in shown.logs])


def write_receipt(shown: RpcReceipt, logs: Sequence[bytes]) -> bytes:
    """Like :func:`encode_receipt`, with its logs already written, within :func:`.rpc.hexadecimal`."""
    outcome = data(shown.root) if shown.root else quantity(shown.status)
    fields = to_bytes(f"{outcome}{quantity(shown.cumulative_gas_used)}{data(shown.logs_bloom)}")
    parts = [fields, rlp.wrap(logs)]
    kind = int(shown.type, 16) if shown.type else LEGACY
    if kind == DEPOSIT and shown.deposit_receipt_version is not None:
        # Nodes say the nonce before Canyon too, when no root covered it: the version tells (OP Stack, deposits).
        parts.append(to_bytes(f"{quantity(shown.deposit_nonce)}{quantity(shown.deposit_receipt_version)}"))
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
    logs = len(shown.logs)
    body = (
        f"94{_NO_CONTRACT if contract is None else contract.hex()}{quantity(shown.cumulative_gas_used)}"
        f"{quantity(shown.gas_used)}{data(shown.logs_bloom)}{optional_quantity(shown.status)}"
        f"{_count(logs)}{_count(log_offset if logs else 0)}"
    )
    return to_bytes(list_prefix(len(body) // 2) + body)


@lru_cache(maxsize=8192)
def _count(number: int) -> str:
    return rlp.encode_int(number).hex()


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
    return keccak(to_bytes(wrap((data(sender), quantity(nonce)))))[12:]


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
        return self.of_all((log,))

    def of_all(self, logs: Iterable[RpcLog]) -> int:
        """The bits of logs together."""
        bits, known = 0, self._bits
        for text in {text for log in logs for text in (log.address, *log.topics)}:
            if (own := known.get(text)) is None:
                hashed = keccak_256(bytes.fromhex(text[2:])).digest()
                first, second, third = (
                    hashed[0] << 8 | hashed[1],
                    hashed[2] << 8 | hashed[3],
                    hashed[4] << 8 | hashed[5],
                )
                own = known[text] = _BIT[first & 2047] | _BIT[second & 2047] | _BIT[third & 2047]
            bits |= own
        return bits


_BIT: Final = tuple(1 << place for place in range(8 * BLOOM_SIZE))
