"""Metrics of ``cardinal lake run``, from Spark's progress of the query."""

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
    """The metrics of one query. :meth:`batch` and :meth:`progress` update them."""

    def __init__(self) -> None:
        self.registry = registry = new_registry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"cardinal_lake_{name}", text, labels, registry=registry)

        self._waits_for = "the query has not read anything yet"
        self._head = gauge("head", "Number of the newest block in the lake.")
        self._seq = gauge("seq", "The last row of the ledger.")
        self._blocks = Counter("cardinal_lake_blocks", "Blocks that joined or left.", registry=registry)
        self._unfit = Counter(
            "cardinal_lake_unfit_blocks",
            "Blocks with a null for a number in the header that no column holds.",
            registry=registry,
        )
        self._seconds = Histogram(
            "cardinal_lake_batch_seconds",
            "Time of a batch, from looking for blocks to its commit.",
            buckets=(0.25, 0.5, 1, 2, 5, 10, 30, 60, 300),
            registry=registry,
        )
        self._read = gauge("read_head", "Number of the newest block that was read.")
        self._lag = gauge("lag_records", "Records that are not read, or are of updates that are not in a batch yet.")
        self._connected = gauge("connected", "Whether the stream's server answers.")
        awaited = "Blocks that the chain has waited for for more than a minute, five at most."
        self._waiting = gauge("awaited_blocks", awaited)
        self._withheld = gauge("withheld_blocks", "Blocks that are not final yet.")
        self._reports = gauge("reports", "Reports of the stream since the query started.", "kind")

    def waits_for(self) -> str:
        """A sentence about what the query waits for; empty while blocks come."""
        return self._waits_for

    def set_head(self, number: int, seq: int) -> None:
        """Set the lake's newest block, and the last row of its ledger."""
        self._head.set(number)
        self._seq.set(seq)

    def batch(self, status: BatchStatus) -> None:
        """Count a batch that is in the lake."""
        self.set_head(status.number, status.seq)
        self._blocks.inc(status.blocks)
        self._seconds.observe(status.seconds)
        self._unfit.inc(status.unfit)

    def progress(self, progress: Mapping[str, Any]) -> None:
        """Take Spark's progress of the query, with blocks or without."""
        report = _planner_report(progress)
        if report is None:
            return
        self._read.set(report["number"])
        self._lag.set(report["lag_records"])
        self._connected.set(report["connected"])
        self._waiting.set(len(report["waits_for"]))
        self._withheld.set(report["withheld"])
        for kind, count in report["reports"].items():
            self._reports.labels(kind).set(count)
        silent = "" if report["connected"] else "the stream's server does not answer"
        self._waits_for = silent or "; ".join(report["waits_for"])


def _planner_report(progress: Mapping[str, Any]) -> dict[str, Any] | None:
    """The planner's report; None before it reads."""
    for source in progress["sources"]:
        text = source["latestOffset"]
        report = json.loads(text) if isinstance(text, str) else text
        if isinstance(report, dict) and "lag_records" in report:
            return report
    return None
