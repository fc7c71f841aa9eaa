"""A connection to a server that mends itself: a thread that connects, receives, and connects again.

Rules:

1. The first connection is made, or refused, before anything else; from then on a server that is away is waited for,
   with growing pauses, the next of its addresses each time.
2. What refuses us (token, certificate, another protocol) ends the link: time does not heal it. A token or certificate
   in a file is read anew for every connection, and a token that was changed while it was refused is shown at once.
3. A request whose connection breaks is asked again on the next one, until its time is over; an answer that comes after
   that is passed over.
4. The thread never waits for who reads: so pings are answered however slow that is, and a server that is gone is
   noticed.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from cardinal.errors import (
    CardinalError,
    ConfigurationError,
    MissingExtraError,
    RefusedError,
    RemoteProtocolError,
    TransportError,
    UnreachableError,
)

from .ends import Ends
from .frames import SUBPROTOCOL, Answer, Failed, Records, Request
from .line import CLOSE_SECONDS, Line
from .wire import decode_answer, encode_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from .listener import Listener
    from .settings import WebsocketSettings

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_AWAY_SECONDS: Final = 1.0
_SIGNAL_SECONDS: Final = 0.5


class Link:
    """See the module.

    Arguments:
        settings: the servers.
        listener: told of what comes unasked.

    Raises:
        MissingExtraError: the library is not installed.
        UnreachableError, RefusedError, TransportError: no connection; see rule 1.

    """

    def __init__(self, settings: WebsocketSettings, listener: Listener) -> None:
        try:
            self._client: Any = importlib.import_module("websockets.sync.client")
            self._errors: Any = importlib.import_module("websockets.exceptions")
        except ImportError:
            raise MissingExtraError("a websocket transport", "server") from None
        self._settings = settings
        self._listener = listener
        self._tls = settings.tls() if settings.tls else None
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._ids = itertools.count(1)
        self._answers: dict[int, Answer | None] = {}
        self._forgotten: set[int] = set()
        self._socket: Any = None
        self._line: Line | None = None
        self._connections = 0
        self._failure: CardinalError | None = None
        self._ends = Ends(settings, self._errors)
        self._useful = False
        # A generator of its own: this thread must not advance the global one, which the program may have seeded.
        self._random = random.Random()  # noqa: S311 - no secret
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cardinal-websocket", daemon=True)
        self._thread.start()
        self._wait_for_first()

    # --- for who reads -----------------------------------------------------------------------------------------

    @property
    def failure(self) -> CardinalError | None:
        """Why the link has ended; None while it has not."""
        return self._failure

    def ask(self, make: Callable[[int], Request], doing: str) -> Answer:
        """Ask, and wait for the answer.

        Raises:
            UnreachableError: the server is away, or has not answered in time.
            CardinalError: why the link has ended.

        """
        deadline = time.monotonic() + self._settings.connect_timeout
        while True:
            number, connection = self._send(make, deadline)
            with self._changed:
                self._changed.wait_for(
                    lambda number=number, connection=connection: (  # type: ignore[misc] # a lambda with defaults
                        self._answers[number] is not None or self._lost(connection)
                    ),
                    max(0.0, deadline - time.monotonic()),
                )
                answer = self._answers.pop(number)
                if answer is None:
                    self._forgotten.add(number)
            if answer is not None:
                return answer
            self._check()
            if time.monotonic() >= deadline:
                raise self._away(f"did not answer {doing} within {self._settings.connect_timeout:g} s")

    def tell(self, frame: Request) -> None:
        """Send, where there is a connection; where there is none, the next greeting says it."""
        with self._sending:
            if self._socket is not None:
                self._put(frame)

    def number(self) -> int:
        """An id that is higher than all before."""
        return next(self._ids)

    def close(self) -> None:
        """End the connection and the thread. May be called twice."""
        self._stop.set()
        with self._changed:
            self._failure = self._failure or TransportError("this source is closed; open another one")
            socket, line = self._socket, self._line
            self._changed.notify_all()
        if socket is not None:
            socket.close()
        if line is not None:
            line.cut()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * CLOSE_SECONDS)

    # --- requests ----------------------------------------------------------------------------------------------

    def _send(self, make: Callable[[int], Request], deadline: float) -> tuple[int, int]:
        """Send when there is a connection; the request's id, and which connection it was."""
        connected_by = min(deadline, time.monotonic() + _AWAY_SECONDS)
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._socket is not None or self._failure is not None,
                    max(0.0, connected_by - time.monotonic()),
                )
            self._check()
            with self._sending:
                if self._socket is not None:
                    number = next(self._ids)
                    self._answers[number] = None
                    self._put(make(number))
                    return number, self._connections
            if time.monotonic() >= connected_by:
                raise self._away("is away")

    def _put(self, frame: Request) -> None:
        # Where the connection breaks, the thread that receives notices as well, and connects again.
        with contextlib.suppress(self._errors.WebSocketException, OSError):
            self._socket.send(encode_request(frame))

    def _lost(self, connection: int) -> bool:
        return self._failure is not None or self._socket is None or self._connections != connection

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _away(self, what: str) -> CardinalError:
        why = f" ({self._ends.why})" if self._ends.why else ""
        return UnreachableError(
            f"the stream's server at {self._settings.address} {what}{why}: it is waited for",
            address=self._settings.address,
        )

    def _wait_for_first(self) -> None:
        with self._changed:
            while self._socket is None and self._failure is None:
                # A signal that comes just before a wait does not end it: what it raises comes after the wait.
                self._changed.wait(_SIGNAL_SECONDS)
        if self._failure is not None:
            self.close()
            raise self._failure

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        for attempt in itertools.count():
            if attempt:
                self._renew()
            address = self._settings.addresses[attempt % len(self._settings.addresses)]
            self._useful = False
            error = self._connect_and_receive(address)
            if self._stop.is_set():
                return
            ended = not isinstance(error, UnreachableError) and not (isinstance(error, RefusedError) and self._renew())
            if ended or (self._connections == 0 and attempt + 1 >= len(self._settings.addresses)):
                self._end(error)
                return
            if self._useful:
                pause = _FIRST_PAUSE
            # Jitter, so that the clients of a server that comes back do not all come at once.
            self._stop.wait(pause * self._random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _renew(self) -> bool:
        """Read the files of secrets and certificates again; whether another token is shown from now on."""
        before = self._settings.headers
        self._settings = settings = self._settings.again()
        if settings.tls:
            with contextlib.suppress(ConfigurationError):  # half written: the one from before
                self._tls = settings.tls()
        return settings.headers != before

    def _end(self, error: CardinalError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
        self._listener.ended()

    def _connect_and_receive(self, address: str) -> CardinalError:
        """One connection from its beginning to its end; why it ended."""
        line = Line(self._settings, self._client, self._ends)
        with self._changed:
            self._line = line
        if self._stop.is_set():
            line.cut()  # close() has not seen it
        try:
            with line.open(address, self._tls) as socket:
                if socket.subprotocol != SUBPROTOCOL:
                    where = self._settings.address
                    return RemoteProtocolError(f"the server at {where} does not speak {SUBPROTOCOL}")
                self._greet(socket)
                try:
                    line.listen(socket, self._receive)
                finally:
                    self._leave()
        except CardinalError as error:
            return error
        except (self._errors.WebSocketException, OSError, EOFError, UnicodeError) as error:
            return self._ends.of(error, first=self._connections == 0)

    def _greet(self, socket: Any) -> None:  # noqa: ANN401 - the library is imported late
        with self._sending:
            for frame in self._listener.greeting(self.number):
                socket.send(encode_request(frame))
            with self._changed:
                self._socket = socket
                self._forgotten.clear()
                self._connections += 1
                self._changed.notify_all()
        if self._stop.is_set():
            socket.close()

    def _leave(self) -> None:
        with self._changed:
            self._socket = None
            self._changed.notify_all()
        self._listener.ended()

    def _receive(self, message: bytes | str) -> None:
        frame = decode_answer(message)
        if isinstance(frame, Records):
            self._useful = True  # one that only sends us away again is asked less and less often
            self._listener.take(frame, len(message))
            return
        self._listener.answered(frame)
        with self._changed:
            if frame.id in self._answers:
                self._answers[frame.id] = frame
                self._changed.notify_all()
                return
            late = frame.id in self._forgotten
            self._forgotten.discard(frame.id)
        if isinstance(frame, Failed) and not late:
            self._listener.refused(frame)
