"""Expected entries of a payload, recomputed independently from a node's responses."""

from __future__ import annotations

from typing import Any, Protocol

from ethereum_blocks import keccak, minimal, raw, rlp

from cardinal.protocols.streams.payload import Payload

MERGED_AT_GENESIS = b"\x01"
"""The reference's total difficulty of a chain without presets whose node says zero."""


class Asked(Protocol):
    """A node that answers."""

    async def ask(self, method: str, *params: object) -> Any: ...  # noqa: ANN401 - JSON


async def assert_values_recompute(node: Asked, payload: Payload, block: dict[str, Any], chain_id: int) -> None:
    """Keys are those that the block calls for; values are hashed, or encoded from the node's answers anew."""
    receipts = await node.ask("eth_getBlockReceipts", block["hash"])
    root = f"c/{chain_id:x}"
    own = f"{root}/b/{block['hash'][2:]}"
    values = dict(payload.updates)
    assert keccak(values.pop(f"{own}/h")) == raw(block["hash"]) == payload.hash
    assert values.pop(f"{root}/n/{int(block['number'], 16):x}") == raw(block["hash"])
    assert values.pop(f"{own}/d") == MERGED_AT_GENESIS
    if block.get("withdrawals"):
        assert values.pop(f"{own}/w") == rlp([_withdrawal(one) for one in block["withdrawals"]])
    offset = 0
    for index, (transaction, receipt) in enumerate(zip(block["transactions"], receipts, strict=True)):
        assert keccak(values.pop(f"{own}/t/{index:x}")) == raw(transaction["hash"])
        numbers = [minimal(int(receipt[name], 16)) for name in ("cumulativeGasUsed", "gasUsed")]
        contract = raw(receipt["contractAddress"] or "0x" + "00" * 20)
        status = minimal(int(receipt["status"], 16))
        logs = receipt["logs"]
        counts = [minimal(len(logs)), minimal(offset if logs else 0)]
        meta = rlp([contract, *numbers, raw(receipt["logsBloom"]), status, *counts])
        assert values.pop(f"{own}/r/{index:x}") == meta
        for log in logs:
            encoded = rlp([raw(log["address"]), [raw(topic) for topic in log["topics"]], raw(log["data"])])
            assert values.pop(f"{own}/l/{index:x}/{int(log['logIndex'], 16):x}") == encoded
        offset += len(logs)
    assert set(values) <= {f"{root}/n/safe", f"{root}/n/finalized"}
    if payload.number > 0:
        assert len(values) == 2


def _withdrawal(one: dict[str, str]) -> list[Any]:
    numbers = [minimal(int(one[name], 16)) for name in ("index", "validatorIndex")]
    return [*numbers, raw(one["address"]), minimal(int(one["amount"], 16))]
