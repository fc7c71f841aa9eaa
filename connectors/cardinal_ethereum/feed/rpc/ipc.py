"""Unix socket transport of JSON-RPC requests and notifications (``ipc:///path/geth.ipc``).

File permissions protect the socket: no port, no password. Texts follow each other in one stream (:mod:`.json_stream`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote

from cardinal.config.url import Endpoint
from cardinal.errors import ConfigurationError
from cardinal_ethereum.feed.settings import RpcSettings

from .faults import CallRefusedError, FailedError, NoNodeError, TooLargeError
from .json_stream import JsonFrames, LongTextError
from .pending import PendingRequests
from .transport import Replies, closed_error, unreachable

_READ_BYTES = 1 << 18


class IpcTransport:
    """Transport over one Unix socket, opened on demand and reopened after a failure.

    Arguments:
        endpoint: the node, ``ipc:///absolute/path``.
        settings: settings of requests.
        noticed: called for every notification of a subscription, and when the connection is lost.

    Raises:
        ConfigurationError: the URL names no absolute path.

    """

    def __init__(self, endpoint: Endpoint, settings: RpcSettings, noticed: Callable[[], None]) -> None:
        self.connects = 0
        self._endpoint = endpoint
        self._path = socket_path(endpoint)
        self._settings = settings
        self._noticed = noticed
        self._pending = PendingRequests(noticed)
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def exchange(self, body: bytes, ids: Sequence[int]) -> Replies:
        """Send a request and wait for its responses."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                writer = await self._connected()
                with self._pending.expecting(ids) as answers:
                    writer.write(body + b"\n")
                    await writer.drain()
                    return await answers
        except (TimeoutError, OSError) as failure:
            raise unreachable(self._endpoint, failure, self._settings) from None

    async def close(self) -> None:
        """Close the socket."""
        self._closed = True
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        await self._drop()

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._opening:
            if self._closed:
                raise closed_error(self._endpoint)
            if self._writer is not None and self._reading is not None and not self._reading.done():
                return self._writer
            await self._drop()
            reader, self._writer = await asyncio.open_unix_connection(self._path, limit=_READ_BYTES)
            self.connects += 1
            self._reading = asyncio.create_task(self._read(reader))
            return self._writer

    async def _drop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = JsonFrames(most=self._settings.answer)
        address = self._endpoint.address
        failure: FailedError | CallRefusedError = FailedError(
            f"the node at {address} closed the connection", address=address
        )
        try:
            while data := await reader.read(_READ_BYTES):
                for frame in frames.receive(data):
                    self._pending.take(frame)
        except LongTextError as long:
            failure = TooLargeError(str(long))
        except NoNodeError as malformed:
            failure = malformed
        except OSError:
            pass  # a reset by the node counts as its end
        self._pending.fail(failure)
        self._noticed()  # a waiting feed reads the head now, over a new connection


def socket_path(endpoint: Endpoint) -> Path:
    """The file of an ``ipc://`` URL; ConfigurationError where it names none."""
    parts = endpoint.parts
    if parts.netloc or not parts.path.startswith("/"):
        raise ConfigurationError("a node's socket is named by its absolute path: ipc:///path/geth.ipc", setting="url")
    return Path(unquote(parts.path))
