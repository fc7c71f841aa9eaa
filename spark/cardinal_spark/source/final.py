"""The batch read: the chain as it stands between two positions, without its history.

Rules:

1. Rows are +1 only; ``_seq`` is dense in the order of the chain, and every block is an update of its own.
2. It equals what a stream of the same range leaves as ``current``.
3. A block that is announced but not whole at the end is refused by name, unless it lies below the chain's reach.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cardinal.errors import MissingPayloadError

from .planner import plan
from .state import PlannedBlock, PlanSettings, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.protocols.streams.types import Partition

    from .offsets import PlanOffset
    from .window import Window

_STEP_RECORDS: Final = 100_000


def final_chain(
    settings: PlanSettings, window: Window, start: PlanOffset, ends: Mapping[Partition, int]
) -> list[PlannedBlock]:
    """The blocks of the chain at ``ends``, lowest first.

    Arguments:
        settings: of the stream.
        window: on its topics.
        start: where to begin to read.
        ends: where every partition ends.

    Raises:
        MissingPayloadError: a block above the start is not whole at ``ends``; it is named.

    """
    state = State(start)
    chain: list[PlannedBlock] = []
    for records in window.chunks(start.pos, ends):
        planned = plan(settings, state, records, window.start, caught_up=window.start == dict(ends))
        state = planned.state
        for row in planned.rows:
            if row.change > 0:
                chain.append(row)
            else:
                chain.pop()
    _need_whole(settings, state)
    return [replace(row, seq=seq, update_id=seq) for seq, row in enumerate(chain, 1)]


def _need_whole(settings: PlanSettings, state: State) -> None:
    offset = state.offset
    base = offset.top - settings.follower.reorg_threshold
    lowest = max(base, -1 if offset.start is None else offset.start.number)
    for block_hash, block in state.opened.items():
        if block.number is not None and block.number >= lowest:
            raise MissingPayloadError(
                f"block {block.number} (0x{block_hash.hex()}) is not whole yet: read again when its producer has "
                "published the rest, or stream, which waits for it",
                number=block.number,
                block_hash=block_hash,
            )
