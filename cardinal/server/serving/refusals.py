"""What a client is told of an error: which of its topics and positions it is about, nothing of what is read from."""

from __future__ import annotations

import logging

from cardinal.errors import CardinalError, CursorExpiredError, TopicError, UnreachableError
from cardinal.transports.websocket.frames import Failed, Reason

_log = logging.getLogger(__name__)


def failed(number: int, error: CardinalError) -> Failed:
    """The frame for an error; ``number``: of the request, 0 for the reading."""
    match error:
        case TopicError(topic=topic):
            return Failed(number, Reason.TOPIC, topic)
        case CursorExpiredError(missing=missing):
            return Failed(number, Reason.EXPIRED, places=dict(missing))
        case UnreachableError():
            return Failed(number, Reason.AWAY)
        case _:
            _log.error("a request of a client failed: %s", error)
            return Failed(number, Reason.FAILED)
