"""Link of the mesh: what a dialer and an acceptor have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from cardinal_ingest.errors import ViolationError

from .codec import Decoder
from .members import Identity
from .settings import MeshSettings
from .types import Changed, Close, Effect, Frame, LinkState, Reason, Send, Signed


class Link(ABC):
    """State of one link.

    Each input takes the time, in seconds that never fall, and returns effects that the host carries out in order. A
    peer's bad input is no exception: it ends the link, with a reason to count, and changes nothing else.

    Attributes:
        peer: the other node; empty until it is verified.
        state: of the link.
        reason, detail: of the last end; None and empty while the link is connected.

    """

    def __init__(self, identity: Identity, peer: str, state: LinkState, settings: MeshSettings | None) -> None:
        self.peer = peer
        self.state = state
        self.reason: Reason | None = None
        self.detail = ""
        self._identity = identity
        self._settings = settings or MeshSettings()
        self._decoder = Decoder()
        self._session = b""
        """Digest of the session; empty before the handshake has both nonces."""
        self._effects: list[Effect] = []

    @property
    def is_connected(self) -> bool:
        """True from Begin on, suspected or not."""
        return self.state in (LinkState.CONNECTED, LinkState.SUSPECTED)

    @abstractmethod
    def _frame(self, frame: Frame, now: float) -> None:
        """Take one frame. ViolationError: it breaks a rule."""

    @abstractmethod
    def _end(self, reason: Reason, detail: str, now: float) -> None:
        """Leave the session behind. The connection is closed by the caller, or lost."""

    def _read(self, data: bytes, now: float) -> list[Effect]:
        """Take bytes of the peer, in any pieces."""
        try:
            for frame in self._decoder.feed(data):
                self._frame(frame, now)
                if self.state is LinkState.DISCONNECTED:
                    break
        except ViolationError as error:
            self._violated(error, now)
        return self._taken()

    def _violated(self, error: ViolationError, now: float) -> None:
        self._close(Reason(error.violation), error.reason, now)

    def _close(self, reason: Reason, detail: str, now: float) -> None:
        self._effects.append(Close())
        self._end(reason, detail, now)

    def _move(self, state: LinkState, reason: Reason | None = None, detail: str = "") -> None:
        self.state, self.reason, self.detail = state, reason, detail
        self._effects.append(Changed(self.peer, state, reason, detail))

    def _send(self, frame: Signed, context: bytes) -> None:
        self._effects.append(Send(self._identity.signed(frame, context)))

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
