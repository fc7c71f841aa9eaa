"""Server of object diffusion: one client's FIFO.

Rules:

1. The FIFO holds what was announced and not acknowledged, in order of announcement, and never more than
   ``max_unacked`` ids. Each is pinned in the pool, until its acknowledgement or :meth:`Server.close`.
2. Requests are checked when their turn comes, in the order of :meth:`Server._acknowledge` and
   :meth:`Server._check_objects` (O11). A violation closes the link: nothing is written any more.
3. Bytes to write are taken piece by piece. One body at a time is in memory, however many were requested.
4. A blocking request is answered as soon as a read of the pool finds something; the pool is read again at every
   :meth:`Server.send`, for what woke the caller may be gone by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from cardinal_ingest.errors import ViolationError

from .codec import Decoder, encode, encode_objects, objects_size
from .pool import PoolReader
from .settings import DiffusionSettings
from .types import (
    Announcement,
    Message,
    MsgDone,
    MsgInit,
    MsgReplyObjectIds,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    State,
    Violation,
)


@dataclass(slots=True)
class _Offer:
    size: int
    sent: bool = False


class Server:
    """State of one link to a client.

    The host calls :meth:`send` until it returns None, after each :meth:`receive` and each change of the pool. It calls
    :meth:`close` when the link ends, however it ends.

    Args:
        pool: the objects to announce.
        settings: windows and limits.

    """

    def __init__(self, pool: PoolReader, settings: DiffusionSettings | None = None) -> None:
        self.state = State.INIT
        self._pool = pool
        self._settings = settings or DiffusionSettings()
        self._decoder = Decoder(State.INIT)
        self._requests: deque[Message] = deque()
        """Requests that are queued."""
        self._wanted = 0
        """Number of ids in the open request."""
        self._pieces: Iterator[bytes] | None = None
        """The rest of the reply that is being written."""
        self._fifo: dict[ObjectId, _Offer] = {}
        self._ticket = 0
        self._lowest = 0

    @property
    def outstanding(self) -> list[ObjectId]:
        """The FIFO: ids that are announced and not acknowledged."""
        return list(self._fifo)

    def receive(self, data: bytes) -> None:
        """Take bytes of the client.

        Raises:
            ViolationError: the client broke a rule.

        """
        message = self._decoder.feed(data)
        while message is not None:
            self._decoder.expect(State.DONE if isinstance(message, MsgDone) else State.IDLE)
            if isinstance(message, MsgInit):
                self._lowest = message.lowest
                self.state = State.IDLE
            else:
                self._requests.append(message)
                self._next_request()
                if len(self._requests) > 2 * self._settings.max_unacked:
                    raise ViolationError(Violation.TOO_MANY_PIPELINED, f"{len(self._requests)} requests wait")
            message = self._decoder.feed()

    def send(self) -> bytes | None:
        """The next bytes to write; None where there is nothing to write now.

        Raises:
            ViolationError: a request whose turn came broke a rule.

        """
        while True:
            if self._pieces is None:
                self._pieces = self._reply()
            if self._pieces is None:
                return None
            piece = next(self._pieces, None)
            if piece is not None:
                return piece
            self._pieces, self.state = None, State.IDLE
            self._next_request()

    def close(self) -> None:
        """End the link: release all objects."""
        self.state = State.DONE
        self._requests.clear()
        self._pieces = None
        self._release(len(self._fifo))

    # --- requests ----------------------------------------------------------------------------------------

    def _next_request(self) -> None:
        if self.state is not State.IDLE or not self._requests:
            return
        match self._requests.popleft():
            case MsgRequestObjectIds() as request:
                self._acknowledge(request)
                self._wanted = request.req
                self.state = State.BLOCKING if request.blocking else State.NON_BLOCKING
            case MsgRequestObjects(ids):
                self._check_objects(ids)
                requested = set(ids)
                in_order = [one for one in self._fifo if one in requested]
                self._pieces = encode_objects(map(self._pool.body, in_order))
                self.state = State.OBJECTS
            case _:  # MsgDone
                self.close()

    def _acknowledge(self, request: MsgRequestObjectIds) -> None:
        left = len(self._fifo) - request.ack
        if left < 0:
            raise ViolationError(
                Violation.ACKED_TOO_MANY_OBJECT_IDS, f"{request.ack} ids acknowledged of {len(self._fifo)}"
            )
        if left + request.req > self._settings.max_unacked:
            raise ViolationError(
                Violation.REQUESTED_TOO_MANY_OBJECT_IDS, f"{request.req} ids requested on top of {left}"
            )
        if request.req == 0 and (request.blocking or request.ack == 0):
            raise ViolationError(Violation.REQUESTED_NOTHING, "a request for no ids")
        if request.blocking and left:
            raise ViolationError(Violation.REQUEST_BLOCKING, f"a blocking request with {left} ids outstanding")
        if not request.blocking and not left:
            raise ViolationError(Violation.REQUEST_NON_BLOCKING, "a non-blocking request with no id outstanding")
        self._release(request.ack)

    def _check_objects(self, ids: tuple[ObjectId, ...]) -> None:
        if not ids:
            raise ViolationError(Violation.REQUESTED_NOTHING, "a request for no objects")
        if len(set(ids)) < len(ids):
            raise ViolationError(Violation.REQUESTED_DUPLICATE_OBJECT, "an object is requested twice")
        offers = [self._fifo.get(one) for one in ids]
        found = [offer for offer in offers if offer is not None and not offer.sent]
        if len(found) < len(ids):
            raise ViolationError(Violation.REQUESTED_UNAVAILABLE_OBJECT, "an object is not announced, or sent already")
        size = objects_size(offer.size for offer in found)
        if len(ids) > 1 and size > self._settings.reply_limit:
            raise ViolationError(Violation.REQUESTED_TOO_MANY_BYTES, f"objects of {size} bytes in one request")
        for offer in found:
            offer.sent = True

    def _release(self, count: int) -> None:
        for one in list(islice(self._fifo, count)):
            del self._fifo[one]
            self._pool.release(one)

    # --- replies -----------------------------------------------------------------------------------------

    def _reply(self) -> Iterator[bytes] | None:
        """The reply to an open request for ids, unless it waits."""
        if self.state not in (State.BLOCKING, State.NON_BLOCKING):
            return None
        found = self._announce()
        if self.state is State.BLOCKING and not found:
            return None
        return iter((encode(MsgReplyObjectIds(tuple(found))),))

    def _announce(self) -> list[Announcement]:
        found: list[Announcement] = []
        read = True
        while read and len(found) < self._wanted:
            read = False
            for ticket, one, size in self._pool.after(self._ticket, self._wanted - len(found)):
                read, self._ticket = True, ticket
                if one.number >= self._lowest and one not in self._fifo:  # it may have arrived again while it is pinned
                    self._pool.pin(one)
                    self._fifo[one] = _Offer(size)
                    found.append(Announcement(one, size))
        return found
