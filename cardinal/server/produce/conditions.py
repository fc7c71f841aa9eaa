"""Conditions that hold up the service: each is logged when it begins and when it ends.

One that ends by itself within ten seconds, as at a start or a restart, concerns nobody. One that lasts is a warning,
every ten minutes again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cardinal.errors import CardinalError
from cardinal.server.log_fields import SENTENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

LOG: Final = logging.getLogger("cardinal.produce")
PAUSE_MAX_SECONDS: Final = 30.0
"""The longest time between two attempts to reach a node or a broker."""

_PAUSE_SECONDS: Final = 1.0
_LASTING_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 600.0

_Answer = TypeVar("_Answer")


class Condition(NamedTuple):
    """A state of the service.

    Attributes:
        begins: the sentence while it lasts.
        ends: the sentence for its end; the time that it lasted is added. Empty: its begin and end are logged elsewhere.
        blocks: nothing is published meanwhile.

    """

    begins: str
    ends: str
    blocks: bool = True


@dataclass(slots=True)
class _Holding:
    """A condition, the time since which it holds, and the time of its next warning."""

    condition: Condition
    since: float
    warned_next: float


class Conditions:
    """The conditions that hold now.

    Arguments:
        clock: seconds.
        patience: seconds from now in which :meth:`answer` waits; None: no limit.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, patience: float | None = None) -> None:
        self._clock = clock
        self._deadline = math.inf if patience is None else clock() + patience
        self._now: dict[str, _Holding] = {}

    @property
    def waits_for(self) -> str:
        """The sentences of the conditions that hold up publishing; empty where there is none."""
        return "; ".join(one.condition.begins for one in self._now.values() if one.condition.blocks)

    def __contains__(self, name: str) -> bool:
        return name in self._now

    def update(self, holding: Mapping[str, Condition]) -> None:
        """Replace the conditions that hold, by name, and log what changed."""
        now, before = self._clock(), self._now
        for name, one in before.items():
            if name not in holding and one.condition.ends:
                LOG.info("%(message)s (after %(seconds).0f s)", _fields(name, one.condition.ends, now - one.since))
        self._now = {}
        for name, condition in holding.items():
            first = now + (_LASTING_SECONDS if condition.ends else _AGAIN_SECONDS)
            one = self._now[name] = before.get(name) or _Holding(condition, now, first)
            one.condition = condition
            if name not in before and condition.ends:
                LOG.info(SENTENCE, _fields(name, condition.begins, 0.0))
            elif now >= one.warned_next:
                LOG.warning("%(message)s (for %(seconds).0f s now)", _fields(name, condition.begins, now - one.since))
                one.warned_next = now + _AGAIN_SECONDS

    async def answer(self, call: Callable[[], Awaitable[_Answer]], peer: str = "broker") -> _Answer:
        """Repeat a call, with growing pauses, while a node or the ``peer`` is unreachable; its answer.

        Raises:
            CardinalError: of the call, where waiting does not heal it, or when the patience has ended.

        """
        pause = _PAUSE_SECONDS
        while True:
            try:
                answer = await call()
            except CardinalError as error:
                if not error.retriable or self._clock() >= self._deadline:
                    raise
                name = error.peer or peer
                self.update({name: Condition(f"{error}; the service waits", f"the {name} answers")})
            else:
                self.update({})
                return answer
            await asyncio.sleep(max(0.0, min(pause, self._deadline - self._clock())))
            pause = min(2 * pause, PAUSE_MAX_SECONDS)


def _fields(name: str, sentence: str, seconds: float) -> dict[str, object]:
    return {"kind": name, "message": sentence, "seconds": round(seconds, 3)}
