"""The options of ``format("cardinal_lake")``: names and meanings, in Markdown."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from .tables import COMPACT_EVERY, RETENTION_HOURS

if TYPE_CHECKING:
    from collections.abc import Mapping

SINK_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "path": "the folder, or the URL of a place in an object store; required",
        "integers": "how 256-bit numbers are kept: `string` (default), `decimal` or `binary`; fixed when the lake is "
        "created",
        "senders": "`true` (default): senders are recovered, which takes more time than all the rest",
        "compactEvery": f"batches after which the driver joins small files; default: {COMPACT_EVERY}; 0: never",
        "retentionHours": "how old a file is that nothing names when the driver removes it: more than any query runs; "
        f"default: {RETENTION_HOURS}; 0: never",
    }
)
"""Of the streaming sink."""

READ_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "path": "the folder or URL; required",
        "table": "`current_logs` and so on, a table with its orphans (`logs`), `payload`, `events` or `canonical`; "
        "required",
        "fromBlock": "the lowest block",
        "toBlock": "the highest block",
        "columns": "the names of those that are wanted, with commas between; default: all",
        "asOfSeq": "the lake as it was after this row of `events`",
        "asOfBlock": "the lake as it was when the chain's block of this number had just joined",
        "asOfTime": "the lake as it was at this time, with its zone",
    }
)
"""Of a batch read; one of the last three at most."""

STREAM_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "path": "the folder or URL; required",
        "table": "`events`; required",
        "startingOffsets": "`earliest` (default), `latest`, or the first `seq` that is wanted",
    }
)
"""Of the ledger as a stream."""
