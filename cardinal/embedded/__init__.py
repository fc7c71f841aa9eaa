"""A real Kafka broker as a child process, without Docker."""
