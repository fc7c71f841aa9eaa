"""Errors of the developer kit."""

from __future__ import annotations

from cardinal.errors import CardinalError


class EmbeddedBrokerError(CardinalError):
    """The embedded Kafka could not be prepared, started or stopped."""


class JarError(EmbeddedBrokerError):
    """A jar could not be fetched, or differs from the lock file. ``jar`` names it."""

    def __init__(self, message: str, *, jar: str) -> None:
        super().__init__(message)
        self.jar = jar


class DataInUseError(EmbeddedBrokerError):
    """A broker runs on the data folder already. ``pid`` is its process where that is known."""

    def __init__(self, message: str, *, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid
