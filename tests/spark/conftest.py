"""One Spark session for the complete run: starting it costs more than any of these tests."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@contextmanager
def light_java() -> Iterator[None]:
    """A run of minutes does not earn back what Java's second compiler and parallel collector cost."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with Cardinal's formats, as `cardinal lake run` has it."""
    from cardinal_spark.session import local_session  # noqa: PLC0415 - collecting tests needs no PySpark

    with light_java():
        session = local_session("tests")
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    # Spark's Java ends by itself when its input closes, but a moment after us: wait for it, so that nothing is left.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)


@pytest.fixture(scope="module", autouse=True)
def light_processes() -> Iterator[None]:
    """The Java of every process that a test starts."""
    with light_java():
        yield
