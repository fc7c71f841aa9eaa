"""A client's connection: the websocket library's, which looks whether the client lives. Imported late.

Rules:

1. What the client sends is a sign of life, and so is what it takes: where more was to be sent than its socket took,
   and then some of it went. :class:`~cardinal.transports.websocket.life.Life` says when it is gone.
2. A large frame is sent in fragments, so that pings get between them.
3. Memory of the system is bounded for each client as well, where the system can (``TCP_NOTSENT_LOWAT``): what was not
   sent yet. What is on its way is not bounded, because a fast link with a long delay needs it.
4. Closing takes a bounded time, also where the client takes nothing: then the goodbye waits behind records.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from cardinal.transports.websocket.life import Life

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOSE_SECONDS: Final = 2.0
"""A client has so long to answer to a goodbye."""

_SPARE_SECONDS: Final = 0.5
"""For the library, which keeps to that where it can."""

_FRAGMENT_BYTES: Final = 64 << 10
_FRAGMENTS_MAX: Final = 1024
"""The library takes 4096 of one message."""

_UNSENT_BYTES: Final = 512 << 10
"""A frame or two. Linux would keep up to 4 MiB of it for a client that takes nothing."""

_UNSENT_OPTION: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
"""Linux and macOS have it."""


class Connection(ServerConnection):
    """See the module.

    Arguments:
        ping_seconds: how often the client is asked; it has as long to answer.
        arguments, options: the library's.

    """

    def __init__(self, *arguments: Any, ping_seconds: float, **options: Any) -> None:  # noqa: ANN401 - as they come
        super().__init__(*arguments, **options)
        self._life = Life(ping_seconds, time.monotonic())

    async def watch(self) -> None:
        """Ask the client again and again, and end the connection when it is gone."""
        with contextlib.suppress(ConnectionClosed):
            while not self._life.gone(now := time.monotonic()):
                if self._life.ask(now):
                    # What waits before the ping may take long; it is on its way, though.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._life.rest(now)):
                            await self.ping(self._life.payload)
                await asyncio.sleep(self._life.rest(time.monotonic()))
            self.transport.abort()

    async def send(self, message: Any, text: bool | None = None) -> None:  # noqa: ANN401, FBT001 - as it is inherited
        """Send a frame, in fragments where it is large."""
        large = isinstance(message, bytes) and len(message) > _FRAGMENT_BYTES
        await super().send(_fragments(message) if large else message, text=text)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye, and end the connection where that does not get through: the library waits for it for ever."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS + _SPARE_SECONDS):
                await super().close(code, reason)
        except TimeoutError:
            self.transport.abort()
            await self.wait_closed()

    # --- told by the event loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        super().connection_made(transport)
        if _UNSENT_OPTION is not None:
            with contextlib.suppress(OSError):  # it is gone already
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, _UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._life.hear(time.monotonic())
        super().data_received(data)

    def resume_writing(self) -> None:
        """What the socket did not take before has gone: the client takes."""
        self._life.hear(time.monotonic())
        super().resume_writing()


def _fragments(message: bytes) -> Iterator[memoryview]:
    size = max(_FRAGMENT_BYTES, -(-len(message) // _FRAGMENTS_MAX))
    view = memoryview(message)
    return (view[at : at + size] for at in range(0, len(message), size))
