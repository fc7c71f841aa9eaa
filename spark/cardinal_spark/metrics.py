"""What ``cardinal lake run`` says of itself, as numbers: from Spark's progress of the query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cardinal.metrics import new_registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .pipeline import BatchStatus

try:
    from prometheus_client import Counter, Gauge, Histogram
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    from cardinal.errors import MissingExtraError

    raise MissingExtraError("Metrics", "server") from absent


class LakeMetrics:
    """The numbers. :meth:`batch` and :meth:`progress` feed them."""

    def __init__(self) -> None:
        self.registry = registry = new_registry()
        self._waits_for = "the query has not read anything yet"
        self._head = Gauge("cardinal_lake_head", "Number of the newest block in the lake.", registry=registry)
        self._seq = Gauge("cardinal_lake_seq", "The last row of the ledger.", registry=registry)
        self._blocks = Counter("cardinal_lake_blocks", "Blocks that joined or left.", registry=registry)
        self._seconds = Histogram(
            "cardinal_lake_batch_seconds",
            "Time of a batch, from looking for blocks to its commit.",
            buckets=(0.25, 0.5, 1, 2, 5, 10, 30, 60, 300),
            registry=registry,
        )
        self._read = Gauge("cardinal_lake_read_head", "Number of the newest block that was read.", registry=registry)
        self._lag = Gauge(
            "cardinal_lake_lag_records", "Records on the topics that are not read yet.", registry=registry
        )
        self._connected = Gauge("cardinal_lake_connected", "Whether the stream's server answers.", registry=registry)
        self._waiting = Gauge(
            "cardinal_lake_awaited_blocks",
            "Blocks that the chain has waited for for more than a minute, five at most.",
            registry=registry,
        )
        self._withheld = Gauge("cardinal_lake_withheld_blocks", "Blocks that are not final yet.", registry=registry)
        self._reports = Gauge(
            "cardinal_lake_reports",
            "What the stream has reported since the query started.",
            ["kind"],
            registry=registry,
        )

    def waits_for(self) -> str:
        """What the query waits for, in a sentence; empty while blocks come."""
        return self._waits_for

    def stands(self, number: int, seq: int) -> None:
        """The lake's newest block, and the last row of its ledger."""
        self._head.set(number)
        self._seq.set(seq)

    def batch(self, status: BatchStatus) -> None:
        """A batch is in the lake."""
        self.stands(status.number, status.seq)
        self._blocks.inc(status.blocks)
        self._seconds.observe(status.seconds)

    def progress(self, progress: Mapping[str, Any]) -> None:
        """Spark's progress of the query, whether it had blocks or not."""
        said = _reading(progress)
        if said is None:
            return
        self._read.set(said["number"])
        self._lag.set(said["lag_records"])
        self._connected.set(said["connected"])
        self._waiting.set(len(said["waits_for"]))
        self._withheld.set(said["withheld"])
        for kind, count in said["reports"].items():
            self._reports.labels(kind).set(count)
        away = "" if said["connected"] else "the stream's server does not answer"
        self._waits_for = away or "; ".join(said["waits_for"])


def _reading(progress: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the planner said of its reading; None where it has not begun."""
    for source in progress["sources"]:
        text = source["latestOffset"]
        said = json.loads(text) if isinstance(text, str) else text
        if isinstance(said, dict) and "lag_records" in said:
            return said
    return None
