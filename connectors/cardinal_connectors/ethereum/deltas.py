"""What a block did to the state, from a node that traces and proves (``#state=yes``).

Rules:

1. A trace is a hint. It leaves out withdrawals, system contracts and rewards; what is published is proven by the state
   roots of the block and its parent, and complete, or the block is refused (:mod:`cardinal.apps.evm.state`).
2. A node that cannot trace or prove is refused with its own words: a stream with deltas has one for each block.
3. The first block has none: its state is the chain's genesis.
"""

from __future__ import annotations

from typing import Any, Final

from cardinal.apps.evm import StateDelta, state_delta, touched
from cardinal.apps.evm.encoded import EncodedBlock
from cardinal.apps.evm.rpc import RpcHeader
from cardinal.errors import ApplicationError, IntegrityError, NodeAnswerError

from .fetch import BlockFetcher
from .walk import ChainMovedError

TRACER: Final = {"tracer": "prestateTracer", "tracerConfig": {"diffMode": True}}


_BRIEF: Final = (False,)
"""The parameter that asks for a block without its transactions."""


async def delta_of(
    fetcher: BlockFetcher, written: EncodedBlock, uncles: list[RpcHeader], chain_id: int
) -> StateDelta | None:
    """The delta of a block that passed its checks; None for the first block.

    Raises:
        ChainMovedError: the node does not have the block, or its parent, any more.
        NodeAnswerError: the node does not trace or prove.
        IntegrityError: what the node said does not explain the state root.

    """
    if not written.number:
        return None
    try:
        return await _delta(fetcher, written, uncles, chain_id)
    except NodeAnswerError as refused:
        if await fetcher.header_by_hash(written.hash) is None:  # an orphan by now, of which some nodes say an error
            raise ChainMovedError(f"The node does not have block {written.number} any more.") from refused
        raise NodeAnswerError(
            f"State deltas need a node that traces blocks and proves accounts: {refused}", code=refused.code
        ) from refused
    except ApplicationError as unfit:
        raise IntegrityError(
            f"The state delta of block {written.number} (0x{written.hash.hex()}) cannot be made: {unfit}.",
            number=written.number,
            block_hash=written.hash,
            check="state",
        ) from unfit


async def _delta(fetcher: BlockFetcher, written: EncodedBlock, uncles: list[RpcHeader], chain_id: int) -> StateDelta:
    name, parent_name = f"0x{written.hash.hex()}", written.shown.parent_hash
    traces = await fetcher.call(list[Any], "debug_traceBlockByHash", name, TRACER)
    parent = await fetcher.call(RpcHeader, "eth_getBlockByHash", parent_name, *_BRIEF)
    if traces is None or parent is None:
        raise ChainMovedError(f"The node does not have block {written.number} ({name}) with its parent any more.")
    wanted, at = touched(traces, written, uncles), (parent_name, name)
    proofs = await fetcher.calls(
        [("eth_getProof", (address, slots, block)) for address, slots in wanted.items() for block in at]
    )
    shown: Any = parent  # a structure is taken as well as a mapping
    return state_delta(traces, proofs, block=written, parent=shown, chain_id=chain_id)
