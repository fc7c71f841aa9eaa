"""The lake: Delta tables that follow the chain, written by Spark, read by anything that reads Arrow.

``read`` and ``scan`` return Arrow tables without Spark, of the current or an earlier state; ``last_committed`` returns
the position from which a stream resumes.
"""

from __future__ import annotations

from .as_of import AsOf
from .query import LastCommitted, Snapshot, last_committed, read, scan

__all__ = ["AsOf", "LastCommitted", "Snapshot", "last_committed", "read", "scan"]
