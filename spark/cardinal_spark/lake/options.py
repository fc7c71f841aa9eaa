"""Options of ``format("cardinal_lake")``: names and meanings, in Markdown."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from .tables import COMPACT_EVERY, RETENTION_HOURS

if TYPE_CHECKING:
    from collections.abc import Mapping

SINK_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "path": "the lake: a folder, or a URL in an object store; required",
        "integers": "the type of 256-bit numbers: `string` (default), `decimal` or `binary`; fixed when the lake is "
        "created",
        "senders": "`true` (default): senders are recovered from signatures, which takes most of the time",
        "compactEvery": f"batches between two compactions of small files; default: {COMPACT_EVERY}; 0: never",
        "retentionHours": "hours that the driver retains a file that no table names: longer than any query runs; "
        f"default: {RETENTION_HOURS}; 0: forever",
    }
)
"""Of the streaming sink."""

READ_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "path": "the lake: a folder or URL; required",
        "table": "`current_logs` and so on, a table with its orphans (`logs`), `payload`, `events` or `canonical`; "
        "required",
        "fromBlock": "the number of the lowest block",
        "toBlock": "the number of the highest block",
        "columns": "comma-separated names of the columns to read; default: all",
        "asOfSeq": "the state of the lake after this row of `events`",
        "asOfBlock": "the state of the lake when the chain's block of this number had just joined",
        "asOfTime": "what was published by this time, with its zone; a backfill publishes blocks late",
    }
)
"""Of a batch read; one of the last three at most."""

STREAM_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "path": "the lake: a folder or URL; required",
        "table": "`events`; required",
        "startingOffsets": "`earliest` (default), `latest`, or the first `seq` to read",
    }
)
"""Of the ledger as a stream."""
