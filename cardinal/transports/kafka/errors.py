"""Errors of librdkafka, mapped to Cardinal's.

A call that fails because a broker refuses us only reports a timeout or a lost connection; the reason arrives
separately, through ``error_cb`` (seen on a real broker: wrong password, foreign CA). So every client gets a
:class:`Reasons`, and an error is built from the call's code and the last reason together.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from cardinal.errors import (
    CardinalError,
    ConfigurationError,
    CursorExpiredError,
    FencedError,
    RefusedError,
    TopicError,
    TransportError,
    UnreachableError,
)

from .settings import first_name, unknown_option

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGIN: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})  # noqa: SLF001 - public codes with private names
_TLS: Final = frozenset({KafkaError._SSL})  # noqa: SLF001 - the same
_AWAY: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - the same
        KafkaError._TRANSPORT,  # noqa: SLF001 - the same
        KafkaError._DESTROY_BROKER,  # noqa: SLF001 - the same
        KafkaError._RESOLVE,  # noqa: SLF001 - the same
        KafkaError._TIMED_OUT,  # noqa: SLF001 - the same
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - the same
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
    }
)
FORBIDDEN: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Codes for a missing ACL."""

_TAKEN_OVER: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001 - the same
)
_TLS_ALERT: Final = re.compile(r"alert bad certificate|alert (unknown|certificate)|handshake failure", re.IGNORECASE)
_CREATING: Final = re.compile(r"^Failed to create [a-z ]+: ")
_PROPERTY: Final = re.compile(r'property[: ]+"?([a-z0-9._]+)"?')
_FILE: Final = re.compile(r"(ssl\.[a-z.]+\.location) failed")
_RETRY_SECONDS: Final = 1.0
"""Interval between queries after a refusal."""
_NO_LOGIN: Final = re.compile(r"supported mechanisms: *$")
_NOISE: Final = re.compile(
    r"^(?:[a-z_]+://)?\S+?/(?:bootstrap|\d+): |\s*\((?:after|in state)[^)]*\)|, \d+ identical.*$"
)


class Reasons:
    """Reports of ``error_cb``, for the error that is built later. One per client; called from its poll thread.

    Arguments:
        address: the brokers without credentials.
        probe: a handshake with a broker that librdkafka cannot connect to, for a better reason (:mod:`.probe`).
        clock: monotonic seconds.

    """

    def __init__(
        self, address: str, probe: Callable[[], str | None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.address = address
        self._probe = probe
        self._clock = clock
        self._probed = False
        self._reason: str | None = None
        self._refusal: KafkaError | None = None
        self._refused = 0.0
        self._away: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Record this error: librdkafka's ``error_cb``."""
        if _is_refusal(error):
            if self._refusal is None:
                self._refused = self._clock()
            self._refusal = error
        elif error.code() in _AWAY and (self._away is None or error.code() != KafkaError._ALL_BROKERS_DOWN):  # noqa: SLF001 - public code
            # "all brokers are down" is less specific than the error of the last of them
            self._away = error

    def lasting(self, seconds: float) -> RefusedError | None:
        """A refusal after which the broker has accepted nothing for ``seconds``."""
        if self._refusal is None or self._clock() - self._refused < seconds:
            return None
        return self.refusal()

    def refusal(self) -> RefusedError | None:
        """The error for a broker that has refused us; None where it has not."""
        if self._refusal is None:
            return None
        if self._refusal.code() not in _LOGIN and (suspicion := self.suspicion()):
            return suspicion
        return _refused(self._refusal, self.address)

    def suspicion(self) -> RefusedError | None:
        """The error for a broker that has neither answered nor refused us, from one handshake."""
        if not self._probed:
            self._probed = True
            self._reason = self._probe()
        if self._reason is None:
            return None
        return RefusedError(f"Kafka at {self.address} cannot be talked to: {self._reason}")

    def forget(self) -> None:
        """Discard all reports, after the broker has answered."""
        self.withdraw()
        self._away = None

    def withdraw(self) -> None:
        """Discard a refusal that was reported, though the broker has not answered yet."""
        self._refusal = self._reason = None
        self._probed = False

    def unreachable(self, seconds: float) -> TransportError:
        """The error for a broker that has not answered for ``seconds``."""
        if refusal := self.refusal():
            return refusal
        why = f" ({_clean(self._away)})" if self._away is not None else ""
        return UnreachableError(
            f"no Kafka broker answered at {self.address} within {seconds:.0f} s{why}: start one "
            "(cardinal broker up), correct the address, or add ?tls=1 if it speaks TLS only",
            address=self.address,
        )

    def map(self, error: KafkaError, doing: str) -> TransportError:
        """Cardinal's error for one of librdkafka's.

        Arguments:
            error: of a call, a record or a delivery report.
            doing: the operation, as in "while creating topic x".

        """
        code = error.code()
        if _is_refusal(error):
            return _refused(error, self.address)
        if code in FORBIDDEN:
            return RefusedError(f"Kafka at {self.address} does not permit this {doing}: {_clean(error)}; grant the ACL")
        if code in _TAKEN_OVER:
            return FencedError(f"another producer with the same id took over {doing}: give each producer its own id")
        if code in _AWAY:
            return self.refusal() or UnreachableError(
                f"Kafka at {self.address} did not answer {doing} ({_clean(error)})", address=self.address
            )
        return TransportError(f"Kafka at {self.address} failed {doing}: {_clean(error)}")


class PendingError:
    """An error that the client has reported, until a poll raises it, after the records before it.

    The client reports expired offsets, a deleted topic and a missing permission once: every poll raises these, until
    another assignment. After a missing permission the source reassigns every second, so that the broker answers or
    refuses again. Any other error is raised once.
    """

    def __init__(self) -> None:
        self._why: Callable[[], CardinalError] | None = None
        self._refused: float | None = None

    def __bool__(self) -> bool:
        return self._why is not None

    def keep(self, why: Callable[[], CardinalError]) -> None:
        """Record the error that ``why`` makes, unless one is pending."""
        if self._why is None:
            self._why = why

    def forget(self) -> None:
        """Discard the error."""
        self._why = self._refused = None

    def retry_due(self, now: float) -> bool:
        """True for a refusal that is older than the retry interval."""
        return self._refused is not None and now - self._refused >= _RETRY_SECONDS

    def throw(self, now: float) -> None:
        """Raise the pending error, if any.

        Raises:
            UnreachableError: its cause cannot be determined now; the next call retries.

        """
        if self._why is None:
            return
        error = self._why()
        self._why = (lambda: error) if isinstance(error, CursorExpiredError | TopicError | RefusedError) else None
        if isinstance(error, RefusedError) and self._refused is None:
            self._refused = now
        raise error.with_traceback(None)


def kafka_error(error: KafkaException) -> KafkaError:
    """The KafkaError inside a KafkaException."""
    inner = error.args[0] if error.args else None
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(error))  # noqa: SLF001 - public code


def bad_setting(error: KafkaException) -> ConfigurationError:
    """The error for settings that librdkafka refuses; names the property, never a secret's value."""
    inner = kafka_error(error)
    text = _CREATING.sub("", inner.str())
    match = _PROPERTY.search(text)
    name = match and first_name(match[1])
    if match is not None:
        text = text.replace(match[1], str(name))
    if name is not None and text.startswith("No such"):
        return unknown_option(name)
    if failed := _FILE.search(text):
        return ConfigurationError(
            f"the file of {failed[1]} cannot be used: check that it exists, that this user may read it, and that it is "
            "in PEM format",
            setting=failed[1],
        )
    if name is not None and re.search(r"password|secret|pem|oauthbearer\.config", name):
        text = f"the value of {name} is not valid"
    return ConfigurationError(f"the Kafka settings cannot work: {text}; correct the URL's options", setting=name)


def _is_refusal(error: KafkaError) -> bool:
    return error.code() in _LOGIN or error.code() in _TLS or bool(_TLS_ALERT.search(error.str() or ""))


def _refused(error: KafkaError, address: str) -> RefusedError:
    if error.code() in _LOGIN:
        if _NO_LOGIN.search(_clean(error)):
            return RefusedError(f"Kafka at {address} accepts no login: leave user, password and sasl.mechanism out")
        return RefusedError(
            f"Kafka at {address} refused the login: {_clean(error)}; check user, password and mechanism"
        )
    return RefusedError(f"the TLS handshake with Kafka at {address} failed: {_clean(error)}; check CA and certificate")


def _clean(error: KafkaError) -> str:
    """The error's text without the parts that only librdkafka's developers need."""
    text = error.str() or error.name()
    previous = ""
    while previous != text:
        previous, text = text, _NOISE.sub("", text)
    return text.strip().rstrip(".") or error.name()


def deleted(topic: str, address: str) -> TopicError:
    """The error for a topic that was deleted."""
    return TopicError(
        f"the topic {topic} is gone from Kafka at {address}: restore it, or restart without a cursor if it was "
        "recreated",
        topic=topic,
    )
