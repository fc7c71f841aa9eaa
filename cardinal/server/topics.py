"""Topics of the streams on a server: listed with their sizes and settings, and deleted."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardinal.config.secrets import with_secrets
from cardinal.errors import ConfigurationError
from cardinal.transports import list_topics, open_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.apps import Application
    from cardinal.transports import TransportUrl


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


def topics_of(url: TransportUrl, app: Application) -> list[str]:
    """The existing topics of a stream: the application's, then those of its reorg channels."""
    names = list_topics(url)
    channels = sorted(name for name in names if name.startswith(f"{app.default_topic}-re-"))
    return [*(name for name in app.all_topics if name in names), *channels]


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
        for name in names
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
