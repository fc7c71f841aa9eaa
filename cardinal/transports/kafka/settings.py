"""Kafka settings: from the options of a ``kafka://`` URL to librdkafka's properties.

Every property of librdkafka is an option under its own name; the short forms of the Go implementation and the options
of :class:`KafkaSettings` are accepted as well. ``message.max.bytes`` bounds every message, for any topic;
``batch.size`` is at most what every topic accepts.

The properties that the stream's guarantees rest on cannot be switched off: acks of all replicas, idempotence, the
FNV-1a partitioner, read-committed isolation, offsets of our own.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, PositiveInt, SecretStr, field_validator, model_validator

from cardinal.config.options import nearest
from cardinal.errors import ConfigurationError
from cardinal.transports.options import TransportOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from cardinal.config.url import TransportUrl

MAX_MESSAGE_BYTES: Final = 10_000_024
"""The Go implementation's ``max.message.bytes``: 10 MB and Kafka's framing."""

_CLIENT_BYTES: Final = (1_000, 1_000_000_000)
"""The bounds of librdkafka's ``message.max.bytes``."""

_RETENTION_MS: Final = 7 * 24 * 3_600_000
_SOCKET_TIMEOUT_MS: Final = 30_000
# librdkafka's own back-off grows to 10 s, too slow to notice that a broker is back. Below 250 ms it reconnects too
# often after a failed TLS handshake (seen: 40 times a second at 50 ms).
# metadata.recovery.strategy stays "rebootstrap": a broker that is briefly fenced is missing from the metadata, and with
# "none" a client that reads them then never reconnects to it (seen: producers and consumers silent for minutes).
_COMMON: Final[Mapping[str, str]] = {
    "reconnect.backoff.ms": "250",
    "reconnect.backoff.max.ms": "1000",
    "allow.auto.create.topics": "false",
    # A broker that was suspended never answers the requests from before (seen).
    "socket.timeout.ms": str(_SOCKET_TIMEOUT_MS),
    "log_level": "0",
}
_QUEUE: Final = "queue.buffering.max.kbytes"
_QUEUE_KBYTES: Final = 64 * 1024
_PRODUCER: Final[Mapping[str, str]] = {
    "compression.type": "snappy",
    # A block's messages are submitted together: lingering gains nothing at low rates, and at high rates the queue is
    # never empty. Compared with 0.2: 2 ms less latency per block at 10 and 100 blocks a second, equal throughput on
    # loopback and with 10 ms of latency, up to 3 % more bytes on the topics.
    "linger.ms": "0",
    "message.timeout.ms": "120000",
    # Beyond this much unacknowledged a sending thread waits. The client has some 300 bytes more for each message.
    "queue.buffering.max.messages": "400000",
    _QUEUE: str(_QUEUE_KBYTES),
}
_BATCH_BYTES: Final = 1 << 20
_TRANSACTION_TIMEOUT_MS: Final = 10_000
"""A producer that hangs in a transaction delays readers for this long, and until the broker's next check
(``transaction.abort.timed.out.transaction.cleanup.interval.ms``)."""

_CONSUMER: Final[Mapping[str, str]] = {
    "group.id": "cardinal",
    "fetch.error.backoff.ms": "100",
    # A request for partitions that are at their ends holds up those that are not, and a new assignment, for so long: at
    # 500, librdkafka's default, a short stream's first update took 0.9 s instead of 0.4, a start at a number 4.6 s
    # instead of 1.7. What is there is answered at once whatever this is, so a backlog is read as fast.
    "fetch.wait.max.ms": "100",
    "fetch.queue.backoff.ms": "20",
    "queued.max.messages.kbytes": str(32 * 1024),
}
_PRODUCER_FIXED: Final[Mapping[str, str]] = {"acks": "all", "enable.idempotence": "true", "partitioner": "fnv1a"}
_CONSUMER_FIXED: Final[Mapping[str, str]] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
}
_ALIASES: Final[Mapping[str, str]] = {
    "partitions": "cardinal.partitions",
    "replication": "cardinal.replication",
    "retention.ms": "cardinal.retention.ms",
    "max.message.bytes": "cardinal.max.message.bytes",
    "fetch.default": "fetch.message.max.bytes",
    "max.waittime": "fetch.wait.max.ms",
    "net.maxopenrequests": "max.in.flight.requests.per.connection",
    "request.required.acks": "acks",
    "compression.codec": "compression.type",
    "queue.buffering.max.ms": "linger.ms",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.send.max.retries": "retries",
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
}
_PRODUCER_ONLY: Final = frozenset({"enable.gapless.guarantee"})
"""Properties that other kinds of client refuse."""

_NO_TEXT: Final = re.compile(r".*_cb|default\.topic\.config|opaque|interceptors|delivery\.report\.only\.error")
"""Properties whose values are Python objects, or that would suppress acknowledgements."""

_SAME: Final[Mapping[str, frozenset[str]]] = {
    "acks": frozenset({"all", "-1"}),
    "enable.idempotence": frozenset({"1", "true", "yes"}),
}
_OTHERS: Final = (
    *("batch.size", "client.id", "message.max.bytes", "password_file", "sasl.mechanism", "sasl.password"),
    *("sasl.username", "security.protocol", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
)
"""Properties without a default of ours that users write often, for the nearest name."""


class _Properties(dict[str, str]):
    """A dict that prints its names only."""

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"


class KafkaSettings(TransportOptions):
    """The options of a URL. Properties of librdkafka are extra fields, which the client checks."""

    model_config = ConfigDict(extra="allow")

    address: Annotated[str, Field(alias="bootstrap.servers")]
    """The brokers; given by the URL's hosts."""

    user: Annotated[str | None, Field(alias="sasl.username")] = None
    """The user, where the URL has none before its hosts."""

    password: Annotated[SecretStr | None, Field(alias="sasl.password")] = None
    """The password, where the URL has none before its hosts; ``password_file`` gives the file that holds it."""

    mechanism: Annotated[str | None, Field(alias="sasl.mechanism")] = None
    """``PLAIN`` (default of a login), ``SCRAM-SHA-256``, ``SCRAM-SHA-512`` or ``OAUTHBEARER``."""

    protocol: Annotated[str | None, Field(alias="security.protocol")] = None
    """Derived from the login and ``tls`` by default."""

    tls: bool = False
    """Encrypt the connections."""

    log: bool = False
    """Log what librdkafka logs."""

    idempotent: bool = True
    """Always 1; accepted because URLs of the Go implementation have it."""

    transactional: Literal["none", "update"] = "none"
    """``update``: a producer makes one Kafka transaction of every chain update. Its ``transactional.id`` is
    ``DEFAULT-TOPIC.PRODUCER-ID`` by default; of two producers with the same one, the newer ends the older."""

    transaction_timeout_ms: PositiveInt | None = None
    """Milliseconds that a transaction may be open, with ``transactional=update``; default 10000."""

    partitions: Annotated[PositiveInt | None, Field(alias="cardinal.partitions")] = None
    """Partitions of topics that are created; default: twice the number of brokers."""

    replication: Annotated[PositiveInt | None, Field(alias="cardinal.replication")] = None
    """Replicas of topics that are created; default: the number of brokers, at most 3."""

    retention_ms: Annotated[int, Field(ge=-1, alias="cardinal.retention.ms")] = _RETENTION_MS
    """Retention of topics that are created, in milliseconds; -1 keeps everything."""

    max_message_bytes: Annotated[PositiveInt, Field(alias="cardinal.max.message.bytes")] = MAX_MESSAGE_BYTES
    """The largest message of topics that are created."""

    connect_timeout_ms: Annotated[PositiveInt, Field(alias="cardinal.connect.timeout.ms")] = 10_000
    """Milliseconds in which a broker must answer."""

    @classmethod
    def given(cls, url: TransportUrl) -> dict[str, str]:
        """The options by their first names, with brokers and login of the URL among them."""
        login = {"bootstrap.servers": url.address, "sasl.username": url.user, "sasl.password": url.password}
        options = {name: value for name, value in login.items() if value is not None}
        for name, value in url.options.items():
            proper = _ALIASES.get(name, name)
            if proper in options:
                raise ConfigurationError(f"{proper} is given twice: leave one of them out", setting=name)
            options[proper] = value
        return options

    @field_validator("retention_ms")
    @classmethod
    def _keeps_something(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 keeps nothing: write milliseconds, or -1 to keep everything")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse options that the client would ignore, or that no text can set."""
        for name in self.model_extra or {}:
            if name.startswith("cardinal."):
                raise unknown_option(name)
            if _NO_TEXT.fullmatch(name):
                raise ConfigurationError(f"{name} cannot be set by a URL: leave it out", setting=name)
            if name == "transactional.id" and self.transactional == "none":
                raise _transactions_only(name)
        if self.transaction_timeout_ms is not None and self.transactional == "none":
            raise _transactions_only("transaction.timeout.ms")
        if not self.idempotent:
            raise _fixed("idempotent", "1")
        if self.password is not None and self.user is None:
            raise ConfigurationError("a password is of no use without a user: give both", setting="sasl.username")
        self._check_protocol(self.properties["security.protocol"].upper())
        return self

    def _check_protocol(self, protocol: str) -> None:
        encrypted = protocol.endswith("SSL")
        if self.tls and not encrypted:
            raise ConfigurationError(
                f"tls=1 and security.protocol={protocol} contradict each other: leave one of them out",
                setting="security.protocol",
            )
        if "sasl.mechanism" in self.properties and not protocol.startswith("SASL_"):
            raise ConfigurationError(
                f"security.protocol={protocol} sends no login: leave it out, or leave user and mechanism out",
                setting="security.protocol",
            )
        tls = next((name for name in self.properties if name.startswith("ssl.")), None)
        if not encrypted and tls is not None:
            raise ConfigurationError(f"{tls} is for TLS, and this is not encrypted: add tls=1", setting=tls)

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Librdkafka's properties that the URL gives, by their first name, credentials among them; not in ``repr``."""
        found = _Properties({"bootstrap.servers": self.address})
        if self.user is not None or self.mechanism is not None:
            found["sasl.mechanism"] = self.mechanism or "PLAIN"
        if self.user is not None:
            found["sasl.username"] = self.user
            found["sasl.password"] = "" if self.password is None else self.password.get_secret_value()
        login = "SASL_" if "sasl.mechanism" in found else ""
        found["security.protocol"] = self.protocol or f"{login}{'SSL' if self.tls else 'PLAINTEXT'}"
        if self.log:
            found["log_level"] = "6"
        return _Properties({**found, **(self.model_extra or {})})

    @property
    def connect_timeout(self) -> float:
        """Seconds until a broker must have answered."""
        return self.connect_timeout_ms / 1000

    @property
    def transaction_timeout(self) -> float | None:
        """Seconds that a transaction may be open; None: no transactions."""
        if self.transactional == "none":
            return None
        return (self.transaction_timeout_ms or _TRANSACTION_TIMEOUT_MS) / 1000

    def client(self) -> dict[str, str]:
        """Properties that every kind of client accepts."""
        return {**_COMMON, **_for_others(self.properties)}

    def producer(self, largest: int, transactional_id: str, *, smallest: int | None = None) -> dict[str, str]:
        """Properties of a producer.

        Arguments:
            largest: the bytes of the largest message that one of its topics accepts.
            transactional_id: the ``transactional.id`` where the URL has none.
            smallest: the bytes that each of its topics accepts; default: as many.

        """
        config = {**self._fixed(_PRODUCER, _PRODUCER_FIXED), **self._sizes(largest, smallest or largest)}
        if self.transaction_timeout is None:
            return config
        # Neither a message nor a request may be tried for longer than its transaction may be open: the client refuses.
        timeout = round(self.transaction_timeout * 1000)
        lasting = {
            "transaction.timeout.ms": str(timeout),
            "message.timeout.ms": self.properties.get("message.timeout.ms", str(timeout)),
            "socket.timeout.ms": self.properties.get("socket.timeout.ms", str(min(timeout, _SOCKET_TIMEOUT_MS))),
        }
        return {"transactional.id": transactional_id, **config, **lasting}

    def consumer(self) -> dict[str, str]:
        """Properties of a consumer with assigned partitions."""
        return _for_others(self._fixed(_CONSUMER, _CONSUMER_FIXED))

    def _sizes(self, largest: int, smallest: int) -> dict[str, str]:
        low, high = _CLIENT_BYTES
        message = self._bytes("message.max.bytes", min(max(largest, low), high), low)
        # A batch of small messages must fit its topic as well, whichever it is: the broker checks whole batches.
        batch = min(self._bytes("batch.size", _BATCH_BYTES, 1), smallest)
        sizes = {"message.max.bytes": str(message), "batch.size": str(batch)}
        if _QUEUE not in self.properties and message >= _QUEUE_KBYTES << 10:
            sizes[_QUEUE] = str(message // 1024 + 1)  # the queue has room for the largest message
        return sizes

    def _bytes(self, name: str, default: int, low: int) -> int:
        text = self.properties.get(name, str(default))
        if not text.isdecimal() or int(text) < low:
            raise ConfigurationError(f"the option {name} is a whole number from {low} on", setting=name)
        return int(text)

    def _fixed(self, defaults: Mapping[str, str], fixed: Mapping[str, str]) -> dict[str, str]:
        for name, value in fixed.items():
            chosen = self.properties.get(name)
            if chosen is not None and chosen.lower() not in _SAME.get(name, frozenset()) | {value}:
                raise _fixed(name, value)
        return {**_COMMON, **defaults, **self.properties, **fixed}

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """No extra fields: credentials are among them."""
        return ((name, value) for name, value in super().__repr_args__() if name in type(self).model_fields)


def kafka_settings(url: TransportUrl) -> KafkaSettings:
    """The settings of a URL. ConfigurationError names the option that cannot work."""
    return KafkaSettings.of(url)


def first_name(name: str) -> str:
    """The name under which users know a property that librdkafka calls by another one."""
    return _ALIASES.get(name, name)


def unknown_option(name: str) -> ConfigurationError:
    """The error for an option that neither we nor librdkafka have."""
    ours = {*KafkaSettings.names(), *_ALIASES} - {"bootstrap.servers"}
    existing = {*ours, *_COMMON, *_PRODUCER, *_CONSUMER, *_PRODUCER_FIXED, *_CONSUMER_FIXED, *_OTHERS}
    options = ", ".join(sorted(option for option in ours if option.startswith("cardinal.")))
    full = f"cardinal.{name}"
    if name == "cardinal.queue.bytes":  # an option of file:// URLs
        remedy = f"use {_QUEUE}"
    elif full in ours:
        remedy = f"did you mean {full}?"
    else:
        remedy = nearest(name, existing, f"use a librdkafka property, or {options}")
    return ConfigurationError(f"there is no option {name} of kafka:// URLs: {remedy}", setting=name)


def _fixed(name: str, value: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} is always {value}: the stream's guarantees rest on it; leave it out", setting=name
    )


def _transactions_only(name: str) -> ConfigurationError:
    return ConfigurationError(f"{name} is for transactions only: add transactional=update", setting=name)


def _for_others(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in _PRODUCER_ONLY}
