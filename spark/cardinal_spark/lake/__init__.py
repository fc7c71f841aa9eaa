"""The lake: Delta tables that follow the chain, written by Spark, read by anything that reads Arrow.

``read`` and ``scan`` give Arrow tables without Spark, as of now or as it was; ``last_committed`` says where a stream
goes on.
"""

from __future__ import annotations

from .as_of import AsOf
from .query import LastCommitted, Snapshot, last_committed, read, scan

__all__ = ["AsOf", "LastCommitted", "Snapshot", "last_committed", "read", "scan"]
