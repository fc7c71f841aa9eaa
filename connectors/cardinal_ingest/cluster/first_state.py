"""First state of an epoch: that of the topics, or of the epoch before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError
from cardinal.producing.survey.mux import survey_members
from cardinal.transports import list_topics
from cardinal_ingest.cluster.promotion_writer import last_agreed
from cardinal_ingest.cluster.topics import cluster_settings
from cardinal_ingest.protocols.replication import NO_HASH, Head, Rules, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.apps import Application
    from cardinal.config.url import TransportUrl
    from cardinal_ingest.protocols.replication import Membership

MAX_BLOCKS: Final = 500
"""Blocks of a batch."""


def state_of_topics(url: TransportUrl, app: Application, membership: Membership, start: int | None) -> State:
    """The state of a stream without blocks, or of the newest complete chain of the topics.

    Arguments:
        url: the stream's.
        app: the stream's application.
        membership: of the epoch.
        start: number of the first block, on empty topics.

    Raises:
        ConfigurationError: the topics and ``start`` do not fit.
        TopicError, UnreachableError, RefusedError: the broker is unreachable, says no, or lacks some of the topics.

    """
    survey = survey_members(url, app) if app.default_topic in list_topics(url) else None
    if survey is None or not survey.batches:
        if start is None:
            raise ConfigurationError(
                "the topics are empty: give the number of the first block (--start)", setting="start"
            )
        rules = Rules(start, app.reorg_threshold, MAX_BLOCKS)
        return State.empty(rules, membership.cluster, membership.stream)
    if not survey.chain:
        raise ConfigurationError(
            "no block of the topics is complete: complete them (`cardinal repair`), or delete the topics", setting="url"
        )
    last = survey.chain[-1]
    if start is not None and start != last.number + 1:
        raise ConfigurationError(
            f"the topics end with block {last.number}, and the cluster continues after it: leave out --start",
            setting="start",
        )
    rules = Rules(last.number + 1, app.reorg_threshold, MAX_BLOCKS)
    head = Head(last.number, last.hash, survey.batches[last.hash].weight)
    ring = _within({ref.hash: ref.number for ref in survey.chain}, rules, last.number)
    agreed = last_agreed(cluster_settings(url), app.default_topic)
    num = 0 if agreed is None else agreed.num  # of a cluster that was here before
    return State.build(rules, membership.cluster, membership.stream, num, NO_HASH, head, last.number, ring)


def carried_state(state: State, app: Application, membership: Membership) -> State:
    """The last state of an epoch as the first one of the next."""
    start = state.highest + 1 if state.ring else state.rules.start
    rules = Rules(start, app.reorg_threshold, MAX_BLOCKS)
    ring = _within(state.ring, rules, state.highest)
    return State.build(
        rules, membership.cluster, membership.stream, state.num, state.hash, state.head, state.highest, ring
    )


def _within(ring: Mapping[bytes, int], rules: Rules, highest: int) -> dict[bytes, int]:
    """The part of a ring that is within the window."""
    return {one: number for one, number in ring.items() if number + rules.window >= highest}
