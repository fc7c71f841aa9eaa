"""One connection to a server, from its beginning to its end: :mod:`.link` makes one after the other.

The library's own keepalive is off: it takes the answer to a ping for the only sign of life (:mod:`.life`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from .frames import SUBPROTOCOL
from .life import Life
from .quiet import QuietLogger

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from contextlib import AbstractContextManager

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

    def open(self, address: str, tls: ssl.SSLContext | None) -> AbstractContextManager[Any, None]:
        """The library's connection to this address. Its errors, or an OSError: there is none."""
        settings = self._settings
        connection: AbstractContextManager[Any, None] = self._client.connect(
            address,
            ssl=tls,
            subprotocols=[SUBPROTOCOL],
            compression=settings.compression,
            additional_headers=dict(settings.headers),
            user_agent_header="cardinal-streams",
            proxy=None,
            open_timeout=settings.connect_timeout,
            close_timeout=CLOSE_SECONDS,
            ping_interval=None,
            max_size=settings.frame_max,
            logger=QuietLogger(__name__),
            create_connection=self._made,
        )
        return connection

    def listen(self, socket: Any, take: Callable[[bytes | str], None]) -> NoReturn:  # noqa: ANN401 - the same
        """Take what comes, until it ends. UnreachableError: nothing comes any more; else the library's errors."""
        while True:
            message = self._next(socket)
            if message is not None:
                take(message)
            now = time.monotonic()
            if self._life.gone(now):
                raise self._ends.silent(self._life.patience)
            if self._life.ask(now):
                socket.ping()

    # --- inside ------------------------------------------------------------------------------------------------

    def _next(self, socket: Any) -> bytes | str | None:  # noqa: ANN401 - the same
        """A message; None where it is time to look whether the server lives."""
        try:
            message: bytes | str = socket.recv(self._life.rest(time.monotonic()))
        except TimeoutError:
            return None
        return message

    def _made(self, socket: Any, protocol: Any, **options: Any) -> Any:  # noqa: ANN401 - the same
        """The library's connection, whose bytes are heard: parts of a large message come long before its end."""
        receive = protocol.receive_data

        def heard(data: bytes) -> None:
            self._life.hear(time.monotonic())
            receive(data)

        protocol.receive_data = heard
        return self._client.ClientConnection(socket, protocol, **options)
