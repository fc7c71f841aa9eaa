"""``mux:URL,URL``: several transports read as one stream, or written together. For migrations between clusters.

Reading. Partition ``p`` of a member is partition ``first + p`` of the mux, so offsets of members never meet. ``first``
is 0 for the first member and grows by 64 per member, unless the URL gives it (``mux:0=kafka://old,64=kafka://new``).

* A cursor of ``kafka://old`` resumes with ``mux:kafka://old,kafka://new``: the other partitions count as added.
* A cursor of a mux stays valid while each member keeps its number, in any order. A member may be replaced by one with
  the same records at the same offsets, such as a recording of a cluster (``cardinal record``).
* A member that was read to its end may be left out once as many blocks as the reorg threshold came after its last one.
  Before that, resuming fails with the names of the partitions that the cursor still needs. The other member keeps its
  number (``mux:64=kafka://new``); the number of the removed one is free.

Each topic must exist in one member; partitions of members that gain it later are added then.

Writing. A message goes to every member. A call is acknowledged when all have acknowledged it, fails when one fails, and
may be repeated. ``recent`` has the newest records of all members. A producer resumes where all members are complete.

Rules:

1. No transactions: ``transactional=update`` of a member and a producer's ``redundancy=standby`` are refused, because
   one member may have what the others lack.
2. A partition that would get another member's number is refused: give that member a higher ``first``.
3. An error of a member is that member's error, with partitions by their numbers in the mux.
4. All members must answer when reading begins. A member that is unreachable later delays no other one, but whatever
   needs watermarks (absence proofs, added partitions) waits until all members answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import ConfigurationError
from cardinal.transports import registry

from .sink import MuxSink
from .source import MuxSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.config.url import TransportUrl
    from cardinal.transports.base import Sink
    from cardinal.transports.registry import Topics

__all__ = ["MuxSink", "MuxSource", "list_topics", "open_sink", "open_source"]


def open_sink(url: TransportUrl, app: Topics, *, producer_id: str) -> MuxSink:
    """A sink that writes to every member. ConfigurationError where a member's URL requests transactions."""
    for _, member in url.members:
        if member.options.get("transactional", "none") != "none":
            raise ConfigurationError(
                f"{member}: what a mux writes is no transaction, as its members are not written as one: leave out "
                "transactional=update",
                setting="transactional",
            )
    members: list[tuple[int, Sink]] = []
    try:
        for first, member in url.members:
            members.append((first, registry.open_sink(member, app, producer_id=producer_id)))
    except BaseException:
        MuxSink(members).close()
        raise
    return MuxSink(members)


def open_source(url: TransportUrl, app: Topics, *, topics: Sequence[str], wait: float) -> MuxSource:
    """A source that reads every member."""
    return MuxSource(url.members, app, topics, wait=wait)


def list_topics(url: TransportUrl) -> frozenset[str]:
    """The topics of all members."""
    return frozenset(topic for _, member in url.members for topic in registry.list_topics(member))
