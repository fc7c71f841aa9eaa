"""Cardinal on Spark: the source ``format("cardinal")`` and the lake ``format("cardinal_lake")``.

PySpark discovers both formats (``pyspark_cardinal``, ``pyspark_cardinal_lake``). :func:`register` is for sessions in
which another package on the path prevents the discovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["register", "views"]


def register(spark: SparkSession) -> None:
    """Register both formats in a session. Safe to repeat."""
    import pyspark_cardinal  # noqa: PLC0415 - imports PySpark, which `cardinal_spark.rows` does without
    import pyspark_cardinal_lake  # noqa: PLC0415 - the same

    spark.dataSource.register(pyspark_cardinal.DefaultSource)
    spark.dataSource.register(pyspark_cardinal_lake.DefaultSource)


def views(
    spark: SparkSession, path: str, prefix: str = "", *, storage: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Make a temporary view of every table of a lake, ``current_logs`` and so on; returns their names.

    A query reads the state of each view when the query is planned.

    Arguments:
        spark: the session.
        path: folder or URL of the lake.
        prefix: beginning of the names, for several lakes in one session.
        storage: settings of an object store.

    Raises:
        LakeError: there is no lake.

    """
    from cardinal_spark.lake import Snapshot  # noqa: PLC0415 - see above

    snapshot = Snapshot.at(path, storage)
    options = {**snapshot.location.options, "path": path}
    names = []
    for table in snapshot.tables:
        spark.read.format("cardinal_lake").options(**options, table=table).load().createOrReplaceTempView(
            f"{prefix}{table}"
        )
        names.append(f"{prefix}{table}")
    return tuple(names)
