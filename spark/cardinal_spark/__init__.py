"""Cardinal on Spark: the source ``format("cardinal")`` and the lake ``format("cardinal_lake")``.

PySpark discovers both formats (``pyspark_cardinal``, ``pyspark_cardinal_lake``). :func:`register` is for sessions in
which another package on the path prevents the discovery. :func:`open_lake` needs no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from cardinal.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from cardinal_spark.lake.lake import Lake

__all__ = ["open_lake", "register", "views"]


def open_lake(
    path: str,
    *,
    storage: Mapping[str, str] | None = None,
    as_of_seq: int | None = None,
    as_of_block: int | None = None,
    as_of_time: str | None = None,
) -> Lake:
    """Open a lake without Spark: ``open_lake("./lake").sql("select count(*) from current_logs").df()``.

    Arguments:
        path: folder or URL of the lake.
        storage: settings of an object store.
        as_of_seq: the state after this row of ``events``.
        as_of_block: the state when this block had just joined.
        as_of_time: what was published by this time, ``2026-01-31T12:00:00Z``; not the time of blocks.

    Raises:
        LakeError: there is no lake, or no state so old.
        MissingExtraError: the extra ``tables`` is not installed.

    """
    for module in ("pyarrow", "deltalake", "numpy"):
        try:
            importlib.import_module(module)
        except ImportError:
            raise MissingExtraError("open_lake", "tables") from None
    from cardinal_spark.lake import AsOf, Snapshot  # noqa: PLC0415 - imports the extra
    from cardinal_spark.lake.lake import Lake  # noqa: PLC0415 - the same

    parsed = {"asofseq": as_of_seq, "asofblock": as_of_block, "asoftime": as_of_time}
    chosen = AsOf.of({name: str(value) for name, value in parsed.items() if value is not None})
    return Lake(Snapshot.at(path, storage, chosen))


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
