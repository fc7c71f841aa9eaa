"""Writer of the claim log. Its reader is a :class:`~.reading.LogReader`.

Rules (``connectors/cardinal_ingest/docs/replication.md``, section 4):

1. Idempotent, acknowledged by all in-sync replicas, into the one partition.
2. A claim that was acknowledged is in the log. One that failed may be there as well, as the answer may have been lost.
   The outcome is learnt by reading; to append the same claim again is harmless.
3. A claim is tried for ``message.timeout.ms`` (default 10 s) and then has failed: the caller retries, as its timers
   grow.
4. A client that stopped for good is replaced at the next claim.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, Producer

from cardinal.errors import TransportError
from cardinal.transports.kafka import TRANSACTIONS
from cardinal.transports.kafka.delivery import Outbound
from cardinal.transports.kafka.errors import Reasons, bad_setting, kafka_error
from cardinal_ingest.cluster.topics import cluster_settings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from cardinal.config.url import TransportUrl

_TRIED_MS: Final = 10_000
_CLOSE_SECONDS: Final = 2.0
_DOING: Final = "while appending a claim"


class ClaimWriter:
    """Writer of a claim log. Its methods may be called from any thread.

    Arguments:
        url: the stream's.
        topic: the claim log's.

    Raises:
        ConfigurationError: an option of the URL cannot work.

    """

    def __init__(self, url: str | TransportUrl, topic: str) -> None:
        self._topic = topic
        settings = cluster_settings(url)
        self._reasons = Reasons(settings.address)
        config = settings.producer(settings.max_message_bytes, "")
        config["message.timeout.ms"] = settings.properties.get("message.timeout.ms", str(_TRIED_MS))
        self._config = {name: value for name, value in config.items() if name not in TRANSACTIONS}
        self._lock = threading.Lock()
        self._closed = False
        self._fatal = False
        self._outbound = self._connect()

    def append(self, key: bytes, value: bytes) -> Future[int | None]:
        """Append a record.

        Returns:
            A future with its offset; None where it is in the log and the client does not know at which offset, because
            an earlier answer was lost. It fails with a TransportError.

        """
        future: Future[int | None] = Future()
        future.set_running_or_notify_cancel()

        def reported(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                future.set_result(None if offset is None or offset < 0 else offset)
            else:
                self._noted(error)
                future.set_exception(self._reasons.map(error, _DOING))

        try:
            self._client().produce(self._topic, value, key, 0, on_delivery=reported)
        except KafkaException as error:  # one that is too large, say
            self._noted(kafka_error(error))
            future.set_exception(self._reasons.map(kafka_error(error), _DOING))
        except BufferError:
            future.set_exception(TransportError("too many claims are in flight; append it again later"))
        return future

    def close(self) -> None:
        """Wait for acknowledgements for a bounded time, fail what is left, release the connection."""
        with self._lock:
            self._closed = True
        _release(self._outbound)

    def _client(self) -> Producer:
        with self._lock:
            if self._closed:
                raise TransportError("this writer of claims is closed; open another one")
            if self._fatal or self._outbound.stopped is not None:
                self._fatal = False
                old, self._outbound = self._outbound, self._connect()
                threading.Thread(target=_release, args=(old,), name="cardinal-kafka-closing", daemon=True).start()
            return self._outbound.client

    def _connect(self) -> Outbound:
        try:
            return Outbound(Producer({**self._config, "error_cb": self._noted}))
        except KafkaException as error:
            raise bad_setting(error) from None

    def _noted(self, error: KafkaError) -> None:
        self._reasons(error)
        self._fatal |= error.fatal()


def _release(outbound: Outbound) -> None:
    outbound.client.flush(_CLOSE_SECONDS)
    outbound.fail_unacknowledged(_CLOSE_SECONDS)
    outbound.close(_CLOSE_SECONDS)
