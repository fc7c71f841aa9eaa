"""WebSocket transport of JSON-RPC requests and notifications."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from cardinal.config.url import Endpoint
from cardinal_ethereum.feed.settings import RpcSettings

from .credentials import REFUSED, Credentials
from .faults import FailedError, TooLargeError
from .pending import PendingRequests
from .transport import Replies, closed_error, denied, elsewhere, unreachable

HEARTBEAT_SECONDS = 20.0


class WebSocketTransport:
    """Transport over one WebSocket, opened on demand and reopened after a failure.

    Arguments:
        endpoint: the node, ``ws://`` or ``wss://``.
        settings: settings of requests.
        credentials: credentials of the handshake.
        noticed: called for every notification of a subscription, and when the connection is lost.

    """

    def __init__(
        self, endpoint: Endpoint, settings: RpcSettings, credentials: Credentials, noticed: Callable[[], None]
    ) -> None:
        self.connects = 0
        self._endpoint = endpoint
        self._settings = settings
        self._credentials = credentials
        self._noticed = noticed
        self._pending = PendingRequests(noticed)
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse[Any] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def exchange(self, body: bytes, ids: Sequence[int]) -> Replies:
        """Send a request and wait for its responses."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                socket = await self._connected()
                with self._pending.expecting(ids) as answers:
                    await socket.send_str(body.decode())
                    return await answers
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failure:
            lost = unreachable(self._endpoint, failure, self._settings)
        raise lost  # outside of the except clause: the failure contains the sent headers and must not be its context

    async def close(self) -> None:
        """Close the socket."""
        self._closed = True
        reader, self._reader = self._reader, None
        socket, self._socket = self._socket, None
        session, self._session = self._session, None
        if socket is not None:
            await socket.close()
        if reader is not None:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
        if session is not None:
            await session.close()

    async def _connected(self) -> aiohttp.ClientWebSocketResponse[Any]:
        async with self._opening:
            if self._closed:
                raise closed_error(self._endpoint)
            if self._socket is not None and not self._socket.closed:
                return self._socket
            session = self._session = self._session or self._open()
            self._socket = await self._shaken(session)
            self.connects += 1
            self._reader = asyncio.create_task(self._read(self._socket))
            return self._socket

    async def _shaken(self, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse[Any]:
        """Socket after an accepted handshake."""
        while True:
            headers = self._credentials.headers
            try:
                return await session.ws_connect(
                    self._endpoint.url, headers=headers, max_msg_size=self._settings.answer, heartbeat=HEARTBEAT_SECONDS
                )
            except aiohttp.WSServerHandshakeError as refused:
                if (status := refused.status) not in REFUSED:
                    raise
            if not self._credentials.renewed(headers):
                raise denied(self._endpoint, status, self._credentials)

    def _open(self) -> aiohttp.ClientSession:
        """Session that follows no redirection: another host must not receive the node's credentials."""

        async def sent_elsewhere(_: object, __: object, sent: aiohttp.TraceRequestRedirectParams) -> None:
            sent.response.close()
            raise elsewhere(self._endpoint, sent.response.status, sent.response.headers.get("Location", ""))

        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(sent_elsewhere)
        return aiohttp.ClientSession(trace_configs=[trace])

    async def _read(self, socket: aiohttp.ClientWebSocketResponse[Any]) -> None:
        address = self._endpoint.address
        failure: FailedError | TooLargeError = FailedError(
            f"the node at {address} closed the connection", address=address
        )
        async for message in socket:
            if message.type is aiohttp.WSMsgType.ERROR and socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                failure = TooLargeError(f"the node's answer is longer than {self._settings.answer} bytes; request less")
            if message.type in {aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY}:
                self._pending.take(message.data.encode() if isinstance(message.data, str) else message.data)
        self._pending.fail(failure)
        self._noticed()  # a waiting feed reads the head now, over a new connection
