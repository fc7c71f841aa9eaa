"""Taking a transactional id: whoever had it before is fenced, and what that one left open is aborted."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from cardinal.errors import ConfigurationError

from .errors import kafka_error

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from .errors import Reasons

_SLICE: Final = 1.0
_SETTINGS: Final = frozenset(
    {
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.INVALID_CONFIG,
        KafkaError._INVALID_ARG,  # noqa: SLF001 - a public code with a private name
    }
)


def take_id(client: Producer, reasons: Reasons, *, timeout: float, connect_timeout: float) -> None:
    """Make this client the one that has its transactional id.

    Arguments:
        client: librdkafka's producer; its configuration holds the id.
        reasons: what its ``error_cb`` told.
        timeout: ``transaction.timeout.ms`` in seconds, for the error.
        connect_timeout: seconds until the broker must have answered.

    Raises:
        ConfigurationError: the broker does not take the transaction timeout.
        UnreachableError, RefusedError, FencedError: the broker is away or says no; another one takes the id right now.

    """
    deadline = time.monotonic() + connect_timeout
    while True:
        try:
            client.init_transactions(_SLICE)
        except KafkaException as error:
            inner = kafka_error(error)
            with contextlib.suppress(KafkaException, KafkaError):  # type: ignore[arg-type] # see Outbox
                client.poll(0)
            if refusal := reasons.refusal():
                raise refusal from None
            if inner.code() in _SETTINGS:
                raise ConfigurationError(
                    f"the broker does not take transaction.timeout.ms={timeout * 1000:.0f}: {inner.str()}",
                    setting="transaction.timeout.ms",
                ) from None
            if not inner.retriable():
                raise reasons.map(inner, "while taking the transactional id") from None
            if time.monotonic() > deadline:
                raise reasons.unreachable(connect_timeout) from None
        else:
            return
