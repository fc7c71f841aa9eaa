"""Pending requests of one stream connection: matches responses, in any order, to their requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .faults import CallRefusedError, FailedError, NoNodeError
from .transport import Replies, read_replies


class PendingRequests:
    """Pending requests of one WebSocket or Unix socket.

    Arguments:
        noticed: callback for every notification of a subscription.

    """

    def __init__(self, noticed: Callable[[], None]) -> None:
        self._noticed = noticed
        self._waiting: dict[int, _Waiting] = {}

    @contextmanager
    def expecting(self, ids: Sequence[int]) -> Iterator[asyncio.Future[Replies]]:
        """A future of the responses to these ids."""
        waiting = _Waiting(asyncio.get_running_loop().create_future())
        self._waiting.update(dict.fromkeys(ids, waiting))
        try:
            yield waiting.future
        finally:
            for request_id in ids:
                self._waiting.pop(request_id, None)
            if waiting.future.done() and not waiting.future.cancelled():
                waiting.future.exception()  # a cancelled request ignores its failure

    def take(self, body: bytes) -> None:
        """Process a received text: responses or a notification. Anything else fails all pending requests."""
        try:
            replies = read_replies(body)
        except NoNodeError as malformed:
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
            # An error without an id (an unreadable batch or body) belongs to an unknown request. All requests in flight
            # receive it; their callers retry the valid ones.
            for request in set(self._waiting.values()):
                request.settle(replies)

    def fail(self, failure: FailedError | CallRefusedError) -> None:
        """Fail all pending requests."""
        for request in set(self._waiting.values()):
            if not request.future.done():
                request.future.set_exception(failure)


class _Waiting:
    """Request in flight."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Replies]) -> None:
        self.future = future

    def settle(self, replies: Replies) -> None:
        if not self.future.done():
            self.future.set_result(replies)
