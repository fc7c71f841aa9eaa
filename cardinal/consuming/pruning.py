"""Which topics a consumer reads: the default topic, and those that can hold something of an entry that it follows.

A producer counts a message under the text that an expression of the application's topics matched, and sends it to that
expression's topic; a consumer follows the entries in which one of its own expressions is found. So a topic is left out
where no expression of its own can match a text in which one of the consumer's is found. Of a sub batch's entry the
topic's expression matches only the beginning: what lies behind it is known where the application says so. All that is
certain or it is not done (:mod:`.patterns`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.consuming.patterns import may_be_found

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cardinal.apps import Application


def wanted_topics(app: Application, tracked: Sequence[str] | None, read: Collection[str] = ()) -> tuple[str, ...]:
    """The topics to read for these expressions, the default topic first; all of them for None.

    Arguments:
        app: names the topics.
        tracked: expressions over a Batch's entries; None: whatever the application declares.
        read: topics that were read before, and go on being read: a cursor needs its positions.

    """
    if tracked is None:
        return tuple(app.all_topics)
    wanted = {topic for matched, topic in app.topics.items() if _holds_some(app, matched, tracked)}
    return tuple(topic for topic in app.all_topics if topic == app.default_topic or topic in wanted or topic in read)


def _holds_some(app: Application, matched: str, tracked: Sequence[str]) -> bool:
    """Whether one of these can be found in an entry whose messages travel where ``matched`` says."""
    if app.sub_batches is None:
        entries = [f"(?:{matched}).*"]
    else:
        entries = [matched, *(path for path in app.sub_batches if may_be_found(f"^(?:{matched})", path))]
    return any(may_be_found(searched, entry) for searched in tracked for entry in entries)
