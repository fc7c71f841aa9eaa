"""Client of object diffusion: the mirror of one server's FIFO.

Rules:

1. ``offers`` holds what was announced and not acknowledged, in order. An acknowledgement leaves it when it is sent.
2. Replies belong to requests in order. Each is checked before anything of it is used, in the order of
   :meth:`Client.receive`, :meth:`Client._announced` and :meth:`Client._delivered` (O12).
3. A request for ids blocks exactly when nothing is outstanding after its acknowledgement and no reply is in flight.
   Another one leaves at least one announced id unacknowledged: the reply in flight may be empty, and the server
   refuses a non-blocking request on an empty FIFO (O15).
4. Time runs only while the server must speak: from the request, or from the reply to the request before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from cardinal_ingest.errors import ViolationError

from .codec import LIMITS, Decoder, encode, objects_size
from .settings import DiffusionSettings
from .types import (
    Announcement,
    Message,
    MsgInit,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    State,
    Violation,
)

REPLY_SECONDS: Final = 10.0
"""Time for a reply; one with objects has it again for each further 2,500,000 bytes that are begun (O19)."""

Identify: TypeAlias = Callable[[bytes], ObjectId | None]
"""The id of an object by its bytes; None where they cannot be read."""


@dataclass(frozen=True, slots=True)
class Verify:
    """A received object, as announced and requested: verify it, and report to :meth:`~.fetcher.Fetcher.verified`."""

    peer: str
    id: ObjectId
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Report of an announced object that is larger than ``max_object_bytes``: it is not fetched."""

    peer: str
    id: ObjectId
    size: int


@dataclass(slots=True)
class Offer:
    """An object that the peer announced, and whether it was requested of this peer since."""

    size: int
    requested: bool = False


@dataclass(frozen=True, slots=True)
class _Request:
    """A request in flight.

    Attributes:
        answered_in: state of the link while the server answers.
        ids: requested ids.
        objects: requested objects, with their announced sizes.

    """

    answered_in: State
    ids: int = 0
    objects: Mapping[ObjectId, int] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        """Bytes of the reply."""
        return objects_size(self.objects.values()) if self.objects else LIMITS[self.answered_in]

    @property
    def seconds(self) -> float | None:
        """Time for the reply; None is no limit."""
        begun = -(-self.limit // LIMITS[State.OBJECTS])
        return None if self.answered_in is State.BLOCKING else REPLY_SECONDS * begun


class Client:
    """State of one link to a server.

    Args:
        peer: name of the server.
        identify: the id of an object.
        settings: windows and limits.

    """

    def __init__(self, peer: str, identify: Identify, settings: DiffusionSettings | None = None) -> None:
        self.peer = peer
        self.offers: dict[ObjectId, Offer] = {}
        self.ending = False
        """True once the link is to end when everything in flight has arrived."""
        self._identify = identify
        self._settings = settings or DiffusionSettings()
        self._requests: deque[_Request] = deque()
        self._decoder = Decoder(State.IDLE)
        self._since = 0.0
        """Time from which the oldest request in flight is unanswered."""
        self._poll_at = 0.0
        """Time from which the server may have further ids."""

    @property
    def in_flight(self) -> int:
        """Requests without a reply."""
        return len(self._requests)

    @property
    def blocked(self) -> bool:
        """True while the server waits for something to announce: the client cannot end the protocol."""
        return bool(self._requests) and self._requests[0].answered_in is State.BLOCKING

    @property
    def full(self) -> bool:
        """True if no further request may be sent (O14)."""
        return len(self._requests) >= 2 * self._settings.max_unacked

    # --- requests ----------------------------------------------------------------------------------------

    def open(self, lowest: int) -> bytes:
        """Bytes that open the link: the server announces nothing below the block number ``lowest``."""
        return encode(MsgInit(lowest))

    def request_ids(self, ack: int, req: int, now: float, *, blocking: bool) -> bytes:
        """Bytes that acknowledge ``ack`` ids and request ``req``."""
        for one in list(self.offers)[:ack]:
            del self.offers[one]
        self._sent(_Request(State.BLOCKING if blocking else State.NON_BLOCKING, ids=req), now)
        return encode(MsgRequestObjectIds(blocking, ack, req))

    def request_objects(self, ids: tuple[ObjectId, ...], now: float) -> bytes:
        """Bytes that request objects which are offered."""
        for one in ids:
            self.offers[one].requested = True
        self._sent(_Request(State.OBJECTS, objects={one: self.offers[one].size for one in ids}), now)
        return encode(MsgRequestObjects(ids))

    def next_ids(self, settled: Callable[[ObjectId], bool], now: float, *, follows_objects: bool) -> bytes | None:
        """The request for ids that is due; None where there is none (O14, O15, O16).

        Args:
            settled: whether an id needs no fetching any more. Only ids before the first other one are acknowledged.
            now: seconds.
            follows_objects: whether a request for objects was just sent.

        """
        waiting = bool(self._requests)
        if self.full or (waiting and not self.offers):
            return None
        ack = next((at for at, one in enumerate(self.offers) if not settled(one)), len(self.offers))
        if waiting:
            ack = min(ack, len(self.offers) - 1)
        left = len(self.offers) - ack
        announced = sum(request.ids for request in self._requests)
        req = min(self._settings.ids_per_request, self._settings.max_unacked - left - announced)
        due = left == 0 or ack or (req and (follows_objects or (not waiting and now >= self._poll_at)))
        return self.request_ids(ack, req, now, blocking=left == 0) if due else None

    def _sent(self, request: _Request, now: float) -> None:
        self._requests.append(request)
        if len(self._requests) == 1:
            self._turn(now)

    def _turn(self, now: float) -> None:
        """The server must answer the oldest request now."""
        self._since = now
        request = self._requests[0]
        items = len(request.objects) if request.objects else None
        self._decoder.expect(request.answered_in, limit=request.limit, items=items)

    # --- replies -----------------------------------------------------------------------------------------

    def feed(self, data: bytes, now: float) -> Iterator[Verify | TooLarge]:
        """Take bytes of the server; yield what came of each complete reply. The caller exhausts the iterator.

        Raises:
            ViolationError: the server broke a rule.

        """
        while self._requests:
            message = self._decoder.feed(data)
            data = b""
            if message is None:
                return
            yield from self.receive(message, now)
        if data or self._decoder.rest:
            raise ViolationError(Violation.UNEXPECTED_REPLY, "bytes while no request is in flight")

    def receive(self, message: Message, now: float) -> Iterator[Verify | TooLarge]:
        """Take one reply, as :meth:`feed` does."""
        if not self._requests:
            raise ViolationError(Violation.UNEXPECTED_REPLY, "a reply while no request is in flight")
        request = self._requests.popleft()
        if self._requests:
            self._turn(now)
        if isinstance(message, MsgReplyObjectIds):
            yield from self._announced(message.announcements, request, now)
        else:
            yield from self._delivered(message.objects if isinstance(message, MsgReplyObjects) else (), request)

    def tick(self, now: float) -> None:
        """Check the time.

        Raises:
            ViolationError: ExceededTimeLimit, the server did not answer in time.

        """
        seconds = self._requests[0].seconds if self._requests else None
        if seconds is not None and now - self._since >= seconds:
            raise ViolationError(Violation.EXCEEDED_TIME_LIMIT, f"no reply within {seconds:g} seconds")

    def _announced(self, announcements: tuple[Announcement, ...], request: _Request, now: float) -> Iterator[TooLarge]:
        sizes = dict(announcements)
        if len(announcements) > request.ids:
            raise ViolationError(
                Violation.OBJECT_IDS_NOT_REQUESTED, f"{len(announcements)} ids, {request.ids} requested"
            )
        if len(sizes) < len(announcements):
            raise ViolationError(Violation.OBJECT_IDS_DUPLICATE, "an id twice in one reply")
        if not self.offers.keys().isdisjoint(sizes):
            raise ViolationError(Violation.OBJECT_IDS_ALREADY_KNOWN, "an id that is outstanding already")
        exhausted = len(announcements) < request.ids
        self._poll_at = now + self._settings.poll_interval if exhausted else now
        for one, size in announcements:
            self.offers[one] = Offer(size)
            if size > self._settings.max_object_bytes:
                yield TooLarge(self.peer, one, size)

    def _delivered(self, objects: tuple[bytes, ...], request: _Request) -> Iterator[Verify]:
        found = {self._identify(body): body for body in objects}
        if len(objects) != len(request.objects) or found.keys() != request.objects.keys():
            raise ViolationError(
                Violation.OBJECTS_DIFFERENT_THAN_REQUESTED, f"{len(objects)} objects, {len(request.objects)} requested"
            )
        for one, size in request.objects.items():
            if len(found[one]) != size:
                raise ViolationError(
                    Violation.OBJECT_SIZE_MISMATCH, f"an object of {len(found[one])} bytes, announced with {size}"
                )
        for one in request.objects:
            yield Verify(self.peer, one, found[one])
