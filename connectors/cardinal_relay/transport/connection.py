"""Liveness and logging of a websocket connection, for both sides."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from typing import TYPE_CHECKING, Final

from websockets.exceptions import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from websockets.asyncio.connection import Connection

SILENT_INTERVALS: Final = 3
"""Ping intervals without a sign of life after which the other side counts as gone."""

LIBRARY_LOGGER: Final = logging.Logger("websockets", logging.CRITICAL + 1)  # noqa: LOG001 - outside the hierarchy
"""Discards the library's messages: they hold headers, thus tokens, and tracebacks of connections that broke."""


async def keep_alive(connection: Connection, interval: float, heard: Callable[[], float]) -> bool:
    """Ping the other side until the connection is closed: true where it was silent, and the connection was aborted.

    The library's keepalive counts only pongs. On a slow link the pong queues behind records, which count as well.

    Arguments:
        connection: the websocket.
        interval: seconds between two pings.
        heard: time of the last sign of life, by the monotonic clock.

    """
    with contextlib.suppress(ConnectionClosed):
        for number in itertools.count():
            await asyncio.sleep(interval)
            # A payload of our own: the library would draw it from the global random generator.
            pong = asyncio.ensure_future(await connection.ping(number.to_bytes(8, "big")))
            sent = time.monotonic()
            while not pong.done():
                await asyncio.wait({pong}, timeout=interval)
                if not pong.done() and time.monotonic() - max(sent, heard()) > SILENT_INTERVALS * interval:
                    connection.transport.abort()
                    return True
    return False
