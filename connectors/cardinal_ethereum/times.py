"""Time of a block, from the number in its header.

Most chains count seconds, some milliseconds, microseconds or nanoseconds (GoQuorum with Raft), and no header names its
unit. So the unit is a function of the number alone: driver, executors and consumers of any version of a chain agree.
Each bound is the year 5138 in its own unit, and at most 1973 in the next larger number's, long before any chain.
"""

from __future__ import annotations

from typing import Final

from cardinal.errors import ApplicationError
from cardinal_ethereum import rlp

_TIMESTAMP: Final = 11
"""Its index in a header."""
_SECONDS, _MILLISECONDS, _MICROSECONDS = 10**11, 10**14, 10**17
"""The first numbers that no longer count seconds, milliseconds, microseconds."""
_END: Final = 253_402_300_800_000_000
"""The year 10000: Spark's TIMESTAMP, SQL databases and Python end before it."""


def microseconds(timestamp: int) -> int | None:
    """Microseconds since 1970 in UTC of a header's ``timestamp``; None from the year 10000 on."""
    if timestamp < _SECONDS:
        return timestamp * 1_000_000
    if timestamp < _MILLISECONDS:
        return timestamp * 1_000
    time = timestamp if timestamp < _MICROSECONDS else timestamp // 1_000
    return time if time < _END else None


def header_time(header: bytes) -> int | None:
    """:func:`microseconds` of a header's RLP; None also where it is none."""
    try:
        item = rlp.decode_list(header)[_TIMESTAMP]
    except (ApplicationError, IndexError):
        return None
    return microseconds(int.from_bytes(item)) if isinstance(item, bytes) else None
