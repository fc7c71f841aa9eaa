"""Healing: a hook may have the messages that an absent block lacks, as a node or an archive does.

The hook is called on a thread of its own, one block after the other, so that reading goes on; no block is abandoned
meanwhile. What it answers is taken by the loop. A hook that raises is reported and not called again for that block.
Many blocks may be absent at once, after a stream was caught up with: their hashes wait, and what each lacks is found
out when its turn comes.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.protocols.streams.events import Explanation
from cardinal.protocols.streams.types import Routed

if TYPE_CHECKING:
    from collections.abc import Iterator

Heal: TypeAlias = Callable[[Explanation], Iterable[Routed]]
"""Given what a block lacks, the messages of that block, all of them or those that lack; empty where there are none."""

LACKING: Final = frozenset({"open", "unknown"})
"""The states of blocks of which something may still come."""

_ASKED_MAX: Final = 1_000
_WAITING_MAX: Final = 20_000
"""Twice as many as may be open: a block that is not is asked about no more."""


@dataclass(frozen=True, slots=True)
class HealingFailed:
    """The hook raised. ``reason`` is the error's kind and sentence."""

    block: bytes
    reason: str


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
