"""Payload of a block from JSON-RPC: the paths and values of ``connectors/cardinal_ethereum/docs/application.md``.

Rules:

1. The payload equals the reference producer's for the same block, entry by entry: any other entry changes the counts
   of the Batch, on which redundant producers must agree. So nothing depends on the node: withdrawals have an entry
   only where there are some, a creation's address is computed where a node does not return it, and after the merge the
   chain's final total difficulty counts, never a node's.
2. Where no total difficulty is known, weights count from the stream's origin, and there is no entry ``d``.
3. Incomplete blocks (missing receipts or uncles) are refused. Other checks: :mod:`cardinal_ethereum.checks.integrity`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from cardinal.errors import ApplicationError
from cardinal.protocols.streams.payload import Payload, SubBatch
from cardinal.protocols.streams.types import Finality
from cardinal_ethereum import rlp
from cardinal_ethereum.chains import Chain, chain_of
from cardinal_ethereum.model.state import StateDelta
from cardinal_ethereum.rlp import minimal_bytes
from cardinal_ethereum.weights import MERGED_AT_GENESIS, is_relative

from .block import EncodedBlock, checked_form, encode_block
from .receipts import published_contract, write_receipt_meta
from .structures import JsonObject, raw

_NUMBERS: Final = tuple(f"{number:x}" for number in range(4096))
"""Indexes as paths have them, of more transactions or logs than most blocks have."""


def payload_from_rpc(
    block: JsonObject,
    receipts: Sequence[JsonObject],
    *,
    chain_id: int,
    finality: Finality | None = None,
    state: StateDelta | Mapping[str, bytes] | None = None,
    uncles: Sequence[JsonObject] = (),
    total_difficulty: int | None = None,
    chain: Chain | None = None,
) -> Payload:
    """Make the payload of a block, equal to the reference producer's.

    Arguments:
        block: ``eth_getBlockByHash`` with full transactions, as a mapping or an :class:`.structures.RpcBlock`.
        receipts: ``eth_getBlockReceipts``, in order.
        chain_id: the chain's id.
        finality: the node's marks; after the merge both entries are always written, empty where unknown, and before
            it neither.
        state: result of ``state_delta``, or storage as path to value; sent as a sub batch. None announces no sub
            batch.
        uncles: headers of the block's uncles, in order.
        total_difficulty: replaces the block's ``totalDifficulty``, which most nodes no longer serve, and which is
            ignored after the merge; or a weight that counts from an origin (``weights.ORIGIN``).
        chain: parameters of the chain; default the preset of ``chain_id``.

    Raises:
        ApplicationError: a field or part is missing or has a wrong type; ``path`` names it.

    """
    chain = chain or chain_of(chain_id)
    encoded = encode_block(block, receipts, uncles, chain=chain)
    return payload_of(
        encoded, chain_id=chain_id, finality=finality, state=state, total_difficulty=total_difficulty, chain=chain
    )


def payload_of(
    block: EncodedBlock,
    *,
    chain_id: int,
    finality: Finality | None = None,
    state: StateDelta | Mapping[str, bytes] | None = None,
    total_difficulty: int | None = None,
    chain: Chain | None = None,
) -> Payload:
    """Like :func:`payload_from_rpc`, for a block that is encoded already, as ``verify`` returns it."""
    _whole(block)
    root = f"c/{chain_id:x}"
    prefix = f"{root}/b/{block.hash.hex()}"
    chain = chain or chain_of(chain_id)
    with checked_form(block, chain):
        total, merged = _total_difficulty(block, chain, total_difficulty)
        updates: dict[str, bytes] = {
            f"{prefix}/h": block.header,
            f"{root}/n/{block.number:x}": block.hash,
        }
        if not is_relative(total):
            updates[f"{prefix}/d"] = minimal_bytes(total)
        if block.withdrawals:
            updates[f"{prefix}/w"] = rlp.wrap(block.withdrawals)
        updates |= {f"{prefix}/u/{index:x}": uncle for index, uncle in enumerate(block.uncles)}
        below = f"{prefix}/t/"
        names = _numbers(len(block.transactions))
        updates |= zip([below + name for name in names], block.transactions, strict=True)
        _add_receipts(updates, prefix, block)
        parent = raw(block.rpc.parent_hash)
    if merged:
        marks = finality or Finality()
        updates[f"{root}/n/safe"] = minimal_bytes(marks.safe or 0)
        updates[f"{root}/n/finalized"] = minimal_bytes(marks.finalized or 0)
    sub_batches: dict[bytes, SubBatch | None] = {}
    delta = state if state is None or isinstance(state, StateDelta) else StateDelta(storage=state)
    if delta is not None:
        updates |= delta.updates
        if block.number:
            sub_batches[block.number.to_bytes(32, "big")] = SubBatch(f"{root}/s", dict(delta.storage))
        else:
            updates |= delta.storage  # the reference's id would be zero here, which is invalid
    weight = total + block.number if merged else total
    deletes = frozenset() if delta is None else delta.deletes
    return Payload(block.number, block.hash, parent, weight, updates, deletes, sub_batches)


def with_total(payload: Payload, total: int, chain_id: int) -> Payload:
    """The payload of a block with difficulty, with another total difficulty."""
    updates = dict(payload.updates)
    path = f"c/{chain_id:x}/b/{payload.hash.hex()}/d"
    updates.pop(path, None)
    if not is_relative(total):
        updates[path] = minimal_bytes(total)
    return replace(payload, weight=total, updates=updates)


def _whole(block: EncodedBlock) -> None:
    for what, have, due in (
        ("receipts", len(block.receipts), len(block.transactions)),
        ("uncles", len(block.uncles), len(block.rpc.uncles or ())),
    ):
        if have != due:
            raise ApplicationError(
                f"{have} {what} for block {block.number} (0x{block.hash.hex()}), which has {due}: pass all of them",
                path=what,
            )


def _add_receipts(updates: dict[str, bytes], prefix: str, block: EncodedBlock) -> None:
    """Add receipts and logs."""
    offset = 0
    receipts, topics = f"{prefix}/r/", f"{prefix}/l/"
    names, places = _numbers(len(block.receipts)), _numbers(sum(map(len, block.logs)))
    parts = zip(names, block.rpc.transactions, block.receipts, block.blooms, block.logs, strict=True)
    for index, transaction, receipt, bloom, logs in parts:
        called = transaction.to and not receipt.contract_address
        contract = None if called else published_contract(transaction, receipt)
        updates[receipts + index] = write_receipt_meta(receipt, bloom, offset, contract)
        for log in logs:
            updates[f"{topics}{index}/{places[offset]}"] = log
            offset += 1
    if block.derived is not None:
        last = f"{len(block.receipts):x}"
        updates[f"{prefix}/br/{last}"] = raw(block.derived.logs_bloom)
        updates |= {f"{prefix}/bl/{last}/{offset + at:x}": log for at, log in enumerate(block.derived_logs)}


def _numbers(count: int) -> Sequence[str]:
    """The numbers below ``count`` as paths have them."""
    return _NUMBERS[:count] if count <= len(_NUMBERS) else [f"{number:x}" for number in range(count)]


def _total_difficulty(block: EncodedBlock, chain: Chain, given: int | None) -> tuple[int, bool]:
    """Total difficulty of a block, and whether it comes after the merge (has no difficulty).

    The genesis block's difficulty is its own total.
    """
    difficulty = int(block.rpc.difficulty, 16)
    if not difficulty:
        totals = (given, chain.final_total_difficulty, MERGED_AT_GENESIS)
        return next(total for total in totals if total is not None), True
    served = int(block.rpc.total_difficulty or "0x0", 16)
    if given is None and not served and block.number:
        raise ApplicationError(
            "the node does not serve totalDifficulty for a block of proof of work; "
            "add it to the block, or use a node that serves it",
            path="totalDifficulty",
        )
    if given is None and is_relative(served):
        raise ApplicationError("the node's totalDifficulty is above that of any chain", path="totalDifficulty")
    return (served or difficulty) if given is None else given, False
