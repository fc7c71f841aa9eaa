"""Answers that come back over one stream, in any order, to the requests that wait for them. Pure but for futures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cardinal.errors import NodeAnswerError, NodeUnreachableError

from .wire import Replies, read_replies


class Conversation:
    """What is under way over one WebSocket or socket.

    Arguments:
        noticed: called for every notification of a subscription.

    """

    def __init__(self, noticed: Callable[[], None]) -> None:
        self._noticed = noticed
        self._waiting: dict[int, _Waiting] = {}

    @contextmanager
    def expecting(self, ids: Sequence[int]) -> Iterator[asyncio.Future[Replies]]:
        """The answers to these ids, for as long as somebody waits for them."""
        waiting = _Waiting(asyncio.get_running_loop().create_future())
        self._waiting.update(dict.fromkeys(ids, waiting))
        try:
            yield waiting.future
        finally:
            for one in ids:
                self._waiting.pop(one, None)
            if waiting.future.done() and not waiting.future.cancelled():
                waiting.future.exception()  # whoever gave up waiting need not be told

    def take(self, body: bytes) -> None:
        """Something came: answers, or a notification. What is neither fails everything that waits."""
        try:
            replies = read_replies(body)
        except NodeAnswerError as malformed:
            self.fail(malformed)
            return
        if len(replies) == 1 and replies[0].method:
            self._noticed()
            return
        waiting = next(
            (self._waiting[reply.id] for reply in replies if isinstance(reply.id, int) and reply.id in self._waiting),
            None,
        )
        if waiting is not None:
            waiting.settle(replies)
        elif replies and replies[0].error is not None:
            # An error that names no request (a batch or body that could not be read): the node cannot say whose it
            # is. Everything under way is answered with it; what was innocent is asked again by its caller.
            for one in set(self._waiting.values()):
                one.settle(replies)

    def fail(self, failure: NodeUnreachableError | NodeAnswerError) -> None:
        """Nothing that waits will be answered."""
        for one in set(self._waiting.values()):
            if not one.future.done():
                one.future.set_exception(failure)


class _Waiting:
    """A request on its way."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Replies]) -> None:
        self.future = future

    def settle(self, replies: Replies) -> None:
        if not self.future.done():
            self.future.set_result(replies)
