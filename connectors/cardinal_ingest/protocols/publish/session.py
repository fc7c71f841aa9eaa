"""PublisherSession: the publisher's side, one per feed, with one active node of several.

The buffer holds the blocks that no node has acknowledged. A stream has a cursor, the block in hand or the next to
offer; responses move it (P35, P36), acknowledgements release blocks. The session is driven by inputs with ``now``
(seconds, rising) and returns effects; what it sends is drawn one message at a time by :meth:`PublisherSession.ready`,
when the transport can take it, so that a block that is skipped is not sent to its end.

With ``forks`` the buffer holds the current branch. A header whose parent is not the header before it is a *turn*; the
node answers it first with Acknowledgement(none), and until then its answers mean the blocks that were sent before the
turn (P49). Each stretch between turns is an :class:`_Epoch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .buffer import Buffer, Held
from .effects import Close, Drained, Open, Push, Released, Saturated, SessionEffect
from .settings import SessionSettings
from .types import (
    NONE,
    Acknowledgement,
    BehindPublisher,
    BlockEnd,
    BlockItemSet,
    EndCode,
    EndOfStream,
    EndStream,
    Request,
    ResendBlock,
    Response,
    SkipBlock,
    Status,
)

_SAME_NODE: Final = {Status.INVALID_REQUEST, Status.TIMEOUT, Status.DUPLICATE_BLOCK, Status.BAD_BLOCK_PROOF}
"""Ends after which the same node is tried again; after any other, another one (P37)."""


# --- state --------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Node:
    name: str
    priority: int
    cool_until: float = 0.0
    backoffs: int = 0
    behind: int = 0
    ends: deque[float] = field(default_factory=deque)


@dataclass(slots=True)
class _Epoch:
    """Headers offered since a turn, by number."""

    offered: dict[int, Held] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Stream:
    """One stream.

    Attributes:
        cursor: the block in hand, or the next to offer; None while nothing came yet.
        sending: the block in hand.
        position: its next item.
        offered: the block whose header was sent last.
        epochs: the last is the current one; there are more while a turn's restart is awaited.
        moved: whether the cursor was moved since the last header.
        resend: where the cursor goes after the block in hand.
        lowest_offered: the lowest block held, offered to a node that named one below it.
        behind, repeats: the last answer of that kind without an acknowledgement since, and how often it came again.
        wait_until: nothing is sent before.

    """

    id: int
    node: _Node
    since: float
    cursor: int | None
    is_open: bool = False
    sending: Held | None = None
    position: int = 0
    offered: Held | None = None
    epochs: deque[_Epoch] = field(default_factory=lambda: deque([_Epoch()]))
    moved: bool = False
    resend: int | None = None
    lowest_offered: int | None = None
    behind: int | None = None
    repeats: int = 0
    wait_until: float = 0.0

    def move(self, cursor: int) -> None:
        """Offer another block next; the one in hand is left."""
        self.cursor, self.sending, self.resend, self.moved = cursor, None, None, True


class PublisherSession:
    """The publisher's side of the protocol, by the rules of the module.

    Arguments:
        settings: limits and times.
        nodes: names and priorities; the lowest number is preferred.
        draw: returns a random number from 0 up to 1.
        now: the time at the start.

    """

    def __init__(
        self, settings: SessionSettings, nodes: Sequence[tuple[str, int]], draw: Callable[[], float], now: float = 0.0
    ) -> None:
        self._settings = settings
        self._nodes = [_Node(name, priority) for name, priority in nodes]
        self._draw = draw
        self._buffer = Buffer(forks=settings.forks)
        self._stream: _Stream | None = None
        self._streams = 0
        self._next: tuple[_Node, float] | None = (min(self._nodes, key=lambda node: node.priority), now)
        self._now = now
        self._effects: list[SessionEffect] = []
        self._acknowledged: int | None = None
        self._begin_at: int | None = None
        self._late = 0
        self._reset_at = now + settings.reset_period
        self._saturated = False

    # --- queries ----------------------------------------------------------------------------------------------

    @property
    def acknowledged(self) -> int | None:
        """The highest block that a node acknowledged."""
        return self._acknowledged

    @property
    def held(self) -> int:
        """Blocks that are held."""
        return len(self._buffer)

    @property
    def held_bytes(self) -> int:
        """Bytes of their items."""
        return self._buffer.size

    @property
    def node(self) -> str | None:
        """The node of the stream that is open."""
        return self._stream.node.name if self._stream is not None and self._stream.is_open else None

    # --- inputs of the feed -----------------------------------------------------------------------------------

    def append(self, items: tuple[bytes, ...], now: float, *, sealed: bool) -> list[SessionEffect]:
        """Add items to the newest block; a header begins the next one, and ``sealed`` ends it.

        Raises:
            LocalProtocolError: the items do not continue the branch, or one is too large.

        """
        self._now = now
        self._buffer.append(items, sealed=sealed)
        if not self._settings.forks and self._acknowledged is not None:
            self._release(self._acknowledged)  # what came from others before our feed had it
        self._measure()
        return self._taken()

    def reorg(self, ancestor: int, now: float) -> list[SessionEffect]:
        """Drop the blocks above an ancestor, sent or not: the feed's next block is its child (P49).

        Where none is held, the feed may go on with a higher block.
        """
        self._now = now
        self._buffer.cut(ancestor)
        stream = self._stream
        if stream is not None and stream.cursor is not None and (stream.cursor > ancestor or not len(self._buffer)):
            stream.move(ancestor + 1 if stream.resend is None else min(ancestor + 1, stream.resend))
        self._measure()
        return self._taken()

    # --- inputs of the transport ------------------------------------------------------------------------------

    def opened(self, stream: int, now: float) -> list[SessionEffect]:
        """A stream is open."""
        self._now = now
        found = self._found(stream)
        if found is not None:
            found.is_open, found.since = True, now
        return self._taken()

    def ready(self, stream: int, now: float) -> list[SessionEffect]:
        """The transport can take one more message of a stream; nothing comes out while there is none."""
        self._now = now
        found = self._found(stream)
        if found is not None and found.is_open and now >= found.wait_until and not self._reset_due(found):
            request = self._next_request(found)
            if request is not None:
                self._effects.append(Push(found.id, request))
        return self._taken()

    def receive(self, stream: int, response: Response | None, now: float) -> list[SessionEffect]:
        """A response came; None: one of an unknown kind, which is ignored."""
        self._now = now
        found = self._found(stream)
        if found is not None:
            match response:
                case Acknowledgement(number):
                    self._acknowledgement(found, number)
                case SkipBlock(number):
                    self._skip(found, number)
                case ResendBlock(number):
                    self._resend(found, number)
                case BehindPublisher(number):
                    self._behind(found, number)
                case EndOfStream(status, number):
                    self._end_of_stream(found, status, number)
        self._measure()
        return self._taken()

    def closed(self, stream: int, now: float) -> list[SessionEffect]:
        """A stream was lost, or could not be opened."""
        self._now = now
        found = self._found(stream)
        if found is not None:
            found.node.cool_until = now + self._backoff(found.node)
            self._leave(found)
        return self._taken()

    def tick(self, now: float) -> list[SessionEffect]:
        """Run the clock rules: streams to open, late acknowledgements, a filling buffer, the reset."""
        self._now = now
        stream = self._stream
        if stream is not None and stream.is_open:
            if self._is_late() or self._is_filling(stream):
                self._end(stream, EndCode.TIMEOUT)
                stream.node.cool_until = now + self._settings.cooling
                self._leave(stream)
            else:
                self._reset_due(stream)
        self._connect()
        return self._taken()

    def stop(self, now: float) -> list[SessionEffect]:
        """End the stream; no other is opened."""
        self._now = now
        stream, self._next = self._stream, None
        if stream is not None:
            self._end(stream, EndCode.RESET if stream.sending is None else EndCode.ERROR)
            self._stream = None
        return self._taken()

    # --- sending (P34, P38, P49) ------------------------------------------------------------------------------

    def _next_request(self, stream: _Stream) -> Request | None:
        held = stream.sending
        if held is None:
            held = self._offer(stream)
        if held is None:
            return None
        items = held.next_set(stream.position)
        if items:
            stream.position += len(items)
            return BlockItemSet(items)
        if not held.sealed:
            return None
        held.sent = self._now
        stream.sending = None
        if stream.resend is not None:
            stream.move(stream.resend)
        else:
            stream.cursor = held.number + 1
        return BlockEnd(held.number)

    def _offer(self, stream: _Stream) -> Held | None:
        """Take the block at the cursor in hand; its header is sent next."""
        if stream.cursor is None:
            stream.cursor = self._buffer.lowest
        held = None if stream.cursor is None else self._buffer.get(stream.cursor)
        if held is not None:
            if self._settings.forks and stream.offered is not None and stream.offered.id != held.parent:
                stream.epochs.append(_Epoch())
            stream.epochs[-1].offered[held.number] = held
            stream.sending = stream.offered = held
            stream.position, stream.moved = 0, False
        return held

    # --- responses (P35 to P37, P49) --------------------------------------------------------------------------

    def _acknowledgement(self, stream: _Stream, number: int) -> None:
        if number == NONE:
            if len(stream.epochs) > 1:
                stream.epochs.popleft()
            return
        stream.node.backoffs = stream.node.behind = 0
        lowest = self._buffer.lowest
        released = self._meant(stream, number) if self._settings.forks else number
        if released is not None:
            self._release(released)
        if self._buffer.lowest != lowest or not self._settings.forks:  # that of a turn is no news (P44)
            stream.behind, stream.repeats = None, 0

    def _meant(self, stream: _Stream, number: int) -> int | None:
        """The highest block on the branch that an acknowledgement means: it, or an ancestor (P49)."""
        offered = stream.epochs[0].offered
        held, above = offered.get(number), offered.get(number + 1)
        if held is None and above is not None:
            held = above.below
        while held is not None:
            kept = self._buffer.get(held.number)
            if kept is not None and kept.id == held.id:
                return held.number
            held = held.below
        return None

    def _release(self, number: int) -> None:
        """Forget acknowledged blocks; the cursor stands above them."""
        released = self._buffer.release(number)
        if self._acknowledged is None or number > self._acknowledged:
            self._acknowledged = number
        for held in released:
            if held.sent is not None:
                self._late = self._late + 1 if self._now - held.sent > self._settings.late_after else 0
        if released:
            self._effects.append(Released(released[-1].number))
        stream = self._stream
        if stream is not None and (stream.cursor is None or stream.cursor <= number):
            stream.move(number + 1)
        if stream is not None and stream.resend is not None and stream.resend <= number:
            stream.resend = None
        for epoch in stream.epochs if stream is not None else ():
            for old in [old for old in epoch.offered if old <= number]:
                del epoch.offered[old]

    def _skip(self, stream: _Stream, number: int) -> None:
        """P35: stop the block in hand; a skip of any other concerns a header before the cursor was moved."""
        if len(stream.epochs) == 1 and stream.sending is not None and stream.sending.number == number:
            stream.sending, stream.cursor = None, number + 1
            if stream.resend is not None:
                stream.move(stream.resend)

    def _resend(self, stream: _Stream, number: int) -> None:
        held = self._buffer.get(number)
        if len(stream.epochs) > 1 and (held is None or stream.epochs[0].offered.get(number) is not held):
            return
        if stream.cursor is None or number > stream.cursor:
            return
        if held is None:
            self._too_far_behind(stream)
        elif stream.sending is not None and stream.sending.sealed:
            stream.resend = number if stream.resend is None else min(number, stream.resend)
        else:
            stream.move(number)

    def _behind(self, stream: _Stream, number: int) -> None:
        """P36: resume after the node's last block; wait where it says the same again."""
        resume = (number + 1) & NONE
        if len(stream.epochs) > 1 or stream.cursor is None:
            return
        if stream.moved:
            if resume < stream.cursor:
                self._resume(stream, resume)
            return
        refused = stream.offered is not None and stream.offered.number == resume
        if refused and not self._settings.forks:
            return  # or the answer to a header before: two in flight are one
        if refused or stream.behind == resume:
            wait = min(self._settings.behind_wait * 2**stream.repeats, self._settings.behind_wait_most)
            stream.repeats += 1
            stream.wait_until = self._now + wait
        else:
            stream.repeats = 0
        stream.behind = resume
        self._resume(stream, resume)

    def _resume(self, stream: _Stream, number: int) -> None:
        lowest, following = self._buffer.lowest, self._buffer.next
        if following is not None and (self._buffer.get(number) is not None or number >= following):
            stream.move(min(number, following))
        elif self._settings.forks and lowest is not None and stream.lowest_offered != lowest:
            stream.lowest_offered = lowest
            stream.move(lowest)
        else:
            self._too_far_behind(stream)

    def _too_far_behind(self, stream: _Stream) -> None:
        node = stream.node
        self._end(stream, EndCode.TOO_FAR_BEHIND)
        node.cool_until = self._now + min(self._settings.backoff * 2**node.behind, self._settings.behind_cooling_most)
        node.behind += 1
        self._leave(stream)

    def _end_of_stream(self, stream: _Stream, status: int, number: int) -> None:
        node = stream.node
        self._effects.append(Close(stream.id))
        if not self._settings.forks and number != NONE:
            self._release(number)
        elif status == Status.DUPLICATE_BLOCK and number != NONE:
            self._begin_at = number + 1
        node.ends.append(self._now)
        while self._now - node.ends[0] > self._settings.storm_window:
            node.ends.popleft()
        if len(node.ends) >= self._settings.storm_ends:
            node.ends.clear()
            node.cool_until = self._now + self._settings.storm_pause
            self._leave(stream)
        elif status in _SAME_NODE:
            self._leave(stream, then=(node, self._now + self._backoff(node)))
        else:
            node.cool_until = self._now + self._settings.cooling
            self._leave(stream)

    # --- nodes (P38 to P40) -----------------------------------------------------------------------------------

    def _backoff(self, node: _Node) -> float:
        wait: float = min(self._settings.backoff * 2**node.backoffs, self._settings.backoff_most)
        node.backoffs += 1
        return wait * (1 + self._draw()) / 2

    def _leave(self, stream: _Stream, then: tuple[_Node, float] | None = None) -> None:
        """Forget a stream, and choose where the next one goes: to a node, not before a time."""
        assert self._stream is stream  # noqa: S101 - streams that were left are not found
        self._stream, self._late = None, 0
        if then is None:
            node = min(self._nodes, key=lambda node: (max(node.cool_until, self._now), node.priority))
            then = (node, node.cool_until)
        self._next = then
        self._connect()

    def _connect(self) -> None:
        if self._stream is None and self._next is not None and self._next[1] <= self._now:
            node, self._next = self._next[0], None
            self._streams += 1
            for held in self._buffer:
                held.sent = None
            cursor = self._buffer.next if self._buffer.lowest is None else self._buffer.lowest
            if cursor is not None and self._begin_at is not None:
                cursor = max(cursor, self._begin_at)
            self._begin_at = None
            self._stream = _Stream(self._streams, node, self._now, cursor)
            self._effects.append(Open(node.name, self._streams))

    def _end(self, stream: _Stream, code: EndCode) -> None:
        """P40: the last message of a stream, with what is held."""
        lowest, following = self._buffer.lowest, self._buffer.next
        highest = (following or 1) - 1
        if self._acknowledged is not None:
            latest = self._acknowledged
            earliest = latest if lowest is None else min(lowest, latest)
        else:
            earliest, latest = (highest if lowest is None else lowest), highest
        self._effects += [Push(stream.id, EndStream(code, earliest, latest)), Close(stream.id)]

    def _is_late(self) -> bool:
        overdue, number = self._late, self._buffer.lowest
        while number is not None and (held := self._buffer.get(number)) is not None and held.sent is not None:
            if self._now - held.sent <= self._settings.late_after:
                break
            overdue, number = overdue + 1, number + 1
        return overdue >= self._settings.late_blocks

    def _is_filling(self, stream: _Stream) -> bool:
        """P39: the buffer fills, and another node is available."""
        return (
            self._fill() >= self._settings.switch_at
            and self._now - stream.since >= self._settings.switch_grace
            and any(node is not stream.node and node.cool_until <= self._now for node in self._nodes)
        )

    def _reset_due(self, stream: _Stream) -> bool:
        """P38: end the stream between two blocks; return True where that happened."""
        if stream.sending is not None or self._now < self._reset_at:
            return False
        self._reset_at = self._now + self._settings.reset_period
        self._end(stream, EndCode.RESET)
        node = self._nodes[int(self._draw() * len(self._nodes))]
        self._leave(stream, then=(node, self._now))
        return True

    def _fill(self) -> float:
        return max(
            len(self._buffer) / self._settings.buffer_blocks,
            self._buffer.size / self._settings.buffer_bytes,
        )

    def _measure(self) -> None:
        fill = self._fill()
        if not self._saturated and fill >= 1:
            self._saturated = True
            self._effects.append(Saturated())
        elif self._saturated and fill <= self._settings.drained_at:
            self._saturated = False
            self._effects.append(Drained())

    # --- inside -----------------------------------------------------------------------------------------------

    def _found(self, stream: int) -> _Stream | None:
        return self._stream if self._stream is not None and self._stream.id == stream else None

    def _taken(self) -> list[SessionEffect]:
        effects, self._effects = self._effects, []
        return effects
