"""A block from JSON-RPC to the paths and values of the stream (facts, EVM application layer).

It writes down what the node said, and checks nothing: that is :mod:`.integrity`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cardinal.errors import ApplicationError
from cardinal.protocols.streams.payload import Payload, SubBatch
from cardinal.protocols.streams.types import Finality

from . import rlp
from .chains import MERGED_AT_GENESIS, chain_of
from .header import encode_header, withdrawal_fields
from .jsonrpc import JsonObject, data, number, to_minimal
from .receipts import encode_log, encode_receipt_meta
from .transactions import encode_transaction


def payload_from_rpc(
    block: JsonObject,
    receipts: Sequence[JsonObject],
    *,
    chain_id: int,
    finality: Finality | None = None,
    state: Mapping[str, bytes] | None = None,
    uncles: Sequence[JsonObject] = (),
) -> Payload:
    """The payload of a block, equal to the reference's for the same block.

    Arguments:
        block: ``eth_getBlockByHash`` with full transactions. ``totalDifficulty`` must be there before the merge.
        receipts: ``eth_getBlockReceipts``, in order.
        chain_id: the chain's id.
        finality: the node's marks; after the merge both entries are always written, empty where not known.
        state: path to value of accounts and storage, sent as a sub batch; None announces no such sub batch.
        uncles: the headers of the block's uncles, in order.

    Raises:
        ApplicationError: a field is missing or no value of its kind; ``path`` names it.

    """
    at, block_hash = number(block, "number"), data(block, "hash")
    root = f"c/{chain_id:x}"
    prefix = f"{root}/b/{block_hash.hex()}"
    total, merged = _total_difficulty(block, chain_id)
    updates: dict[str, bytes] = {
        f"{prefix}/h": encode_header(block),
        f"{prefix}/d": to_minimal(total),
        f"{root}/n/{at:x}": block_hash,
    }
    if block.get("withdrawals") is not None:
        updates[f"{prefix}/w"] = rlp.encode([withdrawal_fields(withdrawal) for withdrawal in block["withdrawals"]])
    for index, uncle in enumerate(uncles):
        updates[f"{prefix}/u/{index:x}"] = encode_header(uncle)
    for index, transaction in enumerate(block["transactions"]):
        updates[f"{prefix}/t/{index:x}"] = encode_transaction(transaction)
    updates |= _receipt_values(prefix, receipts)
    if merged:
        marks = finality or Finality()
        updates[f"{root}/n/safe"] = to_minimal(marks.safe or 0)
        updates[f"{root}/n/finalized"] = to_minimal(marks.finalized or 0)
    sub_batches: dict[bytes, SubBatch | None] = {}
    if state is not None:
        if at:
            sub_batches[at.to_bytes(32, "big")] = SubBatch(f"{root}/s", dict(state))
        else:
            updates |= state  # the reference's id would be zero here, which is no id
    weight = total + at if merged else total
    return Payload(at, block_hash, data(block, "parentHash"), weight, updates, frozenset(), sub_batches)


def _receipt_values(prefix: str, receipts: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    values: dict[str, bytes] = {}
    offset = 0
    for index, receipt in enumerate(receipts):
        values[f"{prefix}/r/{index:x}"] = encode_receipt_meta(receipt, offset)
        for log in receipt["logs"]:
            values[f"{prefix}/l/{index:x}/{offset:x}"] = encode_log(log)
            offset += 1
    return values


def _total_difficulty(block: JsonObject, chain_id: int) -> tuple[int, bool]:
    """The block's total difficulty, and whether proof of work has ended there.

    A block without difficulty comes after the merge; the genesis block's difficulty is its own total.
    """
    difficulty = number(block, "difficulty")
    served = number(block, "totalDifficulty") if block.get("totalDifficulty") is not None else 0
    if difficulty:
        if not served and number(block, "number"):
            raise ApplicationError(
                "the node does not serve totalDifficulty for a block of proof of work; "
                "give it in the block, or use a node that does",
                path="totalDifficulty",
            )
        return served or difficulty, False
    if served:
        return served, True
    preset = chain_of(chain_id).final_total_difficulty
    return (MERGED_AT_GENESIS if preset is None else preset), True
