"""Pings: the liveness of a healthy producer (``schemas/SPEC.md``, section 2.7).

No ping is sent while the one before it is not acknowledged: it would say nothing more. Where transactions are sent one
by one and take longer than the time between two pings, blocks would stand in an ever longer line of pings.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from cardinal.errors import TransportError
from cardinal.protocols.streams.types import ENDED_HEADER, PRODUCER_HEADER, Record, Routed
from cardinal.protocols.streams.wire.codec import encode
from cardinal.protocols.streams.wire.messages import Ping

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.transports.base import Sink


_REMEMBERED: Final = 1_000


def ping_id(producer_id: str) -> bytes:
    """The 32 bytes that a producer's pings carry: the SHA-256 of its configured id."""
    return hashlib.sha256(producer_id.encode()).digest()


class Pinger:
    """Sends pings while ``may`` allows it.

    The first at once, the others on a thread of its own, at a fixed interval.
    """

    def __init__(self, sink: Sink, topic: str, producer_id: str, *, seconds: float, may: Callable[[], bool]) -> None:
        self._sink = sink
        self._topic = topic
        self._id = ping_id(producer_id)
        self._name = producer_id.encode()
        self._seconds = seconds
        self._may = may
        self._lock = threading.Lock()
        self._sent: deque[Ping] = deque(maxlen=_REMEMBERED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cardinal-producer-ping", daemon=True)
        self._ping()

    @property
    def waits(self) -> float:
        """Seconds for which the last ping has not been acknowledged; 0 where it has."""
        return 0.0 if self._sent_last.done() else time.monotonic() - self._sent_at

    @property
    def sent_ms(self) -> int:
        """Time of the last ping, in milliseconds since 1970."""
        with self._lock:
            last = self._sent[-1]
        return last.unix_seconds * 1_000 + last.nanoseconds // 1_000_000

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> bool:
        """Stop; False where it was stopped before."""
        first = not self._stop.is_set()
        self._stop.set()
        return first

    def is_anothers(self, ping: Ping) -> bool:
        """Return True for a ping of another producer with our id."""
        with self._lock:  # the reader of the topic calls this while we ping
            sent = tuple(self._sent)
        return ping.producer_id == self._id and ping not in sent

    def end(self) -> None:
        """Send the last ping, which says that this producer ended; of one that is not healthy none is sent."""
        if not self._may():
            return
        ping = self._noted()
        headers = ((PRODUCER_HEADER, self._name), (ENDED_HEADER, b"1"))
        with contextlib.suppress(TransportError):  # then its pings run out, as those of one that was killed
            self._sink.replay([Record(self._topic, 0, 0, *encode(ping), self.sent_ms, headers)])

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _noted(self) -> Ping:
        """A ping of now, noted as ours."""
        now = time.time_ns()
        ping = Ping(self._id, now // 1_000_000_000, now % 1_000_000_000)
        with self._lock:
            self._sent.append(ping)
        return ping

    def _ping(self) -> None:
        ping = self._noted()
        self._sent_at = time.monotonic()
        self._sent_last = self._sink.send((Routed(self._topic, *encode(ping)),), None)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            if self._may() and self._sent_last.done():
                with contextlib.suppress(TransportError):  # ``add`` raises it; the sink may recover by itself
                    self._ping()
