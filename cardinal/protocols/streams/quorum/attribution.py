"""Attribution of records to the producers of a quorum, and the policy's text.

A record's producer is named by its header ``cardinal-producer``; no header is the id ``anonymous``. Any client that may
write to a topic may write that header: it is authentic only where the broker's access rules bind principals to topics.
Records of producers that are not in the list do not count; each of the first such producers is reported once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.events import ReassemblyEvent, Untrusted
from cardinal.protocols.streams.types import PRODUCER_HEADER, Headers, Row, path_bytes, path_text, producer_of
from cardinal.texts import Count

_DIGITS_MAX: Final = 4
_UNTRUSTED_MAX: Final = 64
_ID_SHOWN: Final = 128
"""Bytes of an unknown producer's id that are kept."""


def parse_policy(policy: str) -> int | None:
    """The number of producers that have to agree: None for ``first``, k for ``quorum:k``.

    ConfigurationError for others.
    """
    if policy == "first":
        return None
    name, _, k = policy.partition(":")
    if name != "quorum" or not (k.isascii() and k.isdigit()) or len(k) > _DIGITS_MAX or int(k) < 1:
        raise ConfigurationError(
            f"the policy {policy!r} does not exist: use 'first', or 'quorum:k' with k producers that have to agree",
            setting="policy",
        )
    return int(k)


def check_quorum(k: int, producers: Sequence[str]) -> None:
    """ConfigurationError where k of these producers cannot agree."""
    if not producers or not all(producers) or len(set(producers)) < len(producers):
        raise ConfigurationError(
            "a quorum needs the ids of the producers that count: name each once, and no empty one", setting="producers"
        )
    if not 1 <= k <= len(producers):
        raise ConfigurationError(
            f"a quorum of {k} is impossible with {Count(len(producers), 'producer')}: choose 1 to {len(producers)}",
            setting="policy",
        )


class Attribution:
    """The producers that count; ``producers`` are their ids, a producer is its index in them."""

    def __init__(self, producers: Sequence[str]) -> None:
        self._indexes = {path_bytes(name): index for index, name in enumerate(producers)}
        self._untrusted: dict[bytes, None] = {}
        # Most records have one header, the producer's.
        self._alone: dict[Headers, int] = {((PRODUCER_HEADER, name),): index for name, index in self._indexes.items()}

    def index_of(self, record: Row, events: list[ReassemblyEvent]) -> int | None:
        """The producer of a record; None for one that does not count, which is reported."""
        index = self._alone.get(record[6])
        if index is not None:
            return index
        producer = producer_of(record[6])
        index = self._indexes.get(producer)
        if index is None:
            shown = producer[:_ID_SHOWN]
            if shown not in self._untrusted and len(self._untrusted) < _UNTRUSTED_MAX:
                self._untrusted[shown] = None
                events.append(Untrusted(path_text(shown), record[:3]))
        return index
