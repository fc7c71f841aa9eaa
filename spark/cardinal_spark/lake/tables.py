"""Tables of a lake: their names, columns and keys.

=================  =========================================================  ==================================
table              one row is                                                 written by
=================  =========================================================  ==================================
typed tables       a block, transaction, log, …, by the application           appending, one file per task
``payload``        one path of a block's content; ``value`` null: a delete     appending, one file per task
``events``         one block added (+1) or removed (-1): the ledger by seq     appending, one file per batch
``canonical``      one height of the chain: number, hash, seq                  MERGE, a few rows per batch
=================  =========================================================  ==================================

Rules:

1. ``_seq`` of a typed or payload row is the seq at which its block was added. A block that leaves and rejoins is
   rewritten under its new seq, and ``canonical`` names the seq that counts, so that canonical ⋈ table on
   (hash, seq) holds every (hash, key) once and readers need no duplicate elimination
   (``spark/cardinal_spark/docs/spark.md``, rule 13).
2. ``events`` is dense in seq within its lineage. A removed row repeats the block's columns.
3. Schemas change by new nullable columns only. The type of 256-bit values is fixed when the lake is created.
4. ``path`` is text; a path that is not UTF-8 is stored in ``raw_path`` instead, so that nothing is lost.

This file never opens a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from cardinal_spark.options import INTEGERS, choice, flag, number
from cardinal_spark.rows import TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Mapping

PAYLOAD: Final = "payload"
EVENTS: Final = "events"
CANONICAL: Final = "canonical"

CURRENT: Final = "current_"
"""Prefix of the views that follow the chain: canonical joined with a table."""

BUCKET_SIZE: Final = 10_000
"""Heights per partition of ``canonical`` (``spark/cardinal_spark/docs/spark.md``, rule 12)."""

KEYS: Final = pa.schema(
    [
        ("_seq", pa.int64()),
        ("_block_number", pa.int64()),
        ("_block_hash", pa.binary()),
        ("_block_time", TIMESTAMP),
        ("_published_at", TIMESTAMP),
    ]
)
"""The columns that every typed and payload row begins with."""

PAYLOAD_SCHEMA: Final = pa.schema(
    [*KEYS, ("path", pa.string()), ("raw_path", pa.binary()), ("value", pa.binary())],
)

EVENTS_SCHEMA: Final = pa.schema(
    [
        ("lineage", pa.string()),
        ("seq", pa.int64()),
        ("change", pa.int8()),
        ("update_id", pa.int64()),
        ("number", pa.int64()),
        ("hash", pa.binary()),
        ("parent", pa.binary()),
        ("weight", pa.binary()),
        ("block_time", TIMESTAMP),
        ("published_at", TIMESTAMP),
    ]
)

CANONICAL_SCHEMA: Final = pa.schema(
    [("bucket", pa.int64()), ("number", pa.int64()), ("hash", pa.binary()), ("seq", pa.int64())]
)

CHECKPOINT_EVERY: Final = 50
"""Commits of a table between two checkpoints of its log."""

LOG_SETTINGS: Final = {
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    "delta.logRetentionDuration": "interval 2 minutes",
    "delta.deletedFileRetentionDuration": "interval 1 minute",
}
"""A table gets a commit per batch, and each costs more with every older one in the log and every removed file that the
log still names. Readers need no old versions; history is in ``events``; ``clean`` decides how long removed files are
retained for running queries."""

BOUND_COLUMNS: Final = frozenset({"_seq", "_block_number", "seq", "number", "block_number"})
"""Columns whose bounds let our readers skip files."""


COMPACT_EVERY: Final = 256
"""Batches between two compactions."""

RETENTION_HOURS: Final = 24
"""Retention of files that no table names: longer than any query runs."""


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """Settings of the sink.

    Attributes:
        integers: the type of 256-bit values, one of ``INTEGERS``; fixed when the lake is created.
        senders: recover senders from signatures, which takes most of the time.
        compact_every: batches between two compactions of small files; 0: never.
        retention_hours: hours that a file that no table names is retained; 0: forever.

    """

    integers: str = INTEGERS[0]
    senders: bool = True
    compact_every: int = COMPACT_EVERY
    retention_hours: int = RETENTION_HOURS

    @classmethod
    def of(cls, options: Mapping[str, str]) -> LakeSettings:
        """Parse the options by their lower-case names. ConfigurationError for an invalid value."""
        return cls(
            choice(options, "integers", INTEGERS),
            flag(options, "senders"),
            COMPACT_EVERY if (every := number(options, "compactEvery")) is None else every,
            RETENTION_HOURS if (hours := number(options, "retentionHours")) is None else hours,
        )


def app_id(lineage: str) -> str:
    """The id of the lake's Delta transactions: their version is the last seq that the table holds."""
    return f"cardinal/{lineage}"


def bucket(number: int) -> int:
    """The partition of ``canonical`` that contains a height."""
    return number // BUCKET_SIZE
