"""From a URL to what librdkafka is given.

Options of a ``kafka://`` URL:

* every property of librdkafka, under its own name;
* the short forms of the Go implementation: ``tls=1``, ``idempotent=1``, ``fetch.default`` (bytes), ``max.waittime``
  (milliseconds), ``net.maxopenrequests``, ``log=1``;
* ours: ``cardinal.partitions``, ``cardinal.replication``, ``cardinal.retention.ms``, ``cardinal.max.message.bytes``
  (for topics that are created), ``cardinal.connect.timeout.ms``, ``cardinal.queue.bytes`` (what may be under way); the
  first four also without ``cardinal.``;
* ``transactional=update``: a producer makes one Kafka transaction of every chain update (:mod:`.transactions`). Its
  ``transactional.id`` is the producer's id unless given, and has to be unique on the cluster; its
  ``transaction.timeout.ms`` is 10000 unless given.

``message.max.bytes`` bounds every message, whatever its topic takes; ``batch.size`` is at most what every topic takes.

What the stream's guarantees rest on cannot be switched off: acks of all replicas, idempotence, the FNV-1a
partitioner, reading committed records only, offsets of our own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError
from cardinal.transports.secrets import read_again

from .names import meant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.transports.url import TransportUrl

MAX_MESSAGE_BYTES: Final = 10_000_024
"""The Go implementation's ``max.message.bytes``: 10 MB and Kafka's framing."""

_CLIENT_BYTES: Final = (1_000, 1_000_000_000)
"""What librdkafka takes as ``message.max.bytes``."""

_RETENTION_MS: Final = 7 * 24 * 3_600_000
_OURS: Final = "cardinal."
_TOPIC: Final = frozenset({"partitions", "replication", "retention.ms", "max.message.bytes"})
_TRUE: Final = frozenset({"1", "true", "yes"})
_FALSE: Final = frozenset({"0", "false", "no"})
_SHORT: Final[Mapping[str, str]] = {
    "fetch.default": "fetch.message.max.bytes",
    "max.waittime": "fetch.wait.max.ms",
    "net.maxopenrequests": "max.in.flight.requests.per.connection",
}
_SOCKET_TIMEOUT_MS: Final = 30_000
# Quick to notice that a broker is back: librdkafka's own back-off grows to 10 s. Not quicker: after a failed TLS
# handshake it knocks every half of the first number for ever (seen: 40 times a second at 50 ms).
# metadata.recovery.strategy stays "rebootstrap": a broker that is fenced for a moment is in no metadata, and with
# "none" a client that reads them just then forgets it for good (seen: producers and consumers silent for minutes).
_COMMON: Final[Mapping[str, str]] = {
    "reconnect.backoff.ms": "250",
    "reconnect.backoff.max.ms": "1000",
    "allow.auto.create.topics": "false",
    # A broker that was stopped for a while was seen never to answer what it had been asked before.
    "socket.timeout.ms": str(_SOCKET_TIMEOUT_MS),
    "log_level": "0",
}
_PRODUCER: Final[Mapping[str, str]] = {
    "compression.type": "snappy",
    # A block's messages are handed over at once: to wait for more gains nothing where few come, and where many come the
    # queue is never empty. Beside 0.2: 2 ms sooner per block at 10 and 100 blocks a second, as much throughput on
    # loopback and behind 10 ms of distance, up to 3 % more bytes on the topics.
    "linger.ms": "0",
    "message.timeout.ms": "120000",
    "queue.buffering.max.messages": "1000000",
    "queue.buffering.max.kbytes": str(256 * 1024),
}
_BATCH_BYTES: Final = 1 << 20
_TRANSACTION_TIMEOUT_MS: Final = 10_000
"""For so long, and until the broker looks (``transaction.abort.timed.out.transaction.cleanup.interval.ms``), a producer
that hangs in the middle of a transaction holds readers up."""

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
"""What other kinds of client refuse instead of passing it over."""

_NO_TEXT: Final = re.compile(r".*_cb|default\.topic\.config|opaque|interceptors|delivery\.report\.only\.error")
"""What the client takes as an object of the program's, or what would keep acknowledgements from us."""

_SAME: Final[Mapping[str, frozenset[str]]] = {"acks": frozenset({"all", "-1"}), "enable.idempotence": _TRUE}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """A URL, sorted.

    Attributes:
        address: the brokers, without credentials.
        properties: librdkafka's properties, by their first name, credentials among them; not in ``repr``.
        partitions: of topics that are created; None: twice the number of brokers.
        replication: of topics that are created; None: the number of brokers, at most 3.
        retention_ms: of topics that are created; -1 keeps everything.
        max_message_bytes: of topics that are created.
        connect_timeout: seconds until a broker must have answered.
        queue_bytes: how much may be handed over and not yet acknowledged before ``send`` waits.
        transaction_timeout: seconds that a transaction may be open; None: no transactions.
        url: what they were made of.

    """

    address: str
    properties: _Secret
    partitions: int | None
    replication: int | None
    retention_ms: int
    max_message_bytes: int
    connect_timeout: float
    queue_bytes: int
    transaction_timeout: float | None = None
    url: TransportUrl | None = None

    @property
    def login_may_change(self) -> bool:
        """Whether a file can say another user or password later."""
        return self.url is not None and self.url.unread is not None and "sasl.username" in self.properties

    def again(self) -> KafkaSettings:
        """The same with what the files of secrets hold now; as they are where one cannot be used just now."""
        url = None if self.url is None else read_again(self.url)
        return self if url is None else kafka_settings(url)

    @property
    def answer_seconds(self) -> float:
        """After how long a client gives up an answer of the broker that has not come."""
        return int(self.client()["socket.timeout.ms"]) / 1000

    def client(self) -> dict[str, str]:
        """Properties that every kind of client takes."""
        return {**_COMMON, **_for_others(self.properties)}

    def producer(self, largest: int, producer_id: str, *, smallest: int | None = None) -> dict[str, str]:
        """Properties of a producer with this id.

        Arguments:
            largest: the bytes of the largest message that one of its topics takes.
            producer_id: is the ``transactional.id`` where none is given.
            smallest: the bytes that each of its topics takes; default: as many.

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
        return {"transactional.id": producer_id, **config, **lasting}

    def consumer(self) -> dict[str, str]:
        """Properties of a consumer that is assigned its partitions."""
        return _for_others(self._fixed(_CONSUMER, _CONSUMER_FIXED))

    def _sizes(self, largest: int, smallest: int) -> dict[str, str]:
        low, high = _CLIENT_BYTES
        message = self.properties.get("message.max.bytes", str(min(max(largest, low), high)))
        # A batch of small messages must fit its topic as well, whichever it is: the broker checks whole batches.
        batch = min(_whole("batch.size", self.properties.get("batch.size", str(_BATCH_BYTES))), smallest)
        return {"message.max.bytes": str(_whole("message.max.bytes", message, low=low)), "batch.size": str(batch)}

    def _fixed(self, defaults: Mapping[str, str], fixed: Mapping[str, str]) -> dict[str, str]:
        for name, value in fixed.items():
            given = self.properties.get(name)
            if given is not None and given.lower() not in _SAME.get(name, frozenset()) | {value}:
                raise ConfigurationError(
                    f"{name} is always {value}: the stream's guarantees rest on it; leave it out", setting=name
                )
        return {**_COMMON, **defaults, **self.properties, **fixed}


class _Secret(dict[str, str]):
    """A dict that prints its names only."""

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"


def kafka_settings(url: TransportUrl) -> KafkaSettings:
    """Sort a URL's options. ConfigurationError names the option that cannot work."""
    given = dict(url.options)
    ours = {name: given.pop(name) for name in url.options if name.startswith(_OURS)}
    for name in _TOPIC & given.keys():
        if _OURS + name in ours:
            raise ConfigurationError(f"the option {name} is given in two ways", setting=name)
        ours[_OURS + name] = given.pop(name)
    properties = _Secret({"bootstrap.servers": url.address})
    _security(url, given, properties)
    timeout = _transactions(given)
    if not _flag(given, "idempotent", default=True):
        raise ConfigurationError("idempotent is always 1: the stream's guarantees rest on it", setting="idempotent")
    if _flag(given, "log", default=False):
        properties["log_level"] = "6"
    for name, value in given.items():
        if _NO_TEXT.fullmatch(name):
            raise ConfigurationError(f"{name} cannot be set by a URL: leave it out", setting=name)
        proper = _SHORT.get(name, _ALIASES.get(name, name))
        if proper in properties and proper != "log_level":
            raise ConfigurationError(f"the option {name} is given in two ways", setting=name)
        properties[proper] = value
    settings = KafkaSettings(
        address=url.address,
        properties=properties,
        partitions=_number(ours, "partitions", None),
        replication=_number(ours, "replication", None),
        retention_ms=_retention(ours),
        max_message_bytes=_number(ours, "max.message.bytes", MAX_MESSAGE_BYTES) or MAX_MESSAGE_BYTES,
        connect_timeout=(_number(ours, "connect.timeout.ms", 10_000) or 10_000) / 1000,
        queue_bytes=_number(ours, "queue.bytes", 64 << 20) or 64 << 20,
        transaction_timeout=timeout,
        url=url,
    )
    if ours:
        name = next(iter(ours))
        raise ConfigurationError(f"there is no option {name} of kafka:// URLs: {meant(name)}", setting=name)
    return settings


def _for_others(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in _PRODUCER_ONLY}


def _security(url: TransportUrl, given: dict[str, str], properties: dict[str, str]) -> None:
    tls = _flag(given, "tls", default=False)
    user = _once(given, "sasl.username", url.user, "the user")
    password = _once(given, "sasl.password", url.password, "the password")
    mechanism = _once(given, "sasl.mechanism", given.pop("sasl.mechanisms", None), "sasl.mechanism")
    if password is not None and user is None:
        raise ConfigurationError("a password is of no use without a user: give both", setting="sasl.username")
    if user is not None or mechanism is not None:
        properties["sasl.mechanism"] = mechanism or "PLAIN"
        if user is not None:
            properties["sasl.username"] = user
            properties["sasl.password"] = password or ""
    protocol = f"{'SASL_' if 'sasl.mechanism' in properties else ''}{'SSL' if tls else 'PLAINTEXT'}"
    properties["security.protocol"] = protocol = given.pop("security.protocol", protocol)
    _check_protocol(protocol.upper(), given, properties, tls=tls)


def _once(given: dict[str, str], name: str, other: str | None, what: str) -> str | None:
    """An option that has another place as well."""
    if name in given and other is not None:
        raise ConfigurationError(f"{what} is given in two ways: leave one of them out", setting=name)
    return given.pop(name, other)


def _check_protocol(protocol: str, given: Mapping[str, str], properties: Mapping[str, str], *, tls: bool) -> None:
    """Refuse what the client would leave out without a word."""
    encrypted = protocol.endswith("SSL")
    if tls and not encrypted:
        raise ConfigurationError(
            f"tls=1 and security.protocol={protocol} contradict each other: leave one of them out",
            setting="security.protocol",
        )
    if "sasl.mechanism" in properties and not protocol.startswith("SASL_"):
        raise ConfigurationError(
            f"security.protocol={protocol} shows no login: leave it out, or leave user and mechanism out",
            setting="security.protocol",
        )
    if not encrypted and (name := next((name for name in given if name.startswith("ssl.")), None)):
        raise ConfigurationError(f"{name} is for TLS, and this is not encrypted: add tls=1", setting=name)


def _transactions(given: dict[str, str]) -> float | None:
    """The transaction timeout in seconds; None where no transactions are asked for."""
    wanted = given.pop("transactional", "none")
    if wanted not in ("none", "update"):
        raise ConfigurationError(f"the option transactional is update or none, not {wanted!r}", setting="transactional")
    if wanted == "none":
        for name in ("transactional.id", "transaction.timeout.ms"):
            if name in given:
                raise ConfigurationError(f"{name} is for transactions only: add transactional=update", setting=name)
        return None
    return (_whole("transaction.timeout.ms", given.pop("transaction.timeout.ms", str(_TRANSACTION_TIMEOUT_MS)))) / 1000


def _flag(options: dict[str, str], name: str, *, default: bool) -> bool:
    value = options.pop(name, None)
    if value is None:
        return default
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ConfigurationError(f"the option {name} is 1 or 0, not {value!r}", setting=name)


def _number(ours: dict[str, str], name: str, default: int | None, *, low: int = 1) -> int | None:
    value = ours.pop(_OURS + name, None)
    return default if value is None else _whole(_OURS + name, value, low=low)


def _retention(ours: dict[str, str]) -> int:
    name = "retention.ms"
    if number := _number(ours, name, _RETENTION_MS, low=-1):
        return number
    why = "is in milliseconds, or -1 to keep everything; 0 keeps nothing"
    raise ConfigurationError(f"{_OURS}{name} {why}", setting=name)


def _whole(name: str, value: str, *, low: int = 1) -> int:
    try:
        number = int(value)
    except ValueError:
        number = low - 1
    if number < low:
        raise ConfigurationError(f"the option {name} is a whole number from {low} on, not {value!r}", setting=name)
    return number
