"""``mux:URL,URL``: several transports read as one stream, and written at once. For migrations from cluster to cluster.

Reading. Every member keeps its topics; its partitions have numbers of their own, so that offsets of
different members never meet: partition ``p`` of a member is ``first + p``. The first member's ``first`` is 0,
every other one's is 64 more than that of the member before it, unless the URL says ``first=URL``
(``mux:0=kafka://old,64=kafka://new``). So

* a cursor of ``kafka://old`` resumes with ``mux:kafka://old,kafka://new``: the first member's partitions keep their
  numbers, and the others are partitions that were added;
* a cursor of a mux stays valid while each member keeps its number, in whatever place of the URL. A member may be
  replaced by what holds the same records at the same offsets: a recording (``cardinal record``) of a cluster that is to
  be switched off.
* a member that was read to its end may be left out, and switched off, once as many blocks as the reorg threshold came
  after its last one: no block of it can be removed any more, and cursors say so. Before that a cursor is refused by the
  names of the partitions that it still needs. The one that stays keeps its number (``mux:64=kafka://new``); the number
  of the one that left is free for the next cluster.

A topic has to be in one member; where others get it later, their partitions are added then.

Writing. A message goes to every member; a call is acknowledged when all have acknowledged it, and fails when one fails
(to send it again is harmless). ``recent`` has the newest records of all members. A producer that restarts looks
where each member ends, and resumes where all of them are complete.

Rules:

1. A transaction of several members is none: ``transactional=update`` of a member is refused for writing, and a
   producer's ``redundancy=standby`` over a mux as well, because what one member has the others may lack.
2. A partition that would get another member's number is refused: give that member a higher ``first``.
3. An error of a member is that member's error, with partitions by their numbers in the mux.
4. All members have to answer when the reading begins: watermarks are of all of them. One that is away later holds up
   no other one; what needs watermarks waits until all answer: a proof that a block is absent, partitions that a member
   gains.
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
    """A sink that writes to every member. ConfigurationError where one of them is to be written in transactions."""
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
