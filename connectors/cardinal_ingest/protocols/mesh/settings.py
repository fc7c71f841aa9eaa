"""Settings of the mesh: times and bounds, with the defaults of the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from cardinal.errors import ConfigurationError

from .codec import HANDSHAKE_LIMIT

_FRAMES: Final = {"window": 1, "queue_bytes": 1, "inbox": 2}
"""Bounds, and the frames of the largest size that each must have capacity for."""
_ORDERED: Final = (("heartbeat_idle", "suspect_after", "drop_after"), ("ack_delay", "suspect_after", "ack_timeout"))
"""Times of which each must be shorter than the next."""


@dataclass(frozen=True, slots=True)
class MeshSettings:
    """Times in seconds, and bounds in bytes, of one link. A time that is reached is over.

    Attributes:
        heartbeat_idle: since anything was written, until a Heartbeat is.
        suspect_after: without progress, until a link is suspected.
        drop_after: without a verified frame, until an incoming link is closed.
        ack_timeout: without an Ack while something is unacknowledged, until an outgoing link is closed.
        ack_delay: from a commit to its Ack, where ``ack_frames`` are not reached before.
        ack_frames: committed frames that are acknowledged at once.
        dial_timeout: from Dial to the open connection.
        handshake_timeout: from the open connection to Begin.
        backoff, backoff_factor, backoff_most: delays between dials, see :func:`retry_delay`.
        stable_after: time connected that makes the next delay the first one again.
        max_frame: of a frame, without its length.
        window: sent and unacknowledged messages.
        queue_bytes: live messages that wait for the window.
        inbox: received and not committed.

    """

    heartbeat_idle: float = 1.0
    suspect_after: float = 3.0
    drop_after: float = 9.0
    ack_timeout: float = 9.0
    ack_delay: float = 0.2
    ack_frames: int = 64
    dial_timeout: float = 3.0
    handshake_timeout: float = 5.0
    backoff: float = 0.25
    backoff_factor: float = 2.0
    backoff_most: float = 10.0
    stable_after: float = 5.0
    max_frame: int = 1 << 20
    window: int = 4 << 20
    queue_bytes: int = 16 << 20
    inbox: int = 4 << 20

    def __post_init__(self) -> None:
        if self.max_frame < HANDSHAKE_LIMIT:
            raise ConfigurationError(f"set max_frame to {HANDSHAKE_LIMIT} or more", setting="max_frame")
        for name, frames in _FRAMES.items():
            least = frames * self.max_frame
            if getattr(self, name) < least:
                raise ConfigurationError(f"set {name} to {frames} max_frame ({least}) or more", setting=name)
        for names in _ORDERED:
            for shorter, longer in pairwise(names):
                if getattr(self, shorter) >= getattr(self, longer):
                    raise ConfigurationError(f"set {shorter} below {longer}", setting=shorter)


def retry_delay(retry: int, u: float, settings: MeshSettings) -> float:
    """Seconds before a dial that follows ``retry`` failed ones; ``u`` is random, from 0 up to 1."""
    growth = settings.backoff_factor ** min(retry, 64)
    return min(settings.backoff_most, settings.backoff * growth) * (0.5 + u)
