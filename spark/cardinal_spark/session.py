"""Spark session for one machine: no jar, no UI, few logs, times in UTC.

On a cluster the same formats work in any session of ``spark-submit``; this file is for ``cardinal lake run``,
notebooks and tests.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from cardinal.errors import MissingExtraError
from cardinal_spark.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # block-sized rows: a batch between JVM and Python is limited by bytes before rows
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    # a killed query must not leave temporary checkpoints of other queries, and ours is always named
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}


_ALONE: Final[Mapping[str, str]] = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings of a session on this machine alone: executors elsewhere could not reach its driver."""

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""The variable that spark-submit sets for a driver in Python."""

_TASK_TRIES: Final = 4
"""A killed Python worker costs its task one attempt, not the query."""

_ERROR: Final = re.compile(r"^.*[\w.$](?:Exception|Error): (.+)$", re.MULTILINE)
"""A line by which Java reports an error."""

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


def local_session(
    name: str = "cardinal",
    *,
    cores: int = 2,
    master: str = "",
    settings: Mapping[str, str] | None = None,
    java_output: IO[bytes] | None = None,
) -> SparkSession:
    """A local Spark session with Cardinal's formats registered.

    Finds a Java that this Spark runs on and sets this Python as the workers' interpreter (Spark would start
    ``python3``). ``settings`` are Spark's and override ours. ``master`` names a cluster instead. ``java_output`` is a
    file for what Java prints, for the first session of a process. Under spark-submit, its own settings decide.

    Raises MissingExtraError without PySpark or any Java, JavaNotFoundError where the Java found does not run, LakeError
    where Spark does not start.
    """
    try:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark
        from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional dependency
        from pyspark.sql import SparkSession  # noqa: PLC0415 - the same
    except ImportError:
        raise MissingExtraError("a Spark session", "spark") from None
    from . import register  # noqa: PLC0415 - imports PySpark

    builder = SparkSession.builder.appName(name)
    chosen = dict(_SETTINGS)
    if _SUBMITTED not in os.environ:
        prepare_environment(alone=not master)
        builder = builder.master(master or f"local[{cores},{_TASK_TRIES}]")
        chosen["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
        chosen |= {} if master else _ALONE
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        if java_output is not None and _SUBMITTED not in os.environ:
            _start_java(java_output, {**chosen, **(settings or {})}, name, master or f"local[{cores},{_TASK_TRIES}]")
        spark = builder.getOrCreate()
        register(spark)
    except (PySparkException, Py4JError, ConnectionError) as error:
        printed = "" if java_output is None or hasattr(error, "java_exception") else java_error(java_output)
        reason = printed or str(getattr(error, "java_exception", error)).partition("\n")[0]
        raise LakeError(f"Spark did not start: {reason}") from error
    return spark


def _start_java(output: IO[bytes], settings: Mapping[str, str], name: str, master: str) -> None:
    """Start the Spark context that sessions of this process use, with a file for what its Java prints.

    Java itself and its Python workers print dozens of lines at the start and for a failure that the query's exception
    reports in one sentence; no setting of Spark's log reaches them all.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an optional dependency
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - the same

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items())).setAppName(name).setMaster(master)
    gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
    SparkContext(conf=conf, gateway=gateway)


def java_error(output: IO[bytes]) -> str:
    """The error that a Java printed before it ended; its last line where it named none."""
    output.seek(0)
    text = output.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("\t", "WARNING"))]
    named = _ERROR.findall("\n".join(lines))
    return named[-1] if named else lines[-1] if lines else ""


def prepare_environment(*, alone: bool = True) -> None:
    """Set the Java that this Spark runs on, and this Python as the workers' interpreter; before a session is created.

    ``alone``: the session uses this machine alone.
    """
    from cardinal_spark.java import java_home_for_spark  # noqa: PLC0415 - looks for a Java

    os.environ["JAVA_HOME"] = str(java_home_for_spark())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if alone:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # avoids a warning on hosts whose name is a loopback
