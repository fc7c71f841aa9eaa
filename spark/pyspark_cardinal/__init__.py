"""``format("cardinal")`` for every Spark session of this Python: PySpark discovers ``DefaultSource``.

This package imports nothing but PySpark. Spark imports every ``pyspark_*`` package of a machine when it searches for a
format, and one that cannot be imported hides all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Blocks in chain order as a stream, or the current chain; options: :mod:`cardinal_spark.source.options`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "cardinal"

    def schema(self) -> StructType:
        """The columns of the table that the options name."""
        from cardinal_spark.options import kept_in  # noqa: PLC0415 - see the module's docstring
        from cardinal_spark.source.reader import source_schema  # noqa: PLC0415 - the same

        return kept_in(source_schema(self.options), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader of the current chain."""
        from cardinal_spark.options import options_of  # noqa: PLC0415 - see the module's docstring
        from cardinal_spark.source.reader import CardinalReader  # noqa: PLC0415 - the same

        return CardinalReader(options_of(self.options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The streaming source."""
        from cardinal_spark.options import options_of  # noqa: PLC0415 - see the module's docstring
        from cardinal_spark.source.reader import CardinalStreamReader  # noqa: PLC0415 - the same

        return CardinalStreamReader(options_of(self.options, schema), schema)
