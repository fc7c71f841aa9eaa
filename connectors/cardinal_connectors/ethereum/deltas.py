"""What a block did to the state, from a node that traces and proves (``#state=yes``).

Rules:

1. A trace is a hint. It leaves out withdrawals, system contracts and rewards; what is published is proven by the state
   roots of the block and its parent, and complete, or the block is refused (:mod:`cardinal.apps.evm.checks.state`). Before
   that, what its transactions only read is looked at, too (:mod:`.evidence`).
2. A node that cannot trace or prove is refused with its own words: a stream with deltas has one for each block.
3. The first block did all of the state that it has (:mod:`.genesis`).
"""

from __future__ import annotations

from typing import Final

from cardinal.apps.evm import StateDelta, state_delta
from cardinal.apps.evm.checks.trie import EMPTY_ROOT
from cardinal.apps.evm.rpc.block import EncodedBlock
from cardinal.errors import ApplicationError, IntegrityError, NodeAnswerError

from .evidence import Evidence, evidence
from .fetch import BlockFetcher, Fetched
from .genesis import first_state
from .settings import FeedSettings
from .walk import ChainMovedError

_NO_STATE: Final = f"0x{EMPTY_ROOT.hex()}"


async def delta_of(
    fetcher: BlockFetcher, written: EncodedBlock, fetched: Fetched, settings: FeedSettings, chain_id: int
) -> StateDelta:
    """The delta of a block that passed its checks.

    Arguments:
        fetcher: the node that gave the block.
        written: the block.
        fetched: the same as it came, with what was asked for together with it.
        settings: where the first block's state may stand.
        chain_id: whose paths it has.

    Raises:
        ChainMovedError: the node does not have the block, or its parent, any more.
        NodeAnswerError: the node does not trace or prove.
        IntegrityError: what the node said does not explain the state root.

    """
    try:
        if not written.number:
            return await first_state(fetcher, written, settings.genesis, chain_id)
        said = fetched.evidence or await _asked(fetcher, written, fetched)
        try:
            return _proven(written, said, chain_id)
        except IntegrityError:
            said = await _asked(fetcher, written, fetched, read=True)
            return _proven(written, said, chain_id)
    except ApplicationError as unfit:
        raise IntegrityError(
            f"The state delta of block {written.number} (0x{written.hash.hex()}) cannot be made: {unfit}.",
            number=written.number,
            block_hash=written.hash,
            check="state",
        ) from unfit


async def _asked(fetcher: BlockFetcher, written: EncodedBlock, fetched: Fetched, *, read: bool = False) -> Evidence:
    try:
        return (await evidence(fetcher, [fetched], read=read))[0]
    except NodeAnswerError as refused:
        if await fetcher.header_by_hash(written.hash) is None:  # an orphan by now, of which some nodes say an error
            raise ChainMovedError(f"The node does not have block {written.number} any more.") from refused
        raise NodeAnswerError(
            f"State deltas need a node that traces blocks and proves accounts: {refused}", code=refused.code
        ) from refused


def _proven(written: EncodedBlock, said: Evidence, chain_id: int) -> StateDelta:
    try:
        return state_delta(said.traces, said.proofs, block=written, parent=said.parent, chain_id=chain_id)
    except IntegrityError as unproven:
        if said.parent.state_root != _NO_STATE:
            raise
        raise IntegrityError(
            f"The header of block {written.number - 1} says that there was no state, and the one of block "
            f"{written.number} shows more than it did: development nodes begin so. Begin above it "
            f"(--start {written.number + 1}), or publish without state.",
            number=written.number,
            block_hash=written.hash,
            check="state",
        ) from unproven
