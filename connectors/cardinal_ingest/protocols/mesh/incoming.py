"""Incoming link: an acceptor's side, one for each connection that a peer opened.

Rules:

1. The checks of a Hello are in the order of :class:`~.types.Refusal`; the first that fails is sent back. After Begin a
   link ends without a word.
2. A message counts against the inbox until the commit of its step is reported. A full inbox pauses the connection: the
   host reads no more of it. Silence while it is paused is no silence of the peer.
3. ``received`` of an Ack is the last number before the first uncommitted one. It is sent for 64 frames, or 0.2 s after
   the first commit that is not acknowledged (MD9). A Heartbeat has no step: it is committed with what came before it.
"""

from __future__ import annotations

from collections import deque

from cardinal_ingest.errors import ViolationError

from .codec import OVERHEAD, encode
from .link import Link
from .members import Identity
from .settings import MeshSettings
from .types import (
    VERSIONS,
    Ack,
    Begin,
    Begun,
    Effect,
    Frame,
    Heartbeat,
    Hello,
    LinkState,
    Message,
    Reason,
    Received,
    Refusal,
    Refused,
    Send,
    Welcome,
)


class IncomingLink(Link):
    """State of one connection that a peer opened.

    Args:
        identity: of this node.
        nonce: 16 random bytes.
        now: the time at which the connection was accepted.
        settings: times and bounds.

    """

    def __init__(self, identity: Identity, nonce: bytes, now: float, settings: MeshSettings | None = None) -> None:
        super().__init__(identity, "", LinkState.CONNECTING, settings)
        self._nonce = nonce
        self._heard_at = now
        """Time of the last verified frame; before Begin, of the connection."""
        self._received = self._acked = 0
        self._uncommitted: deque[tuple[int, int]] = deque()
        """Numbers and sizes of messages."""
        self._uncommitted_bytes = 0
        self._committed_at: float | None = None
        """Time of the first commit that is not acknowledged."""

    @property
    def held(self) -> int:
        """Bytes received and not committed."""
        return self._uncommitted_bytes + self._decoder.rest

    @property
    def is_paused(self) -> bool:
        """True while the inbox is full: read no more of the connection."""
        return self.held >= self._settings.inbox

    # --- inputs --------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Effect]:
        """Bytes of the peer arrived."""
        return [] if self.state is LinkState.DISCONNECTED else self._read(data, now)

    def committed(self, seq: int, now: float) -> list[Effect]:
        """The steps of all messages up to this number are committed."""
        while self._uncommitted and self._uncommitted[0][0] <= seq:
            self._uncommitted_bytes -= self._uncommitted.popleft()[1]
        self._acknowledge(now)
        return self._taken()

    def tick(self, now: float) -> list[Effect]:
        """Time passed."""
        if self.is_paused:
            self._heard_at = now
        silent = now - self._heard_at
        match self.state:
            case LinkState.CONNECTING:
                if silent >= self._settings.handshake_timeout:
                    self._close(Reason.HANDSHAKE_TIMEOUT, "", now)
            case LinkState.CONNECTED | LinkState.SUSPECTED:
                if silent >= self._settings.drop_after:
                    self._close(Reason.SILENT, f"nothing verified for {silent:g} seconds", now)
                elif silent >= self._settings.suspect_after and self.state is LinkState.CONNECTED:
                    self._move(LinkState.SUSPECTED)
        self._acknowledge(now)
        return self._taken()

    def lost(self, detail: str, now: float) -> list[Effect]:
        """The connection is over."""
        if self.state is not LinkState.DISCONNECTED:
            self._end(Reason.CONNECTION_LOST, detail, now)
        return self._taken()

    def close(self, reason: Reason, now: float) -> list[Effect]:
        """End the link."""
        if self.state is not LinkState.DISCONNECTED:
            self._close(reason, "", now)
        return self._taken()

    def refuse(self, refusal: Refusal, text: str, now: float) -> list[Effect]:
        """End the handshake with a reason for the peer."""
        self._refuse(refusal, text, Reason.REFUSED, now)
        return self._taken()

    # --- the connection ------------------------------------------------------------------------------------

    def _end(self, reason: Reason, detail: str, now: float) -> None:  # noqa: ARG002 - an acceptor does not dial
        self._move(LinkState.DISCONNECTED, reason, detail)

    def _refuse(self, refusal: Refusal, text: str, reason: Reason, now: float) -> None:
        self._effects.append(Send(encode(Refused(refusal, text))))
        self._close(reason, f"{refusal.name}: {text}", now)

    def _violated(self, error: ViolationError, now: float) -> None:
        reason = Reason(error.violation)
        if self.state is LinkState.CONNECTING:
            refusal = Refusal.SIGNATURE if reason is Reason.BAD_SIGNATURE else Refusal.MALFORMED
            self._refuse(refusal, error.reason, reason, now)
        else:
            super()._violated(error, now)

    def _frame(self, frame: Frame, now: float) -> None:
        match frame:
            case Hello() if not self._session:
                self._hello(frame, now)
            case Begin() if self._session and self.state is LinkState.CONNECTING:
                self._begin(frame, now)
            case Message() | Heartbeat() if self.is_connected:
                self._numbered(frame, now)
            case _:
                raise ViolationError(Reason.UNEXPECTED_FRAME, f"{type(frame).__name__} of a dialer")

    def _hello(self, hello: Hello, now: float) -> None:
        here = self._identity
        cluster, sender = here.cluster, hello.sender
        common = set(hello.versions) & set(VERSIONS)
        for refused, refusal, text in (
            (not common, Refusal.VERSION, f"versions here: {list(VERSIONS)}"),
            (hello.cluster != cluster.digest, Refusal.CLUSTER, f"cluster here: {cluster.digest.hex()}"),
            (sender not in cluster.keys, Refusal.UNKNOWN_NODE, f"{sender} is no member"),
            (sender == here.id, Refusal.SELF, f"{sender} is this node"),
            (hello.recipient != here.id, Refusal.WRONG_RECIPIENT, f"this node is {here.id}"),
        ):
            if refused:
                self._refuse(refusal, text, Reason.REFUSED, now)
                return
        here.check(hello, cluster.digest, sender)
        self.peer = sender
        self._session = cluster.session(sender, here.id, hello.nonce, self._nonce)
        self._send(Welcome(here.id, sender, max(common), self._nonce), self._session)

    def _begin(self, begin: Begin, now: float) -> None:
        self._identity.check(begin, self._session, self.peer)
        self._heard_at = now
        self._decoder.limit = self._settings.max_frame
        self._effects.append(Begun(self.peer))
        self._move(LinkState.CONNECTED)

    # --- the session ---------------------------------------------------------------------------------------

    def _numbered(self, frame: Message | Heartbeat, now: float) -> None:
        if frame.seq != self._received + 1:
            raise ViolationError(Reason.BAD_SEQUENCE, f"number {frame.seq} after {self._received}")
        self._identity.check(frame, self._session, self.peer)
        self._received = frame.seq
        self._heard_at = now
        if self.state is LinkState.SUSPECTED:
            self._move(LinkState.CONNECTED)
        if isinstance(frame, Message):
            cost = len(frame.payload) + OVERHEAD
            self._uncommitted.append((frame.seq, cost))
            self._uncommitted_bytes += cost
            self._effects.append(Received(self.peer, frame.seq, frame.kind, frame.payload))
        self._acknowledge(now)

    def _acknowledge(self, now: float) -> None:
        committed = self._uncommitted[0][0] - 1 if self._uncommitted else self._received
        count = committed - self._acked
        if not self.is_connected or count == 0:
            return
        if self._committed_at is None:
            self._committed_at = now
        if count >= self._settings.ack_frames or now - self._committed_at >= self._settings.ack_delay:
            self._send(Ack(committed), self._session)
            self._acked = committed
            self._committed_at = None
