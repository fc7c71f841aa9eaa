"""A function's values, looked up like a dictionary's: in two thirds of the time of ``functools.lru_cache``.

Blocks repeat themselves: gas, prices, sizes and addresses come again and again, and hundreds of them are looked up for
every block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Remembered(dict[_Key, _Value]):
    """``remembered[key]`` is what ``make(key)`` gives. Any thread may look: two may make equal values.

    Arguments:
        make: a pure function; what it refuses is not remembered.
        most: values that are held. One more, and all are forgotten: what is common is soon there again.

    """

    __slots__ = ("_make", "_most")

    def __init__(self, make: Callable[[_Key], _Value], *, most: int) -> None:
        super().__init__()
        self._make = make
        self._most = most

    def __missing__(self, key: _Key) -> _Value:
        """Make it."""
        value = self._make(key)
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value
