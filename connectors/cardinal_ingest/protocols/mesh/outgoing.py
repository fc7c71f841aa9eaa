"""Outgoing link: a dialer's side, one for each other member, as long as the node runs.

Rules:

1. No message is stored. Each session begins with a snapshot, which the host derives from its committed facts at that
   time; live messages follow. A message that is sent while there is no session, or before the snapshot is delivered, is
   in the snapshot, and not sent twice (MD4, MD7).
2. The snapshot is an iterator: a message is drawn when the window has capacity for it, and not retained.
3. ``seq`` counts all frames after Begin from 1 (MD8). Messages in flight stay within the window; each counts as its
   payload and :data:`~.codec.OVERHEAD`. Heartbeats pass a full window: the peer must hear them.
4. One clock measures acknowledgement: it runs while something is unacknowledged, since the last Ack or since the first
   unacknowledged frame was sent. It suspects the link, then ends it (MD9): a half-open connection, or a peer that
   cannot commit.
5. Live messages beyond ``queue_bytes`` end the link: the snapshot of the next session replaces them (MD10).
6. Every end is followed by another dial (M6). The delay doubles with each; time connected makes it short again. A
   refusal that only an operator can change takes the longest delay at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from cardinal.errors import ConfigurationError, EncodeError
from cardinal_ingest.errors import ViolationError

from .codec import OVERHEAD, Decoder
from .link import Link
from .members import Identity
from .settings import MeshSettings, retry_delay
from .types import (
    VERSIONS,
    Ack,
    Begin,
    Dial,
    Effect,
    Frame,
    Heartbeat,
    Hello,
    LinkState,
    Message,
    Reason,
    Refusal,
    Refused,
    SnapshotWanted,
    Welcome,
)

_LONGEST: Final = 64
"""Number of a retry whose delay is the longest."""

_Outgoing: TypeAlias = tuple[int, bytes]
"""Kind and payload of a message."""


class OutgoingLink(Link):
    """State of the link to one peer.

    Args:
        identity: of this node.
        peer: the member to dial.
        draw: returns a random number from 0 up to 1.
        now: the time at the start; the first dial is due at once.
        settings: times and bounds.

    Attributes:
        retry_at: time of the next dial, while the link is DISCONNECTED.
        in_flight: bytes sent and not acknowledged.
        queued: bytes of live messages that wait for the window.

    """

    def __init__(
        self, identity: Identity, peer: str, draw: Callable[[], float], now: float, settings: MeshSettings | None = None
    ) -> None:
        if peer == identity.id or peer not in identity.cluster.keys:
            raise ConfigurationError(f"{peer!r} is no other member of {identity.cluster.name}", setting="members")
        super().__init__(identity, peer, LinkState.DISCONNECTED, settings)
        self.retry_at = now
        self._draw = draw
        self._retries = 0
        self._connection = 0
        self._deadline = 0.0
        """End of the time to dial, then of the handshake."""
        self._nonce = b""
        """Nonce of the Hello; empty before the connection is open."""
        self._clear()

    def _clear(self) -> None:
        """Forget the session."""
        self._session = self._nonce = b""
        self._connected_at = self._written_at = self._progress_at = 0.0
        self._seq = self._acked = 0
        self._unacknowledged: deque[int] = deque()
        """Sizes of the frames after ``_acked``."""
        self.in_flight = self.queued = 0
        self._snapshot: Iterator[_Outgoing] | None = None
        self._head: _Outgoing | None = None
        """Drawn, and waiting for the window."""
        self._queue: deque[_Outgoing] = deque()

    # --- inputs of the transport ---------------------------------------------------------------------------

    def opened(self, connection: int, nonce: bytes, now: float) -> list[Effect]:
        """The connection of a Dial is open; ``nonce`` is 16 random bytes."""
        if self._is_current(connection) and not self._nonce:
            self._decoder = Decoder()
            self._nonce = nonce
            self._deadline = now + self._settings.handshake_timeout
            cluster = self._identity.cluster.digest
            self._send(Hello(cluster, self._identity.id, self.peer, VERSIONS, nonce), cluster)
        return self._taken()

    def receive(self, connection: int, data: bytes, now: float) -> list[Effect]:
        """Bytes of the peer arrived."""
        return self._read(data, now) if self._is_current(connection) and self._nonce else []

    def lost(self, connection: int, detail: str, now: float) -> list[Effect]:
        """The connection is over, or could not be opened."""
        if self._is_current(connection):
            self._end(Reason.CONNECTION_LOST, detail, now)
        return self._taken()

    def _is_current(self, connection: int) -> bool:
        return connection == self._connection and self.state is not LinkState.DISCONNECTED

    # --- inputs of the host --------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Time passed."""
        match self.state:
            case LinkState.DISCONNECTED:
                if now >= self.retry_at:
                    self._dial(now)
            case LinkState.CONNECTING:
                if now >= self._deadline:
                    self._close(Reason.HANDSHAKE_TIMEOUT if self._nonce else Reason.DIAL_TIMEOUT, "", now)
            case _:
                self._watch(now)
        return self._taken()

    def snapshot(self, messages: Iterable[tuple[int, bytes]], now: float) -> list[Effect]:
        """The snapshot of a session: kinds and payloads, derived from the facts that are committed at this call.

        It is ignored where the session is over, or has its snapshot.

        Raises:
            EncodeError: at this or any later input, a message of it is larger than a frame.

        """
        if self.is_connected and self._snapshot is None:
            self._snapshot = iter(messages)
            self._pump(now)
        return self._taken()

    def send(self, kind: int, payload: bytes, now: float) -> list[Effect]:
        """Send a live message, after the commit of the step that it belongs to.

        Raises:
            EncodeError: the message is larger than a frame.

        """
        cost = self._cost(payload)
        if self._snapshot is not None:
            self._queue.append((kind, payload))
            self.queued += cost
            self._pump(now)
            if self.queued > self._settings.queue_bytes:
                self._close(Reason.QUEUE_FULL, f"{self.queued} bytes wait", now)
        return self._taken()

    def close(self, now: float) -> list[Effect]:
        """End the session, if there is one, and any dial; the next dial follows."""
        if self.state is not LinkState.DISCONNECTED:
            self._close(Reason.CLOSED, "", now)
        return self._taken()

    # --- the connection ------------------------------------------------------------------------------------

    def _dial(self, now: float) -> None:
        self._connection += 1
        self._deadline = now + self._settings.dial_timeout
        self._move(LinkState.CONNECTING)
        self._effects.append(Dial(self._connection))

    def _end(self, reason: Reason, detail: str, now: float) -> None:
        if self.is_connected and now - self._connected_at >= self._settings.stable_after:
            self._retries = 0
        self.retry_at = now + retry_delay(self._retries, self._draw(), self._settings)
        self._retries += 1
        self._clear()
        self._move(LinkState.DISCONNECTED, reason, detail)

    def _frame(self, frame: Frame, now: float) -> None:
        match frame:
            case Refused(reason, text):
                if reason <= Refusal.WRONG_RECIPIENT:
                    self._retries = _LONGEST
                self._close(Reason.REFUSED, f"{reason.name}: {text}", now)
            case Welcome() if not self._session:
                self._welcomed(frame, now)
            case Ack() if self._session:
                self._acknowledged(frame, now)
            case _:
                raise ViolationError(Reason.UNEXPECTED_FRAME, f"{type(frame).__name__} of an acceptor")

    def _welcomed(self, welcome: Welcome, now: float) -> None:
        here = self._identity
        if (welcome.sender, welcome.recipient) != (self.peer, here.id):
            raise ViolationError(Reason.WRONG_NODE, f"Welcome of {welcome.sender} to {welcome.recipient}")
        if welcome.version not in VERSIONS:
            raise ViolationError(Reason.WRONG_VERSION, f"Welcome in version {welcome.version}")
        session = here.cluster.session(here.id, self.peer, self._nonce, welcome.nonce)
        here.check(welcome, session, self.peer)
        self._session = session
        self._connected_at = self._written_at = now
        self._send(Begin(), session)
        self._move(LinkState.CONNECTED)
        self._effects.append(SnapshotWanted())

    def _acknowledged(self, ack: Ack, now: float) -> None:
        self._identity.check(ack, self._session, self.peer)
        count = ack.received - self._acked
        if not 0 < count <= len(self._unacknowledged):
            raise ViolationError(
                Reason.BAD_ACKNOWLEDGEMENT, f"{ack.received} acknowledged of {self._seq}, {self._acked} before"
            )
        for _ in range(count):
            self.in_flight -= self._unacknowledged.popleft()
        self._acked = ack.received
        self._progress_at = now
        if self.state is LinkState.SUSPECTED:
            self._move(LinkState.CONNECTED)
        self._pump(now)

    # --- the session ---------------------------------------------------------------------------------------

    def _watch(self, now: float) -> None:
        waited = now - self._progress_at if self._unacknowledged else 0.0
        if waited >= self._settings.ack_timeout:
            self._close(Reason.ACK_TIMEOUT, f"frame {self._acked + 1} of {self._seq} is not acknowledged", now)
            return
        if waited >= self._settings.suspect_after and self.state is LinkState.CONNECTED:
            self._move(LinkState.SUSPECTED)
        bound = self._settings.window + self._settings.max_frame
        if now - self._written_at >= self._settings.heartbeat_idle and self.in_flight + OVERHEAD <= bound:
            self._write(Heartbeat(self._seq + 1), OVERHEAD, now)

    def _pump(self, now: float) -> None:
        """Send what the window has capacity for."""
        while (message := self._head or self._next()) is not None:
            kind, payload = self._head = message
            cost = self._cost(payload)
            if self.in_flight + cost > self._settings.window:
                return
            self._write(Message(self._seq + 1, kind, payload), cost, now)
            self._head = None

    def _next(self) -> _Outgoing | None:
        message = next(self._snapshot, None) if self._snapshot is not None else None
        if message is None and self._queue:
            message = self._queue.popleft()
            self.queued -= self._cost(message[1])
        return message

    def _cost(self, payload: bytes) -> int:
        cost = len(payload) + OVERHEAD
        if cost > self._settings.max_frame:
            raise EncodeError(f"a message of {len(payload)} bytes is larger than a frame", field="payload", value=cost)
        return cost

    def _write(self, frame: Message | Heartbeat, cost: int, now: float) -> None:
        self._send(frame, self._session)
        self._seq = frame.seq
        if not self._unacknowledged:
            self._progress_at = now
        self._unacknowledged.append(cost)
        self.in_flight += cost
        self._written_at = now
