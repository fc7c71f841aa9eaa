"""``format("cardinal_lake")`` for every Spark session of this Python: PySpark discovers ``DefaultSource``.

This package imports nothing but PySpark. Spark imports every ``pyspark_*`` package of a machine when it searches for a
format, and one that cannot be imported hides all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamArrowWriter, DataSourceStreamReader
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The lake: a streaming sink for the rows of ``table=raw``, a batch reader of its tables, its ledger as a stream.

    Options: :mod:`cardinal_spark.lake.options`; ``storage.*`` are the settings of an object store.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "cardinal_lake"

    def schema(self) -> StructType:
        """The columns of the table to be read."""
        from cardinal_spark.lake.reader import read_schema  # noqa: PLC0415 - see the module's docstring
        from cardinal_spark.options import kept_in  # noqa: PLC0415 - the same

        return kept_in(read_schema(self.options), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of one table."""
        from cardinal_spark.lake.reader import LakeReader  # noqa: PLC0415 - see the module's docstring
        from cardinal_spark.options import options_of  # noqa: PLC0415 - the same

        return LakeReader(options_of(self.options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The ledger as a stream."""
        from cardinal_spark.lake.stream import LedgerReader  # noqa: PLC0415 - see the module's docstring
        from cardinal_spark.options import options_of  # noqa: PLC0415 - the same

        return LedgerReader(options_of(self.options, schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802, FBT001 - Spark's names
        """The sink of a streaming query in append mode."""
        from cardinal_spark.lake.writer import LakeWriter  # noqa: PLC0415 - see the module's docstring

        del overwrite
        return LakeWriter(self.options, schema)
