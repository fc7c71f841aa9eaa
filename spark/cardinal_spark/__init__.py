"""Cardinal on Spark: the source ``format("cardinal")`` and the lake ``format("cardinal_lake")``.

PySpark finds both formats by itself (``pyspark_cardinal``, ``pyspark_cardinal_lake``). :func:`register` is for
sessions in which another package on the path keeps it from looking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register both formats in a session. Safe to repeat."""
    import pyspark_cardinal  # noqa: PLC0415 - imports PySpark, which `cardinal_spark.rows` does without
    import pyspark_cardinal_lake  # noqa: PLC0415 - the same

    spark.dataSource.register(pyspark_cardinal.DefaultSource)
    spark.dataSource.register(pyspark_cardinal_lake.DefaultSource)
