"""Blocks that are overdue: whether anything of them is still to be read, and asking somebody for what they lack.

A reassembler calls a block overdue after so many others were completed. While partitions are caught up with, one by
one, that says little: what lacks may only be unread. So a block is reported when every partition has passed the
watermarks that were taken after it was overdue, and it still lacks something (:class:`Overdue`). One that is delivered
meanwhile, as most are in a backlog, is forgotten at once: later on nobody may know any more that it ever came.

A hook (:class:`Healer`) may then have its messages: a node, an archive. It is called on a thread of its own, one block
after the other, so that reading goes on; no block is given up meanwhile. What it answers is taken by whoever reads the
stream. A hook that raises is reported and asked no more about that block. Many blocks may be overdue at once, after a
stream was caught up with: their hashes wait, and what each lacks is said when its turn comes.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.protocols.streams.assembly.block import Explanation
from cardinal.protocols.streams.types import Partition, Routed

if TYPE_CHECKING:
    from collections.abc import Iterator

Heal: TypeAlias = Callable[[Explanation], Iterable[Routed]]
"""Given what a block lacks, the messages of that block, all of them or those that lack; empty where there are none."""

LACKING: Final = frozenset({"open", "unknown"})
"""The states of blocks of which something may still come."""

_ANSWERS_MAX: Final = 100
_ASKED_MAX: Final = 1_000
_WAITING_MAX: Final = 20_000
"""Twice as many as may be open: a block that is not is asked about no more."""


@dataclass(frozen=True, slots=True)
class HealingFailed:
    """The hook raised. ``reason`` is the error's kind and sentence."""

    block: bytes
    reason: str


class Overdue:
    """See the module. What is kept grows with the blocks that are overdue and not settled yet.

    Attributes:
        added: how many blocks were overdue so far.

    """

    def __init__(self) -> None:
        self.added = 0
        self._pending: OrderedDict[bytes, int] = OrderedDict()
        """Block to the number of those that were overdue before it; in this order."""
        self._covered = 0
        """Watermarks were asked for that say something of so many, the first ones."""
        self._asking = False
        self._answered: deque[tuple[int, Mapping[Partition, int]]] = deque()
        """Of how many blocks which watermarks say something."""

    def add(self, block_hash: bytes) -> None:
        """A block is overdue."""
        if block_hash not in self._pending:
            self._pending[block_hash] = self.added
            self.added += 1

    def settle(self, block_hash: bytes) -> None:
        """A block came after all."""
        self._pending.pop(block_hash, None)

    @property
    def reported(self) -> int:
        """Of how many blocks, the first ones, nothing is left to be reported."""
        return next(iter(self._pending.values()), self.added)

    @property
    def wants_ends(self) -> bool:
        """Whether watermarks are to be asked for now."""
        return not self._asking and next(reversed(self._pending.values()), -1) >= self._covered

    @property
    def waits_for_ends(self) -> bool:
        """Whether watermarks were asked for (:meth:`asked`) and did not come yet."""
        return self._asking

    def asked(self) -> None:
        """Watermarks are being asked for: they say something about what is overdue by now, and nothing about others."""
        self._covered, self._asking = self.added, True

    def answered(self, ends: Mapping[Partition, int]) -> None:
        """The watermarks that were asked for."""
        self._asking = False
        if self._answered and (self._answered[-1][1] == ends or len(self._answered) == _ANSWERS_MAX):
            self._answered.pop()  # newer ones say the same of those blocks, later
        self._answered.append((self._covered, ends))

    def passed(self, positions: Mapping[Partition, int]) -> list[bytes]:
        """The blocks of which nothing is left to read, where every partition stands at this next offset."""
        passed: list[bytes] = []
        while self._answered:
            count, ends = self._answered[0]
            if self.reported < count and any(positions.get(where, end) < end for where, end in ends.items()):
                break
            self._answered.popleft()
            while self.reported < count:
                passed.append(self._pending.popitem(last=False)[0])
        return passed


class Healer:
    """Asks a hook. All but ``close`` belongs to one thread.

    Arguments:
        hook: who is asked.
        explain: what a block lacks by now.

    """

    def __init__(self, hook: Heal, explain: Callable[[bytes], Explanation]) -> None:
        self._hook = hook
        self._explain = explain
        self._waiting: deque[bytes] = deque()
        self._unanswered = 0
        self._closed = False
        self._asked: queue.SimpleQueue[Explanation | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[Routed] | HealingFailed] = queue.SimpleQueue()
        # A daemon: a hook that never ends must not keep the process alive.
        self._worker = threading.Thread(target=self._run, name="cardinal-heal", daemon=True)
        self._worker.start()

    def ask(self, block_hash: bytes) -> None:
        """Ask about a block when its turn comes."""
        self._waiting.append(block_hash)
        if len(self._waiting) > _WAITING_MAX:
            self._waiting = deque(dict.fromkeys(one for one in self._waiting if self._explain(one).state == "open"))

    def ask_next(self) -> None:
        """Ask about the blocks whose turn it is, and that still lack something."""
        while self._waiting and self._unanswered < _ASKED_MAX:
            lacking = self._explain(self._waiting.popleft())
            if lacking.state in LACKING:
                self._unanswered += 1
                self._asked.put(lacking)

    @property
    def busy(self) -> bool:
        """Whether a block is to be asked about, or an answer waited for or to be taken."""
        return self._unanswered > 0 or bool(self._waiting)

    def results(self) -> Iterator[list[Routed] | HealingFailed]:
        """What was answered since."""
        while not self._answers.empty():
            self._unanswered -= 1
            yield self._answers.get()

    def close(self) -> None:
        """Ask no more; a call that is under way is not waited for."""
        self._closed = True
        self._asked.put(None)

    def _run(self) -> None:
        while (lacking := self._asked.get()) is not None and not self._closed:
            try:
                self._answers.put(list(self._hook(lacking)))
            except Exception as error:  # noqa: BLE001 - whatever a user's hook raises is reported, and holds up nothing
                self._answers.put(HealingFailed(lacking.block, f"{type(error).__name__}: {error}"))
