"""Conditions that hold up publishing: each is logged once when it begins and once when it ends."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOG: Final = logging.getLogger("cardinal.produce")


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


class Conditions:
    """The conditions that hold now.

    Arguments:
        clock: seconds.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now: dict[str, tuple[Condition, float]] = {}

    @property
    def waits_for(self) -> str:
        """The sentences of the conditions that hold up publishing; empty where there is none."""
        return "; ".join(condition.begins for condition, _ in self._now.values() if condition.blocks)

    def __contains__(self, name: str) -> bool:
        return name in self._now

    def update(self, holding: Mapping[str, Condition]) -> None:
        """Replace the conditions that hold, by name, and log what changed."""
        now = self._clock()
        for name, (condition, since) in self._now.items():
            if name not in holding and condition.ends:
                LOG.info("%s (after %.0f s)", condition.ends, now - since)
        for name, condition in holding.items():
            if name not in self._now and condition.ends:
                LOG.warning("%s", condition.begins)
        self._now = {
            name: (condition, self._now[name][1] if name in self._now else now) for name, condition in holding.items()
        }
