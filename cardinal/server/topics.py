"""Topics of the streams on a server: listed with their sizes and settings, and deleted.

Rules:

1. The topics of a stream are the application's and those that are named after its default topic: reorg channels, the
   claim logs and the markers of an ingest cluster.
2. Every topic of a stream names it. So what an interrupted deletion left is listed and deleted as well.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal import apps
from cardinal.config.secrets import with_secrets
from cardinal.errors import ConfigurationError
from cardinal.transports import list_topics, open_source

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cardinal.apps import Application
    from cardinal.transports import TransportUrl

CLAIMS: Final = "-claims-"
"""Between the default topic and an epoch's number: the claim log of an ingest cluster."""
PROMOTED: Final = "-promoted"
"""After the default topic: the markers of an ingest cluster."""
_COMPANION: Final = re.compile(rf"-re-[0-9a-f]{{64}}|{CLAIMS}(?:0|[1-9]\d*)|{PROMOTED}")
_CHAIN_ID: Final = re.compile(r"(?<=-)(?:0|[1-9]\d*)(?=-|$)")


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic.

    Attributes:
        name: the topic's.
        partitions: their number.
        records: offsets between its watermarks, of all partitions.
        retention_ms: how long records are retained; None where the server has no such setting or does not reveal it.

    """

    name: str
    partitions: int
    records: int
    retention_ms: int | None


def streams_on(url: TransportUrl, names: Collection[str] | None = None) -> list[Application]:
    """The streams of these applications (None: all) of which a server has a topic, on topics of their own names."""
    topics = list_topics(url)
    ids = {int(one) for topic in topics for one in _CHAIN_ID.findall(topic)}
    return [
        app
        for name in (apps.names() if names is None else names)
        for one in sorted(ids)
        if (app := _application(name, one)) is not None and _topics_among(topics, app)
    ]


def topics_of(url: TransportUrl, app: Application) -> list[str]:
    """The existing topics of a stream: the application's, then those that are named after its default topic."""
    return _topics_among(list_topics(url), app)


def _application(name: str, chain_id: int) -> Application | None:
    try:
        return apps.get(name, chain_id=chain_id)
    except ConfigurationError:
        return None  # a number in a topic's name that is no chain id of this application


def _topics_among(names: Collection[str], app: Application) -> list[str]:
    base = app.default_topic
    own = [name for name in app.all_topics if name in names]
    return [*own, *sorted(name for name in names if name.startswith(base) and _COMPANION.fullmatch(name, len(base)))]


def topic_states(url: TransportUrl, app: Application, names: Sequence[str]) -> list[TopicState]:
    """The states of existing topics of a stream."""
    if not names:
        return []
    with closing(open_source(url, app, topics=names)) as source:
        marks = source.watermarks()
    retention = _kafka_retention(url, names)
    return [
        TopicState(
            name,
            sum(tp[0] == name for tp in marks),
            sum(high - low for tp, (low, high) in marks.items() if tp[0] == name),
            retention.get(name),
        )
        for name in (apps.names() if names is None else names)
    ]


def delete_topics(url: TransportUrl, names: Sequence[str]) -> None:
    """Delete topics and their records.

    Raises:
        ConfigurationError: the transport has no topics to delete.
        TopicError, UnreachableError, RefusedError: the broker fails or refuses.

    """
    for cluster in _clusters(url):
        if cluster.scheme != "kafka":
            raise ConfigurationError(
                f"topics are deleted on Kafka only, not on {cluster}: remove the folder of a recording", setting="url"
            )
    from cardinal.transports import kafka  # noqa: PLC0415 - only this transport has topics to delete

    for cluster in _clusters(url):
        existing = list_topics(cluster)
        kafka.delete_topics(with_secrets(cluster), [name for name in names if name in existing])


def _kafka_retention(url: TransportUrl, names: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for cluster in _clusters(url):
        if cluster.scheme == "kafka":
            from cardinal.transports import kafka  # noqa: PLC0415 - only this transport has such a setting

            found = {**kafka.retention_ms(with_secrets(cluster), names), **found}
    return found


def _clusters(url: TransportUrl) -> list[TransportUrl]:
    """The URL itself, or the members of a mux."""
    return [cluster for _, member in url.members for cluster in _clusters(member)] if url.members else [url]
