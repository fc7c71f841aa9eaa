"""A real Kafka broker as a child process, without Docker and without a system Java."""

from .broker import EmbeddedKafka
from .java import java_home_for_spark

__all__ = ["EmbeddedKafka", "java_home_for_spark"]
