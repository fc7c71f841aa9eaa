"""Where a batch ends, and what it delivers: the planner with its window on the topics. No Spark types.

Rules:

1. Only ``plan`` must be a function of its offsets. Where a batch *ends* may depend on clocks and on what was fetched.
2. No new offset until an update is ready, or ``IDLE_BYTES`` or ``IDLE_SECONDS`` have passed: pings alone make none.
3. A batch takes the same share of every partition's backlog, so that no topic runs ahead of the others.
4. An update is never split: a limit may be exceeded by one update, or by those that one record brings about together,
   as where blocks have waited for their parent (or were written in the same millisecond, so that it is not known).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cardinal.errors import CursorMismatchError
from cardinal.protocols.streams.events import ForkBelowStart
from cardinal.protocols.streams.wire.messages import BATCH

from .offsets import PlanOffset, need_options, parse_offset
from .planner import plan, rebuild
from .state import Plan, PlanSettings, State

if TYPE_CHECKING:
    from cardinal.protocols.streams.types import Partition

    from .window import Window

IDLE_BYTES: Final = 8 << 20
IDLE_SECONDS: Final = 60.0
BATCH_BYTES: Final = 64 << 20
"""Bytes of a batch where no limit is given: a bound for the planner's memory."""

_STEP_BYTES: Final = 4 << 20
_WAIT_SECONDS: Final = 0.05
_CUTS: Final = 8
_STATES_KEPT: Final = 4

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limit:
    """How much one batch takes: rows (blocks that join or leave) and bytes on the topics; None is no limit."""

    blocks: int | None = None
    bytes: int | None = None


class Driver:
    """The driver's side of a stream.

    Arguments:
        settings: see :class:`~.planner.PlanSettings`.
        window: see :class:`~.window.Window`.
        clock: seconds, for ``IDLE_SECONDS``.

    """

    def __init__(self, settings: PlanSettings, window: Window, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._window = window
        self._clock = clock
        self._frozen: dict[Partition, int] | None = None
        self._states: dict[str, State] = {}
        self._plans: dict[tuple[str, str], Plan] = {}
        self._tried: tuple[str, Mapping[Partition, int]] | None = None
        self._quiet_since: tuple[str, float] | None = None
        self._goal: dict[Partition, int] | None = None

    def freeze(self) -> None:
        """Take nothing from now on that is not on the topics already (Trigger.AvailableNow)."""
        self._frozen = self._ends()

    def next_offset(self, start: Mapping[str, Any], limit: Limit) -> dict[str, Any]:
        """Where the next batch ends; ``start`` itself where there is nothing to deliver yet."""
        begin = _text(start)
        state = self._state(start)
        self._window.seek(state.offset.pos)
        ends = self._within(self._frozen or self._ends())
        if self._tried == (begin, ends):
            time.sleep(_WAIT_SECONDS)  # Spark asks again every 10 ms
            return dict(start)
        most = limit.bytes or BATCH_BYTES
        step = most if limit.blocks is None else min(most, _STEP_BYTES)
        end = dict(state.offset.pos)
        while True:
            end = self._farther(end, ends, step)
            self._window.fetch(end)
            if limit.bytes is not None:
                end = self._within_bytes(state, end, limit.bytes)
            planned = self._plan(state, end)
            if planned.updates or end == ends or self._window.bytes(end) >= max(most, IDLE_BYTES):
                break
        if planned.updates > 1 and limit.blocks is not None and len(planned.rows) > limit.blocks:
            planned = self._cut(state, end, limit.blocks, planned)
        if not planned.updates and not self._due(begin, state, end):
            self._tried = (begin, ends)
            return dict(start)
        return self._settle(begin, planned)

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Plan:
        """What the batch between two offsets delivers.

        Raises:
            CursorMismatchError: the log gives another end than the one that was recorded.

        """
        known = self._plans.get((_text(start), _text(end)))
        if known is not None:
            return known
        state = self._state(start)
        goal = parse_offset(end)
        need_options(goal, self._settings.options)
        self._window.seek(state.offset.pos)
        self._window.fetch(goal.pos)
        # Whether the start was chosen, and by whom, is read off the recorded end.
        records = self._window.peek(goal.pos)
        planned = plan(self._settings, state, records, goal.pos, caught_up=goal.start is not None)
        reached = planned.state.offset
        if (reached.seq, reached.head) != (goal.seq, goal.head):
            raise CursorMismatchError(
                f"the topics no longer give the batch that the checkpoint recorded (its last _seq is {goal.seq}, "
                f"now {reached.seq}): they were made anew or changed; start with a new checkpoint and a new lake",
                expected=goal.head,
                found=reached.head,
            )
        self._settle(_text(start), planned)
        return planned

    def commit(self, end: Mapping[str, Any]) -> None:
        """Everything before ``end`` will not be asked for again."""
        done = _text(end)
        self._plans = {pair: planned for pair, planned in self._plans.items() if pair[1] != done}

    def close(self) -> None:
        """Release the connection."""
        self._window.close()

    # --- inside --------------------------------------------------------------------------------------------------

    def _ends(self) -> dict[Partition, int]:
        return {where: high for where, (_, high) in self._window.marks().items()}

    def _state(self, stored: Mapping[str, Any]) -> State:
        text = _text(stored)
        state = self._states.get(text)
        if state is None:
            offset = self._with_new_partitions(parse_offset(stored))
            need_options(offset, self._settings.options)
            _LOG.info("reading again from the floors of an offset at _seq %d", offset.seq)
            state = rebuild(self._settings, offset, self._window.chunks(offset.floor, offset.pos))
            self._keep(text, state)
        return state

    def _with_new_partitions(self, offset: PlanOffset) -> PlanOffset:
        """Partitions that were added since are read from their beginning."""
        added = dict.fromkeys(self._window.marks().keys() - offset.pos.keys(), 0)
        if not added:
            return offset
        return replace(offset, pos={**offset.pos, **added}, floor={**offset.floor, **added})

    def _within(self, ends: Mapping[Partition, int]) -> dict[Partition, int]:
        """Ends that do not lie before where the window begins (a frozen end of a batch that is planned again)."""
        return {where: max(at, ends.get(where, at)) for where, at in self._window.start.items()}

    def _farther(self, end: Mapping[Partition, int], ends: Mapping[Partition, int], step: int) -> dict[Partition, int]:
        """About ``step`` bytes farther, by the same share of every partition's backlog."""
        backlog = sum(ends[where] - at for where, at in end.items())
        share = min(1.0, step / self._window.record_bytes / max(1, backlog))
        return {where: at + -int(-(ends[where] - at) * share // 1) for where, at in end.items()}

    def _within_bytes(self, state: State, end: Mapping[Partition, int], most: int) -> dict[Partition, int]:
        """A shorter end where the records were larger than expected, unless nothing is ready there."""
        size = self._window.bytes(end)
        if size <= most:
            return dict(end)
        shorter = _between(state.offset.pos, end, most / size)
        return shorter if self._plan(state, shorter).updates else dict(end)

    def _plan(self, state: State, end: Mapping[Partition, int]) -> Plan:
        caught_up = self._caught_up(state, end)
        return plan(self._settings, state, self._window.peek(end), end, caught_up=caught_up)

    def _caught_up(self, state: State, end: Mapping[Partition, int]) -> bool:
        """Before the start: whether everything is read that was there when the first block was complete."""
        if state.offset.start is not None:
            return False
        if self._goal is None:
            if not plan(self._settings, state, self._window.peek(end), end, caught_up=False).state.blocks:
                return False
            self._goal = self._frozen or self._ends()
        return all(end.get(where, at) >= at for where, at in self._goal.items())

    def _cut(self, state: State, end: Mapping[Partition, int], blocks: int, planned: Plan) -> Plan:
        """The largest part of a batch whose rows are within the limit; at least one update."""
        low, high, best = 0.0, 1.0, planned
        for _ in range(_CUTS):
            share = (low + high) / 2
            tried = self._plan(state, _between(state.offset.pos, end, share))
            if not tried.updates:
                low = share
            elif tried.updates > 1 and len(tried.rows) > blocks:
                high, best = share, tried
            else:
                low, best = share, tried
        if best.updates > 1 and len(best.rows) > blocks:
            return self._cut_at_batches(state, blocks, best)
        return best

    def _cut_at_batches(self, state: State, blocks: int, planned: Plan) -> Plan:
        """The same between single Batches, for shares of which none is within the limit."""
        end = planned.state.offset.pos
        batches = [record for record in self._window.peek(end) if record.key[0] == BATCH]
        batches.sort(key=lambda record: (record.timestamp_ms, *record[:3]))
        low, high, best = 0, len(batches), planned
        while high - low > 1:
            middle = (low + high) // 2
            shorter = dict(end)
            for topic, partition, offset, *_ in batches[middle:]:
                shorter[topic, partition] = min(offset, shorter[topic, partition])
            tried = self._plan(state, shorter)
            if not tried.updates:
                low = middle
            elif tried.updates > 1 and len(tried.rows) > blocks:
                high, best = middle, tried
            else:
                low, best = middle, tried
        return best

    def _due(self, begin: str, state: State, end: Mapping[Partition, int]) -> bool:
        """Whether a batch without rows moves the offset, so that a restart has less to read again."""
        if end == state.offset.pos or self._frozen is not None:
            return self._window.bytes(end) >= IDLE_BYTES
        now = self._clock()
        if self._quiet_since is None or self._quiet_since[0] != begin:
            self._quiet_since = (begin, now)
        return now - self._quiet_since[1] >= IDLE_SECONDS or self._window.bytes(end) >= IDLE_BYTES

    def _settle(self, begin: str, planned: Plan) -> dict[str, Any]:
        stored = planned.state.offset.json()
        text = _text(stored)
        self._window.take(planned.state.offset.pos)
        self._keep(text, planned.state)
        self._plans[begin, text] = planned
        while len(self._plans) > _STATES_KEPT:
            del self._plans[next(iter(self._plans))]
        for event in planned.events:
            level = logging.WARNING if isinstance(event, ForkBelowStart) else logging.INFO
            _LOG.log(level, "%s", event)
        return stored

    def _keep(self, text: str, state: State) -> None:
        self._states[text] = state
        while len(self._states) > _STATES_KEPT:
            del self._states[next(iter(self._states))]


def _between(start: Mapping[Partition, int], end: Mapping[Partition, int], share: float) -> dict[Partition, int]:
    return {where: at + int((end[where] - at) * share) for where, at in start.items()}


def _text(stored: Mapping[str, Any]) -> str:
    return json.dumps(stored, sort_keys=True)
