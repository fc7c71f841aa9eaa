"""State delta of a block, from a node that traces and proves (``#state=yes``).

Rules:

1. A trace is a hint: it omits withdrawals, system contracts and rewards. A published delta is complete and proven by
   the state roots of the block and its parent, else the block is refused (:mod:`cardinal_ethereum.checks.state`). A
   second attempt includes what transactions only read (:mod:`.evidence`).
2. A node that cannot trace or prove is refused with its own message: a stream with deltas has one for each block.
3. The delta of the first block is its complete state (:mod:`.genesis`).
"""

from __future__ import annotations

from typing import Final

from cardinal.errors import ApplicationError, IntegrityError, NodeAnswerError, NodeUnreachableError
from cardinal_ethereum import StateDelta, state_delta
from cardinal_ethereum.checks.trie import EMPTY_ROOT
from cardinal_ethereum.feed.chain.blocks import ChainMovedError, Evidence, Fetched
from cardinal_ethereum.feed.chain.fetch import BlockFetcher
from cardinal_ethereum.feed.settings import FeedSettings
from cardinal_ethereum.from_rpc.block import EncodedBlock

from .evidence import evidence
from .genesis import first_state

_NO_STATE: Final = f"0x{EMPTY_ROOT.hex()}"


async def delta_of(
    fetcher: BlockFetcher, written: EncodedBlock, fetched: Fetched, settings: FeedSettings, chain_id: int
) -> StateDelta:
    """Make the delta of a verified block.

    Arguments:
        fetcher: fetcher of the node that returned the block.
        written: the encoded block.
        fetched: the fetched block, perhaps with evidence.
        settings: names the genesis file.
        chain_id: chain id in the paths.

    Raises:
        ChainMovedError: the node no longer has the block or its parent.
        NodeAnswerError: the node does not trace or prove.
        IntegrityError: the evidence does not explain the state root.

    """
    try:
        if not written.number:
            return await first_state(fetcher, written, settings.genesis, chain_id)
        proof = fetched.evidence or await _requested(fetcher, written, fetched)
        try:
            return _proven(written, proof, chain_id)
        except IntegrityError:
            proof = await _requested(fetcher, written, fetched, read=True)
            return _proven(written, proof, chain_id)
    except ApplicationError as unfit:
        raise IntegrityError(
            f"the state delta of block {written.number} (0x{written.hash.hex()}) cannot be made: {unfit}",
            number=written.number,
            block_hash=written.hash,
            check="state",
        ) from unfit


async def _requested(fetcher: BlockFetcher, written: EncodedBlock, fetched: Fetched, *, read: bool = False) -> Evidence:
    try:
        return (await evidence(fetcher, [fetched], read=read))[0]
    except (NodeAnswerError, NodeUnreachableError) as refused:
        if await fetcher.header_by_hash(written.hash) is None:  # an orphan by now, for which some nodes return an error
            raise ChainMovedError(f"the node does not have block {written.number} any more") from refused
        if isinstance(refused, NodeUnreachableError):
            raise
        raise NodeAnswerError(
            f"state deltas need a node that traces blocks and proves accounts: {refused}", code=refused.code
        ) from refused


def _proven(written: EncodedBlock, proof: Evidence, chain_id: int) -> StateDelta:
    try:
        return state_delta(proof.traces, proof.proofs, block=written, parent=proof.parent, chain_id=chain_id)
    except IntegrityError as unproven:
        if proof.parent.state_root != _NO_STATE:
            raise
        raise IntegrityError(
            f"the state root of block {written.number - 1} is empty, but block {written.number} changed more than its "
            f"evidence explains, as on development nodes: start above it (--start {written.number + 1}), or publish "
            "without state",
            number=written.number,
            block_hash=written.hash,
            check="state",
        ) from unproven
