"""A real Kafka broker as a child process, without Docker and without a system Java."""

from cardinal_spark.java import java_home_for_spark

from .broker import EmbeddedKafka
from .cluster import EmbeddedCluster
from .security import Security
from .state import free_port

__all__ = ["EmbeddedCluster", "EmbeddedKafka", "Security", "free_port", "java_home_for_spark"]
