"""Comparison of a payload with the entries that are recomputed from a node's responses."""

from __future__ import annotations

from typing import Any, Protocol

from cardinal.protocols.streams.payload import Payload
from evm_values import values_of
from recorded_blocks import MERGED_AT_GENESIS


class Asked(Protocol):
    """A node that answers."""

    async def ask(self, method: str, *params: object) -> Any: ...  # noqa: ANN401 - JSON


async def assert_values_recompute(node: Asked, payload: Payload, block: dict[str, Any], chain_id: int) -> None:
    """The payload has the entries that the block calls for, and finality marks of any value."""
    receipts = await node.ask("eth_getBlockReceipts", block["hash"])
    expected = values_of(block, receipts, chain_id=chain_id, total=MERGED_AT_GENESIS)
    marks = {f"c/{chain_id:x}/n/{name}" for name in ("safe", "finalized")}
    assert payload.updates.keys() == expected.keys()
    assert {path: payload.updates[path] for path in expected.keys() - marks} == {
        path: value for path, value in expected.items() if path not in marks
    }
    assert "0x" + payload.hash.hex() == block["hash"]
