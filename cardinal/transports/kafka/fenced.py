"""Transactional sink whose first unclean end is its last: the client is never used after it.

librdkafka lacks KIP-890 (its issue 5423): a request to end a transaction that a broken connection left somewhere may
arrive later, and then ends the next transaction of the same producer epoch. A new client takes the transactional id
with the next epoch, in which that request is refused. So these stop the sink for good (facts/replication.md, RD9):

1. An error of any kind in a transaction: a message that was not acknowledged, an abort, a fencing.
2. A commit that was not answered within ``transaction.timeout.ms``. It may have taken place or not.
3. A connection that was lost since the transaction began. The commit was reported and its call ends well, but another
   request to commit may still be on its way.

Later calls fail with a :class:`~cardinal.errors.ClientStoppedError`, or a :class:`~cardinal.errors.FencedError` where
another producer took over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from confluent_kafka import KafkaError

from .sink import LOG
from .transactions import TransactionalKafkaSink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.errors import CardinalError

    from .transactions import _Call

_INFORMATION: Final = "6"
"""The ``log_level`` from which on lost connections are logged."""

_LOST: Final = "in state UP"


class FencedKafkaSink(TransactionalKafkaSink):
    """Transactional sink that one unclean end stops for good.

    Arguments:
        others: as :class:`~.transactions.TransactionalKafkaSink`.

    """

    _more_headers: ClassVar[int] = 32  # cardinal-agreed and its twelve bytes

    def __init__(self, *args: Any, **others: Any) -> None:  # noqa: ANN401 - passed through
        self._connections = _Connections()
        super().__init__(*args, **others)

    @property
    def usable(self) -> bool:
        """False when it has stopped for good."""
        return self._outbound.stopped is None and not self._outbound.closed

    def _transaction(self, call: _Call) -> None:
        self._outbound.poll(0)
        self._connections.lost = ""  # nothing was in flight when it was lost
        super()._transaction(call)
        # The client logs a lost connection before it makes another, and the commit's answer came on that one.
        self._outbound.poll(0)
        if lost := self._connections.lost:
            self._outbound.stop(KafkaError(KafkaError._TRANSPORT, lost))  # noqa: SLF001 - public code with a private name

    def _commit_until(self) -> float | None:
        return None if self._since is None else self._since + self._timeout

    def _abort(self, error: KafkaError, block_hash: bytes) -> CardinalError:
        failure = super()._abort(error, block_hash)  # so that readers need not wait for the timeout
        self._outbound.stop(self._outbound.stopped or error)
        return failure

    def _client_config(self) -> Mapping[str, Any]:
        self._connections.forwards = self._config["log_level"] != "0"
        return {"log_level": max(self._config["log_level"], _INFORMATION), "logger": self._connections}


class _Connections:
    """Logger of a client, for what nothing else reports: a connection was lost, which it will make again."""

    def __init__(self) -> None:
        self.lost = ""
        self.forwards = False

    def log(self, level: int, text: str, *values: object) -> None:
        """Log a line of librdkafka's; called by the thread that polls."""
        line = text % values
        if _LOST in line:
            self.lost = line.rpartition("]: ")[2]
        if self.forwards:
            LOG.log(level, "%s", line)
