"""One connection to a server, from its beginning to its end: :mod:`.link` makes one after the other.

The library's own keepalive is off: it takes the answer to a ping for the only sign of life (:mod:`.life`).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlsplit

from .frames import SUBPROTOCOL
from .life import Life
from .quiet import QuietLogger

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from .ends import Ends
    from .settings import WebsocketSettings

CLOSE_SECONDS: Final = 1.0


class Line:
    """See the module.

    Arguments:
        settings: the servers.
        client: the websocket library's client; it is imported late.
        ends: makes the error for a server that fell silent.

    """

    def __init__(self, settings: WebsocketSettings, client: Any, ends: Ends) -> None:  # noqa: ANN401 - a module
        self._settings = settings
        self._client = client
        self._ends = ends
        self._life = Life(settings.ping_interval, time.monotonic())
        self._lock = threading.Lock()
        self._handle: socket.socket | None = None
        self._over = False

    @contextlib.contextmanager
    def open(self, address: str, tls: ssl.SSLContext | None) -> Iterator[Any]:
        """The library's connection to this address. Its errors, or an OSError: there is none."""
        settings = self._settings
        deadline = time.monotonic() + settings.connect_timeout
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(self._dial(address, deadline))
            try:
                connection = stack.enter_context(
                    self._client.connect(
                        address,
                        sock=plain,
                        ssl=tls,
                        subprotocols=[SUBPROTOCOL],
                        compression=settings.compression,
                        additional_headers=dict(settings.headers),
                        user_agent_header="cardinal-streams",
                        proxy=None,
                        open_timeout=max(0.0, deadline - time.monotonic()),
                        close_timeout=CLOSE_SECONDS,
                        ping_interval=None,
                        max_size=settings.frame_max,
                        logger=QuietLogger(__name__),
                        create_connection=self._made,
                    )
                )
            except ValueError as error:
                # A redirection, which the library does not follow on a socket of ours: its status says it.
                raise error.__cause__ or error from None
            yield connection

    def cut(self) -> None:
        """End it from another thread, at once, wherever it is: its thread gets an error."""
        with self._lock:
            self._over = True
            if self._handle is not None:
                with contextlib.suppress(OSError):
                    self._handle.shutdown(socket.SHUT_RDWR)

    def listen(self, connection: Any, take: Callable[[bytes | str], None]) -> NoReturn:  # noqa: ANN401 - the same
        """Take what comes, until it ends. UnreachableError: nothing comes any more; else the library's errors."""
        while True:
            message = self._next(connection)
            if message is not None:
                take(message)
            now = time.monotonic()
            if self._life.gone(now):
                self.cut()  # nobody waits for what will not be taken any more
                raise self._ends.silent(self._life.patience)
            if self._life.ask(now):
                connection.ping(self._life.payload)

    # --- inside ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _dial(self, address: str, deadline: float) -> Iterator[socket.socket]:
        """A TCP connection. OSError: there is none."""
        parts = urlsplit(address)
        places = socket.getaddrinfo(
            parts.hostname, parts.port or (443 if parts.scheme == "wss" else 80), type=socket.SOCK_STREAM
        )
        for tried, (family, kind, protocol, _, place) in enumerate(places, 1):
            with socket.socket(family, kind, protocol) as plain, self._held(plain):
                try:
                    plain.settimeout(max(0.001, deadline - time.monotonic()))
                    plain.connect(place)
                except OSError:
                    if tried == len(places) or self._over:
                        raise
                    continue
                plain.settimeout(None)
                yield plain
                return

    @contextlib.contextmanager
    def _held(self, plain: socket.socket) -> Iterator[None]:
        """Let cut() end it; by a handle of its own, as TLS takes the socket over."""
        with plain.dup() as handle:
            with self._lock:
                if self._over:
                    raise ConnectionAbortedError
                self._handle = handle
            try:
                yield
            finally:
                with self._lock:
                    self._handle = None

    def _next(self, connection: Any) -> bytes | str | None:  # noqa: ANN401 - the same
        """A message; None where it is time to look whether the server lives."""
        try:
            message: bytes | str = connection.recv(self._life.rest(time.monotonic()))
        except TimeoutError:
            return None
        return message

    def _made(self, plain: Any, protocol: Any, **options: Any) -> Any:  # noqa: ANN401 - the same
        """The library's connection, whose bytes are heard: parts of a large message come long before its end."""
        receive = protocol.receive_data

        def heard(data: bytes) -> None:
            self._life.hear(time.monotonic())
            receive(data)

        protocol.receive_data = heard
        return self._client.ClientConnection(plain, protocol, **options)
