"""Which topics a consumer reads: the default topic, and those that can hold something of an entry that it follows.

A producer counts a message under the text that an expression of the application's topics matched, and sends it to that
expression's topic; a consumer follows the entries in which one of its own expressions is found. So a topic is left out
where no expression of its own can match a text in which one of the consumer's is found. That is certain or it is not
done (:mod:`.patterns`).
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
    wanted = {
        topic for matched, topic in app.topics.items() if any(may_be_found(searched, matched) for searched in tracked)
    }
    return tuple(topic for topic in app.all_topics if topic == app.default_topic or topic in wanted or topic in read)
