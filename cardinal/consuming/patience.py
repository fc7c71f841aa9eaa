"""Patience with a server, a stream or a block that may appear: the option --wait of commands."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from cardinal.errors import CardinalError, TopicError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("cardinal.wait")
_PAUSE_SECONDS: Final = 0.25
_Answer = TypeVar("_Answer")


class Patience:
    """Time in which what is not there yet may appear.

    Arguments:
        seconds: from now on; None: no time.

    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds or 0.0
        self._deadline = time.monotonic() + self._seconds
        self._logged = False

    def answer(self, call: Callable[[], _Answer]) -> _Answer:
        """The answer of a call, repeated while the time lasts and it fails for what may appear.

        Raises:
            CardinalError: of the call, at the deadline, or where no wait heals it.

        """
        while True:
            try:
                return call()
            except CardinalError as error:
                if not (error.retriable or isinstance(error, TopicError)) or time.monotonic() >= self._deadline:
                    raise
                if not self._logged:
                    self._logged = True
                    _log.info("%s; waiting up to %g s", error, self._seconds)
            time.sleep(_PAUSE_SECONDS)
