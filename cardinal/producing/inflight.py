"""What a producer has under way: units on their way from ``begin`` to their seal.

Rules:

1. A unit is a block, or a reorg, which goes by the hash of its last block. It is started at once, many beside each
   other, and finished (its Batch handed over) when
   :class:`~cardinal.protocols.streams.publishing.sealing.SealQueue` frees it.
2. There is room for so many units and so many bytes; ``enter`` waits. A unit that is larger than all the room goes
   alone.
3. A failed unit is loud: its future fails, its descendants wait, and one of the same hash may be begun again.
4. Where units are finished one at a time, the next is finished after the one before has ended, well or not. Many may
   stand in line meanwhile, and others publish them: before its turn each is looked at again (``turn``), and skipped
   or kept waiting like one that was not begun.

Threads: every method may be called from several. Acknowledgements come on threads of the transport. Whoever frees a
unit appends it to one line; one thread at a time works the line off, so that Batches are handed over in the line's
order, parents before children. At the moment of sending, the queue is asked again: a failure may have come between.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, DeliveryError, LocalProtocolError, TransportError
from cardinal.producing.unit import ProducerStats
from cardinal.protocols.streams.publishing.sealing import SealQueue
from cardinal.protocols.streams.publishing.standby import Verdict
from cardinal.transports.posting import end

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.producing.unit import Unit

_SERVE_SECONDS: Final = 0.005


class _OfThread(threading.local):
    """What a thread is at."""

    telling = False


class UnderWay:
    """See the module.

    Arguments:
        max_units: how many may be under way.
        max_bytes: of keys and values.
        one_at_a_time: see rule 4.
        serve: takes acknowledgements in, for so many seconds at most: what whoever waits for room does meanwhile. None
            where that is the transport's own affair.

    ``turn`` says of a hash what to do now; whoever sets it calls :meth:`go_on` when that may have changed.
    """

    def __init__(
        self,
        max_units: int,
        max_bytes: int,
        *,
        one_at_a_time: bool,
        serve: Callable[[float], None] | None = None,
    ) -> None:
        self._max_units = max_units
        self._max_bytes = max_bytes
        self._one_at_a_time = one_at_a_time
        self._serve = serve
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._queue = SealQueue()
        self._units: dict[bytes, Unit] = {}
        self._bytes = 0
        self._failures: dict[bytes, CardinalError] = {}
        self._line: deque[bytes] = deque()
        self._working = False
        self._closed = False
        self._this = _OfThread()
        self._sealed_blocks = self._sealed_messages = self._sealed_bytes = self._skipped = 0
        self.turn: Callable[[bytes], Verdict] = lambda _: Verdict.SEND

    @property
    def stats(self) -> ProducerStats:
        """What was sealed or left to others, and what is under way."""
        with self._lock:
            under_way = sum(unit.blocks for unit in self._units.values())
            return ProducerStats(
                self._sealed_blocks, self._sealed_messages, self._sealed_bytes, under_way, self._skipped
            )

    @property
    def healthy(self) -> bool:
        """Whether nothing has failed, or all of it was begun again."""
        with self._lock:
            return not self._failures

    def enter(self, unit: Unit) -> bool:
        """Take a unit in, when there is room. Returns whether one of its hash had failed: then it is begun at once.

        Raises:
            LocalProtocolError: one of its hash is under way.
            DeliveryError: there is no room, because another unit (``hash``) failed and waits to be begun again.
            TransportError: closed.

        """
        with self._lock:
            before = self._before(unit)
            if before is None:
                self._wait_for_room(unit.size)
                self._before(unit)  # another thread may have had the same thought
            self._units[unit.hash] = unit
            self._bytes += unit.size - (before.size if before else 0)
            return before is not None

    def begin(self, unit: Unit) -> None:
        """Send what need not wait of a unit that was entered, and the rest when its time comes.

        Raises:
            LocalProtocolError: it contradicts one of the same hash, or is its own ancestor.
            CardinalError: of the transport; the unit has failed.

        """
        with self._lock:
            try:
                self._queue.add(unit.hash, unit.parent, unit.announced)
            except LocalProtocolError:
                self._leave(unit.hash)
                raise
            self._failures.pop(unit.hash, None)
        try:
            unit.start(unit, partial(self._started, unit))
        except CardinalError as error:
            self._fail(unit, error)
            raise

    def skip(self, unit: Unit) -> None:
        """Others have sealed a unit that was entered and not begun."""
        with self._lock:
            if self._units.get(unit.hash) is not unit:
                return  # closed meanwhile
            self._leave(unit.hash)
            self._skipped += unit.blocks
        self._tell(unit, None)

    def known(self, block_hash: bytes) -> Unit | None:
        """The unit of this hash that is under way, or failed and was not begun again."""
        with self._lock:
            return self._units.get(block_hash)

    def find(self, block_hash: bytes) -> Unit:
        """The unit of this hash; LocalProtocolError where none is under way."""
        unit = self.known(block_hash)
        if unit is None:
            raise LocalProtocolError(f"block 0x{block_hash.hex()} is not under way: add its payload first")
        return unit

    def grow(self, unit: Unit, messages: int, size: int) -> None:
        """More messages belong to a unit than it was entered with."""
        with self._lock:
            unit.messages += messages
            unit.size += size
            self._bytes += size if self._units.get(unit.hash) is unit else 0

    def sub_batch_sent(self, unit: Unit, batch_id: bytes) -> None:
        """The content of an announced sub batch is acknowledged, before its unit is begun or after."""
        with self._lock:
            if self._units.get(unit.hash) is not unit:
                return  # it was begun again since, and waits to hear of this sub batch anew
            unit.announced.discard(batch_id)
            self._line.extend(self._queue.sub_batch_acknowledged(unit.hash, batch_id))
        self._work()

    def flush(self, timeout: float) -> None:
        """Wait until nothing is under way; the error of what failed, or TransportError after ``timeout`` seconds."""
        with self._lock:
            if not self._wait_for(lambda: bool(not self._units or self._failures), timeout):
                raise TransportError(f"{len(self._units)} blocks are not sealed after {timeout:g} s; flush again")
            if self._failures:
                raise next(iter(self._failures.values()))

    @property
    def in_line(self) -> bool:
        """Whether something waits to be finished."""
        return bool(self._line)

    def go_on(self) -> None:
        """Finish what may be finished now."""
        self._work()

    def stop(self) -> None:
        """Let nobody in any more, and nobody wait."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def fail_all(self) -> None:
        """Fail what is left."""
        with self._lock:
            left = [unit for unit in self._units.values() if not unit.failed]
            self._units.clear()
            self._bytes = 0
        for unit in left:
            closed = f"the producer was closed before block 0x{unit.hash.hex()} was sealed"
            self._tell(unit, DeliveryError(closed, block_hash=unit.hash))

    # --- inside --------------------------------------------------------------------------------------------

    def _before(self, unit: Unit) -> Unit | None:
        """The failed unit that this one replaces, if any."""
        before = self._units.get(unit.hash)
        if before is not None and not before.failed:
            raise LocalProtocolError(f"block {unit.hash.hex()} is already being sent")
        return before

    def _wait_for_room(self, size: int) -> None:
        def room() -> bool:
            return len(self._units) < self._max_units and (not self._units or self._bytes + size <= self._max_bytes)

        # Whoever is told of a unit's end makes room by returning, and waits for none: what it adds goes beyond the
        # bound, by one for each that has ended.
        self._wait_for(lambda: room() or bool(self._failures) or self._closed or self._this.telling, None)
        if self._closed:
            raise TransportError("this producer is closed; open another one")
        if not room() and self._failures:
            failed, error = next(iter(self._failures.items()))
            raise DeliveryError(
                f"{len(self._units)} blocks wait for block 0x{failed.hex()}, which failed ({error}): add it again",
                block_hash=failed,
            )

    def _wait_for(self, come: Callable[[], bool], timeout: float | None) -> bool:
        """With the lock held: whether this has come within so many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._waiting += 1
        try:
            while not come():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left < 0:
                    return False
                if self._serve is None:
                    self._changed.wait(left)
                    continue
                self._lock.release()
                try:
                    self._serve(_SERVE_SECONDS)
                finally:
                    self._lock.acquire()
        finally:
            self._waiting -= 1
        return True

    def _leave(self, block_hash: bytes) -> Unit | None:
        unit = self._units.pop(block_hash, None)
        self._bytes -= unit.size if unit else 0
        if self._waiting:
            self._changed.notify_all()
        return unit

    def _started(self, unit: Unit, error: BaseException | None) -> None:
        if error is not None:
            self._fail(unit, error)
            return
        with self._lock:
            if self._units.get(unit.hash) is unit:
                self._line.extend(self._queue.acknowledged(unit.hash))
        self._work()

    def _work(self) -> None:
        """Finish the units of the line, unless another thread (or a caller of this one) is at it."""
        while True:
            with self._lock:
                if self._working or not self._line:
                    return
                turn = self.turn(self._line[0]) if self._one_at_a_time else Verdict.SEND
                if turn is Verdict.WAIT:
                    return
                block_hash = self._line.popleft()
                if not self._queue.hand_over(block_hash):
                    continue  # it, or a block below it, failed since it was freed; it comes again
                unit = self._units.get(block_hash)
                if unit is None:
                    continue  # closed meanwhile
                self._working = True
            if turn is Verdict.SKIP:
                self._pass(unit)
                continue
            try:
                unit.finish(unit, partial(self._finished, unit))
            except CardinalError as error:
                self._rest()
                self._fail(unit, error)
                continue
            if not self._one_at_a_time:
                self._rest()

    def _rest(self) -> None:
        with self._lock:
            self._working = False

    def _pass(self, unit: Unit) -> None:
        """It stood in line, and others have published it meanwhile."""
        with self._lock:
            self._working = False
            left = self._leave(unit.hash)
            self._line.extend(self._queue.sealed(unit.hash))
            self._skipped += unit.blocks if left is not None else 0
        if left is not None:
            self._tell(unit, None)

    def _finished(self, unit: Unit, error: BaseException | None) -> None:
        if self._one_at_a_time:
            self._rest()
        if error is not None:
            self._fail(unit, error)
            return
        with self._lock:
            left = self._leave(unit.hash)
            self._line.extend(self._queue.sealed(unit.hash))
            if left is not None:
                self._sealed_blocks += unit.blocks
                self._sealed_messages += unit.messages
                self._sealed_bytes += unit.size
        self._work()
        if left is not None:
            self._tell(unit, None)

    def _fail(self, unit: Unit, error: BaseException) -> None:
        with self._lock:
            if self._units.get(unit.hash) is not unit or unit.failed:
                return
            unit.failed = True
            self._line.extend(self._queue.failed(unit.hash))
            if isinstance(error, CardinalError):
                self._failures[unit.hash] = error
            self._changed.notify_all()
        self._tell(unit, error)
        self._work()

    def _tell(self, unit: Unit, error: BaseException | None) -> None:
        before, self._this.telling = self._this.telling, True
        try:
            end(unit.future, error)
        finally:
            self._this.telling = before
