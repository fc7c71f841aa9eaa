"""Encoding of receipts and logs from JSON-RPC: the consensus form, under the header's root, and the stream's forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cardinal_ethereum import rlp
from cardinal_ethereum.bloom import BLOOM_SIZE, bloom_bits
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.transaction_types import CELO_2, DEPOSIT, LEGACY, WITH_ACCOUNT_NONCE
from cardinal_ethereum.rlp import list_head
from cardinal_ethereum.rlp.cache import Memo
from cardinal_ethereum.rlp.hex_text import (
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

_BLOOM_HEAD: Final = rlp.string_head[BLOOM_SIZE]
_NO_CONTRACT: Final = rlp.encode_bytes(bytes(20))
_NOTHING: Final = rlp.encode_bytes(b"")
_ONE_BYTE_TEXT: Final = 4
_MOST_TOPICS: Final = 4


def encode_log(log: RpcLog | JsonObject) -> bytes:
    """RLP of a log (address, topics, data), in its receipt and on the stream."""
    rpc = read(RpcLog, log)
    with hexadecimal("a log"):
        return to_bytes(_log(rpc))


def write_logs(receipts: Sequence[RpcReceipt]) -> list[list[bytes]]:
    """RLP of the logs of each receipt, within :func:`.structures.hexadecimal`."""
    written, at = to_parts([_log(log) for receipt in receipts for log in receipt.logs]), 0
    logs = []
    for receipt in receipts:
        end = at + len(receipt.logs)
        logs.append(written[at:end])
        at = end
    return logs


def _log(rpc: RpcLog) -> str:
    topics, address, text = rpc.topics, rpc.address, rpc.data
    frame, joined = _frames[len(topics), len(text)], "".join(topics)
    if frame and len(address) == ADDRESS_TEXT:
        head, listed, prefix, size, marks = frame
        # Every topic has 66 characters and starts with 0x.
        if len(joined) == size and joined[1::WORD_TEXT] == marks:
            return f"{head}{address[2:]}{listed}{joined.replace('0x', 'a0', len(topics))}{prefix}{text[2:]}"
    return wrap((data(address), wrap([data(topic) for topic in topics]), data(text)))


def _frame(counts: tuple[int, int]) -> tuple[str, str, str, int, str] | None:
    """RLP prefixes of a log by the number of its topics and the characters of its data.

    Returns:
        The prefixes of address, topics and data; the characters of all topics, and every 66th of them from the second
        on. None where the prefixes do not follow from the sizes alone.

    """
    topics, text = counts
    own = (text >> 1) - 1
    if topics > _MOST_TOPICS or text == _ONE_BYTE_TEXT or text % 2 or own < 0:
        return None
    listed, prefix = list_prefix[33 * topics], string_prefix[own]
    size = 21 + (len(listed) >> 1) + 33 * topics + (len(prefix) >> 1) + own
    return f"{list_prefix[size]}94", listed, prefix, WORD_TEXT * topics, "x" * topics


_frames: Final = Memo(_frame, maxsize=4096)


def write_blooms(receipts: Iterable[RpcReceipt]) -> tuple[list[bytes], int | None]:
    """RLP of each receipt's bloom, within :func:`.structures.hexadecimal`.

    Returns:
        The blooms, and the union of their bits; None instead of the union where a bloom does not match its logs.

    """
    written: list[bytes] = []
    whole, mismatch = 0, False
    for receipt in receipts:
        bits = bloom_of(receipt.logs)
        text, bloom = _blooms[bits]
        if receipt.logs_bloom != text:
            claimed = rlp.encode_bytes(raw(receipt.logs_bloom))
            mismatch = mismatch or claimed != bloom  # case differences are no lie
            bloom = claimed
        written.append(bloom)
        whole |= bits
    return written, None if mismatch else whole


def _bloom(bits: int) -> tuple[str, bytes]:
    """A bloom as hexadecimal text, and its RLP."""
    own = bits.to_bytes(BLOOM_SIZE, "big")
    return f"0x{own.hex()}", _BLOOM_HEAD + own


_blooms: Final = Memo(_bloom, maxsize=512)
"""Cached: a third of mainnet's receipts have no logs, and many others equal ones."""


def encode_receipt(receipt: RpcReceipt | JsonObject) -> bytes:
    """Consensus form of a receipt: post-state root (before Byzantium) or status, gas, bloom and logs."""
    rpc = read(RpcReceipt, receipt)
    with hexadecimal("a receipt"):
        return write_receipt(rpc, to_bytes(data(rpc.logs_bloom)), write_logs((rpc,))[0])


def write_receipt(rpc: RpcReceipt, bloom: bytes, logs: Sequence[bytes]) -> bytes:
    """Like :func:`encode_receipt`, with its bloom and logs already written, within :func:`.structures.hexadecimal`.

    Only 32 bytes are a post-state root: a shorter one, such as ``0x01``, would encode like a status.
    """
    root = rpc.root
    outcome = to_bytes(data(root)) if root and len(root) == WORD_TEXT else number[rpc.status]
    listed = b"".join(logs)
    body = b"".join((outcome, number[rpc.cumulative_gas_used], bloom, list_head[len(listed)], listed))
    if rpc.type == "0x0" or not rpc.type:
        return list_head[len(body)] + body
    kind = int(rpc.type, 16)
    if kind == LEGACY:
        return list_head[len(body)] + body
    if kind == DEPOSIT and rpc.deposit_receipt_version is not None:
        # Nodes return the nonce before Canyon too, when no root covered it: the version decides (OP Stack, deposits).
        body += number[rpc.deposit_nonce] + number[rpc.deposit_receipt_version]
    elif kind == CELO_2 and rpc.base_fee is not None:
        body += number[rpc.base_fee]
    return bytes((kind,)) + list_head[len(body)] + body


def write_receipt_meta(rpc: RpcReceipt, bloom: bytes, log_offset: int, contract: bytes | None) -> bytes:
    """Stream form of a receipt, within :func:`.structures.hexadecimal`.

    It is [contract, cumulative gas, gas, bloom, status, number of logs, index of the first log (0 without logs)].
    A receipt with a post-state root has no status, even where the node returns one: no root covers it.

    Arguments:
        rpc: the receipt.
        bloom: RLP of its bloom.
        log_offset: number of logs before it in the block.
        contract: result of :func:`published_contract`.

    """
    logs, status, root = len(rpc.logs), rpc.status, rpc.root
    body = b"".join(
        (
            _NO_CONTRACT if contract is None else rlp.encode_bytes(contract),
            number[rpc.cumulative_gas_used],
            number[rpc.gas_used],
            bloom,
            _NOTHING if not status or (root and len(root) == WORD_TEXT) else number[status],
            _count[logs],
            _count[log_offset if logs else 0],
        )
    )
    return list_head[len(body)] + body


_count: Final = Memo(rlp.encode_int, maxsize=8192)


def published_contract(transaction: RpcTransaction, receipt: RpcReceipt) -> bytes | None:
    """Contract address on the stream, as claimed by the node; within :func:`.structures.hexadecimal`.

    Nodes differ for a failed creation: where the receipt names no contract, the address is computed. None where the
    address does not follow from bytes under a root: in a transaction without its sender's account nonce.
    """
    if (nonce := creation_nonce(transaction, receipt)) is None:
        return None
    if receipt.contract_address:
        return raw(receipt.contract_address)
    if transaction.to or not transaction.from_:
        return None
    return created_contract(transaction.from_, nonce)


def creation_nonce(transaction: RpcTransaction, receipt: RpcReceipt) -> str | None:
    """Nonce for a creation's address, if a root covers it: in the transaction, or in a deposit's receipt (Canyon)."""
    kind = int(transaction.type or "0x0", 16)
    if kind in WITH_ACCOUNT_NONCE:
        return transaction.nonce
    return receipt.deposit_nonce if kind == DEPOSIT and receipt.deposit_receipt_version is not None else None


def created_contract(sender: str, nonce: str) -> bytes:
    """Address (20 bytes) of the contract that a transaction without ``to`` creates (yellow paper, 7).

    The reference publishes it also where the creation failed; some nodes return null there.
    """
    return keccak(to_bytes(wrap((data(sender), quantity[nonce]))))[12:]


def logs_bloom(logs: Iterable[RpcLog | JsonObject]) -> bytes:
    """Bloom filter of 2048 bits over addresses and topics of logs (yellow paper, 4.4.1)."""
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
    """Three bits of an address or topic."""
    if len(text) not in (ADDRESS_TEXT, WORD_TEXT):
        raise ValueError(f"{text[:20]!r}… is neither an address of 20 bytes nor a topic of 32")
    return bloom_bits(to_bytes(text[2:]))


_bits: Final = Memo(_bits_of, maxsize=8192)
"""Cached: most addresses and topics repeat in the same block or soon after."""
