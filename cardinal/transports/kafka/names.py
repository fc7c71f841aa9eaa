"""Names of options that users of ``kafka://`` URLs write, to say what one that is none may have meant.

librdkafka knows more of its own, and is who decides: these are the ones that a stream has a use for.
"""

from __future__ import annotations

import difflib
from typing import Final

OURS: Final = (
    "cardinal.connect.timeout.ms",
    "cardinal.max.message.bytes",
    "cardinal.partitions",
    "cardinal.queue.bytes",
    "cardinal.replication",
    "cardinal.retention.ms",
)
_SHORT: Final = (
    "fetch.default",
    "idempotent",
    "log",
    "max.message.bytes",
    "max.waittime",
    "net.maxopenrequests",
    "partitions",
    "password_file",
    "replication",
    "retention.ms",
    "tls",
    "transactional",
)
_LIBRDKAFKA: Final = (
    "batch.num.messages",
    "batch.size",
    "broker.address.family",
    "client.id",
    "client.rack",
    "compression.codec",
    "compression.level",
    "compression.type",
    "connections.max.idle.ms",
    "debug",
    "fetch.max.bytes",
    "fetch.message.max.bytes",
    "fetch.min.bytes",
    "fetch.wait.max.ms",
    "group.id",
    "linger.ms",
    "max.in.flight.requests.per.connection",
    "message.max.bytes",
    "message.timeout.ms",
    "metadata.max.age.ms",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queued.max.messages.kbytes",
    "receive.message.max.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retries",
    "retry.backoff.ms",
    "sasl.mechanism",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "socket.keepalive.enable",
    "socket.timeout.ms",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "statistics.interval.ms",
    "transaction.timeout.ms",
    "transactional.id",
)


def meant(wrong: str) -> str:
    """What to write instead of a name that is none."""
    known = (*OURS, *_SHORT, *_LIBRDKAFKA)
    # Ours are often written without their first word, which is little of a short name.
    near = [name for name in OURS if name.removeprefix("cardinal.") == wrong] or difflib.get_close_matches(
        wrong, known, 1, 0.75
    )
    return f"did you mean {near[0]}?" if near else f"it takes librdkafka's properties, and {', '.join(OURS + _SHORT)}"
