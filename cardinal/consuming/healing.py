"""Healing: a hook may have the messages that an absent block lacks, as a node or an archive does.

The hook is called on a thread of its own, one block after the other, so that reading continues; no block is abandoned
meanwhile. Its answers are taken by the loop. A hook that raises is reported and not called again for that block.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.protocols.streams import events
from cardinal.protocols.streams.events import Explanation
from cardinal.protocols.streams.types import Routed
from cardinal.texts import Readable

if TYPE_CHECKING:
    from collections.abc import Iterator

Heal: TypeAlias = Callable[[Explanation], Iterable[Routed]]
"""Given what a block lacks, the messages of that block, all of them or those that lack; empty where there are none."""

_REQUESTS_MAX: Final = 20_000
"""Blocks that wait for the hook, twice as many as may be open; further ones are not healed."""


@dataclass(frozen=True, slots=True, repr=False)
class HealingFailed(Readable):
    """The hook raised. ``reason`` is the error's kind and sentence."""

    block: bytes
    reason: str


Event: TypeAlias = events.Event | HealingFailed
"""A report, as ``on_event`` takes it."""


class Healer:
    """Calls a hook. All but ``close`` belongs to one thread."""

    def __init__(self, hook: Heal) -> None:
        self._hook = hook
        self._pending = 0
        self._closed = False
        self._requests: queue.SimpleQueue[Explanation | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[Routed] | HealingFailed] = queue.SimpleQueue()
        # A daemon: a hook that never ends must not keep the process alive.
        self._worker = threading.Thread(target=self._run, name="cardinal-heal", daemon=True)
        self._worker.start()

    def request(self, lacking: Explanation) -> None:
        """Request what a block lacks."""
        if self._pending < _REQUESTS_MAX:
            self._pending += 1
            self._requests.put(lacking)

    @property
    def busy(self) -> bool:
        """True while an answer is pending or not yet taken."""
        return self._pending > 0

    def results(self) -> Iterator[list[Routed] | HealingFailed]:
        """The answers since the last call."""
        while not self._answers.empty():
            self._pending -= 1
            yield self._answers.get()

    def close(self) -> None:
        """End; a call that is in progress is not waited for."""
        self._closed = True
        self._requests.put(None)

    def _run(self) -> None:
        while (lacking := self._requests.get()) is not None and not self._closed:
            try:
                self._answers.put(list(self._hook(lacking)))
            except Exception as error:  # noqa: BLE001 - any error of a user's hook is reported, and blocks nothing
                self._answers.put(HealingFailed(lacking.block, f"{type(error).__name__}: {error}"))
