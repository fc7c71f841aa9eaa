"""Check of the stream while a producer runs: does the broker answer, and are all topics there?

The broker is queried only where something is in doubt: a block or a ping that has not been acknowledged for some
seconds. A topic counts as deleted when two answers in a row do not list it: a broker that is starting may not know all
of them yet.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from cardinal._concurrency import run_in_thread
from cardinal.errors import CardinalError, TopicError
from cardinal.transports import list_topics

if TYPE_CHECKING:
    from cardinal.producing.layout import Stream
    from cardinal.transports import TransportUrl

_THREAD: Final = "cardinal-produce-topics"


class StreamCheck:
    """Queries the broker for its topics.

    Arguments:
        url, app: the stream.

    Attributes:
        peer: who is queried, for sentences.
        failure: the error of the last query; None where the broker answered.

    """

    peer: Final = "broker"

    def __init__(self, url: str | TransportUrl, app: Stream) -> None:
        self._url = url
        self._app = app
        self._absent: frozenset[str] = frozenset()
        self.failure: CardinalError | None = None

    async def topics(self) -> frozenset[str]:
        """The names of all topics. CardinalError: as :func:`cardinal.transports.list_topics`."""
        # On a daemon thread: a broker that does not answer must not keep a process that ends.
        return await asyncio.wrap_future(run_in_thread(partial(list_topics, self._url), _THREAD))

    async def query(self) -> bool:
        """Query once; True where the broker answers and has every topic.

        Raises:
            TopicError: a topic of the stream was deleted.

        """
        try:
            found = await self.topics()
        except CardinalError as error:
            self.failure, self._absent = error, frozenset()
            return False
        self.failure = None
        absent = frozenset(self._app.all_topics) - found
        if deleted := sorted(absent & self._absent):
            named = f"the topic {deleted[0]}" if len(deleted) == 1 else f"the topics {', '.join(deleted)}"
            raise TopicError(
                f"{named} of this stream no longer exist{'s' if len(deleted) == 1 else ''}: restore what was deleted "
                "from a copy, or delete the stream's other topics too and start again (`cardinal topics URL "
                f"--chain-id N --topic {self._app.default_topic} --delete`)",
                topic=deleted[0],
            )
        self._absent = absent
        return not absent

    def answered(self) -> None:
        """The broker has acknowledged something: nothing is in doubt."""
        self.failure, self._absent = None, frozenset()
