"""Receipts and logs from JSON-RPC: the consensus form, whose root the header holds, and the stream's own forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cardinal.apps.evm import rlp
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.model.transaction import DEPOSIT, LEGACY
from cardinal.apps.evm.rlp import list_head
from cardinal.apps.evm.rlp.cache import Remembered
from cardinal.apps.evm.rlp.hex_text import (
    ADDRESS_TEXT,
    WORD_TEXT,
    data,
    list_prefix,
    number,
    quantity,
    string_prefix,
    to_bytes,
    to_parts,
    wrap,
)

from .structures import JsonObject, RpcLog, RpcReceipt, RpcTransaction, hexadecimal, raw, read

BLOOM_SIZE: Final = 256
_BLOOM_HEAD: Final = rlp.string_head[BLOOM_SIZE]
_NO_CONTRACT: Final = rlp.encode_bytes(bytes(20))
_NOTHING: Final = rlp.encode_bytes(b"")
_ONE_BYTE_TEXT: Final = 4
_MOST_TOPICS: Final = 4


def encode_log(log: RpcLog | JsonObject) -> bytes:
    """The RLP of a log (address, topics, data): as its receipt holds it, and as the stream carries it."""
    shown = read(RpcLog, log)
    with hexadecimal("a log"):
        return to_bytes(_log(shown))


def write_logs(receipts: Sequence[RpcReceipt]) -> list[list[bytes]]:
    """For each receipt the RLP of its logs, within :func:`.structures.hexadecimal`."""
    written, at = to_parts([_log(log) for receipt in receipts for log in receipt.logs]), 0
    logs = []
    for receipt in receipts:
        end = at + len(receipt.logs)
        logs.append(written[at:end])
        at = end
    return logs


def _log(shown: RpcLog) -> str:
    topics, address, text = shown.topics, shown.address, shown.data
    frame, joined = _frames[len(topics), len(text)], "".join(topics)
    if frame and len(address) == ADDRESS_TEXT:
        head, listed, prefix, size, marks = frame
        # Every topic has its size, and none the next one's digits.
        if len(joined) == size and joined[1::WORD_TEXT] == marks:
            return f"{head}{address[2:]}{listed}{joined.replace('0x', 'a0', len(topics))}{prefix}{text[2:]}"
    return wrap((data(address), wrap([data(topic) for topic in topics]), data(text)))


def _frame(counts: tuple[int, int]) -> tuple[str, str, str, int, str] | None:
    """What RLP puts between a log's texts, by the number of its topics and the characters of its data.

    Returns:
        What stands before the address, the topics and the data; the characters of the topics together, and what every
        66th of them from the second on are. None where more than the sizes has to be looked at.

    """
    topics, text = counts
    own = (text >> 1) - 1
    if topics > _MOST_TOPICS or text == _ONE_BYTE_TEXT or text % 2 or own < 0:
        return None
    listed, prefix = list_prefix[33 * topics], string_prefix[own]
    size = 21 + (len(listed) >> 1) + 33 * topics + (len(prefix) >> 1) + own
    return f"{list_prefix[size]}94", listed, prefix, WORD_TEXT * topics, "x" * topics


_frames: Final = Remembered(_frame, most=4096)


def write_blooms(receipts: Iterable[RpcReceipt]) -> tuple[list[bytes], int | None]:
    """The RLP of each receipt's bloom, within :func:`.structures.hexadecimal`.

    Returns:
        Beside it the bits of all of them together; None where one is not that of its receipt's logs.

    """
    written: list[bytes] = []
    whole, lies = 0, False
    for receipt in receipts:
        bits = bloom_of(receipt.logs)
        text, bloom = _blooms[bits]
        if receipt.logs_bloom != text:
            claimed = rlp.encode_bytes(raw(receipt.logs_bloom))
            lies = lies or claimed != bloom  # not so where only the capitals differ
            bloom = claimed
        written.append(bloom)
        whole |= bits
    return written, None if lies else whole


def _bloom(bits: int) -> tuple[str, bytes]:
    """A bloom as nodes show it, and its RLP."""
    own = bits.to_bytes(BLOOM_SIZE, "big")
    return f"0x{own.hex()}", _BLOOM_HEAD + own


_blooms: Final = Remembered(_bloom, most=512)
"""A third of mainnet's receipts have no logs, and others the same ones."""


def encode_receipt(receipt: RpcReceipt | JsonObject) -> bytes:
    """The consensus form: post-state root (before Byzantium) or status, gas, bloom and logs."""
    shown = read(RpcReceipt, receipt)
    with hexadecimal("a receipt"):
        return write_receipt(shown, to_bytes(data(shown.logs_bloom)), write_logs((shown,))[0])


def write_receipt(shown: RpcReceipt, bloom: bytes, logs: Sequence[bytes]) -> bytes:
    """Like :func:`encode_receipt`, with its bloom and logs already written, within :func:`.structures.hexadecimal`.

    Only 32 bytes are a post-state root. Anything shorter would be read as a status: ``0x01`` is in RLP what success is.
    """
    root = shown.root
    outcome = to_bytes(data(root)) if root and len(root) == WORD_TEXT else number[shown.status]
    listed = b"".join(logs)
    body = b"".join((outcome, number[shown.cumulative_gas_used], bloom, list_head[len(listed)], listed))
    if shown.type == "0x0" or not shown.type:
        return list_head[len(body)] + body
    kind = int(shown.type, 16)
    if kind == LEGACY:
        return list_head[len(body)] + body
    if kind == DEPOSIT and shown.deposit_receipt_version is not None:
        # Nodes say the nonce before Canyon too, when no root covered it: the version tells (OP Stack, deposits).
        body += number[shown.deposit_nonce] + number[shown.deposit_receipt_version]
    return bytes((kind,)) + list_head[len(body)] + body


def write_receipt_meta(shown: RpcReceipt, bloom: bytes, log_offset: int, contract: bytes | None) -> bytes:
    """The stream's form of a receipt, within :func:`.structures.hexadecimal`.

    It is [contract, cumulative gas, gas, bloom, status, number of logs, index of the first log (0 without logs)].
    Where a post-state root stands for the status, there is none, also where the node says one: nothing covers it.

    Arguments:
        shown: as JSON-RPC shows it.
        bloom: its RLP.
        log_offset: how many logs the block has before it.
        contract: what :func:`published_contract` says.

    """
    logs, status, root = len(shown.logs), shown.status, shown.root
    body = b"".join(
        (
            _NO_CONTRACT if contract is None else rlp.encode_bytes(contract),
            number[shown.cumulative_gas_used],
            number[shown.gas_used],
            bloom,
            _NOTHING if not status or (root and len(root) == WORD_TEXT) else number[status],
            _count[logs],
            _count[log_offset if logs else 0],
        )
    )
    return list_head[len(body)] + body


_count: Final = Remembered(rlp.encode_int, most=8192)


def published_contract(transaction: RpcTransaction, receipt: RpcReceipt) -> bytes | None:
    """The contract that the stream names for a transaction, by the node's word; within :func:`.structures.hexadecimal`.

    Nodes differ in what they say of a creation that failed: where the receipt names none, the address is computed.
    """
    if receipt.contract_address:
        return raw(receipt.contract_address)
    if transaction.to or not transaction.from_:
        return None
    return created_contract(transaction.from_, creation_nonce(transaction, receipt))


def creation_nonce(transaction: RpcTransaction, receipt: RpcReceipt) -> str:
    """The nonce that a creation's address is made of: a deposit, and nothing else, says its own in the receipt only."""
    deposited = receipt.deposit_nonce if int(transaction.type or "0x0", 16) == DEPOSIT else None
    return deposited or transaction.nonce


def created_contract(sender: str, nonce: str) -> bytes:
    """The address (20 bytes) at which a transaction without ``to`` creates (yellow paper, 7).

    The reference names it also where the creation failed; nodes differ there, some say null.
    """
    return keccak(to_bytes(wrap((data(sender), quantity[nonce]))))[12:]


def logs_bloom(logs: Iterable[RpcLog | JsonObject]) -> bytes:
    """The 2048-bit bloom filter over addresses and topics of logs (yellow paper, 4.4.1)."""
    with hexadecimal("a log"):
        return bloom_of([read(RpcLog, log) for log in logs]).to_bytes(BLOOM_SIZE, "big")


def bloom_of(logs: Iterable[RpcLog]) -> int:
    """Like :func:`logs_bloom`, as a number of 2048 bits, within :func:`.structures.hexadecimal`."""
    bits = 0
    for log in logs:
        bits |= _bits[log.address]
        for topic in log.topics:
            bits |= _bits[topic]
    return bits


def _bits_of(text: str) -> int:
    """The three bits of an address or topic."""
    if len(text) not in (ADDRESS_TEXT, WORD_TEXT):
        raise ValueError(f"{text[:20]!r}… is neither an address of 20 bytes nor a topic of 32")
    places = int.from_bytes(keccak(to_bytes(text[2:]))[:6], "big")
    return _BIT[places >> 32 & 2047] | _BIT[places >> 16 & 2047] | _BIT[places & 2047]


_bits: Final = Remembered(_bits_of, most=8192)
"""Most addresses and topics come again in the same block or soon after."""

_BIT: Final = tuple(1 << place for place in range(8 * BLOOM_SIZE))
