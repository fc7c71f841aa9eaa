"""Kafka through confluent-kafka."""
