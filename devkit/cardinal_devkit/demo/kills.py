"""Kills in the demo: one process at a time, while the chain grows, and each is started again.

1. The node holds before a reorg. One process is killed then, and the node resumes: the reorg passes without it.
2. After two seconds, and after the consumer received blocks meanwhile, it is started again.
3. The next one is not killed before the log of this one reports that it runs.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .cast import Child

_AWAY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Victim:
    """A process to be killed.

    Attributes:
        child: the process.
        role: what it is.
        started: text of its log when it runs.

    """

    child: Child
    role: str
    started: str


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill that is over.

    Attributes:
        name, role: of the process.
        block: the consumer's head when it was killed.
        resumed: the consumer's head when it was started again.
        seconds: from the kill until it ran again.

    """

    name: str
    role: str
    block: int
    resumed: int
    seconds: float


class Kills:
    """The kills of one demo.

    Arguments:
        victims: each returns the process to kill at that moment; None while there is none.
        note: prints a sentence.

    Attributes:
        done: kills that are over.

    """

    def __init__(self, victims: Iterable[Callable[[], Victim | None]], note: Callable[[str], None]) -> None:
        self.done: list[Kill] = []
        self._next = deque(victims)
        self._note = note
        self._victim: Victim | None = None
        self._block = self._resumed = self._starts = 0
        self._since = 0.0
        self._awaits_blocks = False

    @property
    def over(self) -> bool:
        """True when everything was killed, and runs again."""
        return not self._next and self._victim is None

    def strike(self, head: int, *, more: bool) -> bool:
        """Kill the next one. False while that must wait.

        Arguments:
            head: the consumer's.
            more: blocks follow.

        """
        if self._victim is not None:
            return False
        if not self._next:
            return True
        victim = self._next[0]()
        if victim is None:
            return False
        self._next.popleft()
        self._victim, self._block, self._awaits_blocks = victim, head, more
        self._starts, self._since = victim.child.count(victim.started), time.monotonic()
        victim.child.kill()
        self._note(f"{victim.child.name}, {victim.role}, is killed at block {head}")
        return True

    def look(self, head: int, *, changed: bool) -> None:
        """Start the one that was killed again, and see that it runs.

        Arguments:
            head: the consumer's.
            changed: it received blocks since the last call.

        """
        victim = self._victim
        if victim is None:
            return
        self._awaits_blocks &= not changed
        seconds = time.monotonic() - self._since
        if victim.child.killed:
            if seconds >= _AWAY_SECONDS and not self._awaits_blocks:
                victim.child.start()
                self._resumed = head
                self._note(f"{victim.child.name} is started again: without it the chain came to block {head}")
        elif victim.child.count(victim.started) > self._starts:
            self._note(f"{victim.child.name} is back after {seconds:.1f} s")
            self.done.append(Kill(victim.child.name, victim.role, self._block, self._resumed, seconds))
            self._victim = None
