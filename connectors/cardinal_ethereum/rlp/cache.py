"""Memoised function with a dictionary's lookup: two thirds of the time of ``functools.lru_cache``.

Gas, prices, sizes and addresses repeat within and between blocks, with hundreds of lookups per block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Memo(dict[_Key, _Value]):
    """``memo[key]`` is ``make(key)``. Any thread may look up: two may make equal values.

    Arguments:
        make: a pure function; exceptions are not cached.
        maxsize: cached values; one more clears the cache, which common values soon refill.

    """

    __slots__ = ("_make", "_most")

    def __init__(self, make: Callable[[_Key], _Value], *, maxsize: int) -> None:
        super().__init__()
        self._make = make
        self._most = maxsize

    def __missing__(self, key: _Key) -> _Value:
        """Make and cache the value."""
        value = self._make(key)
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value
