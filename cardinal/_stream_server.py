"""Server of byte streams: closing it closes every connection that it accepted, and awaits their ends.

:func:`asyncio.start_server` knows nothing of a connection until its handshake is over, and its ``close`` leaves
connections open and forgets those that are being made; all of these leak sockets where the loop ends right after. Here
a connection is owned from the moment at which it is accepted.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_BACKLOG: Final = 128
_ACCEPTED_AT_ONCE: Final = 16
"""Connections accepted in one step of the loop, so that a flood of them leaves time for those that are open."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EXHAUSTED_SECONDS: Final = 1.0
"""Pause where the system has no file for another connection; as asyncio's own servers."""
_REPORT_SECONDS: Final = 10.0
_ABSENT: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
_LOST_SECONDS: Final = 10.0
"""Wait for closed connections to end: they end in the next steps of the loop, so that it only bounds a bug."""

_log = logging.getLogger(__name__)


class StreamServer:
    """A server whose connections end with it.

    ``serve`` runs in a task of its own for each connection, which is closed when it returns. It is cancelled by
    :meth:`close`; its errors are the event loop's to report.

    Arguments:
        serve: what to do with a connection.
        limit: bytes that a reader buffers.
        tls: context of a server, or None.
        handshake_seconds: time for a TLS handshake; None is asyncio's.
        most, most_of_address: connections at once, handshakes included. A further one ends the oldest handshake, or is
            refused, so that connecting costs a stranger more than it costs the others.

    """

    def __init__(
        self,
        serve: Serve,
        *,
        limit: int = 1 << 16,
        tls: ssl.SSLContext | None = None,
        handshake_seconds: float | None = None,
        most: float = math.inf,
        most_of_address: float = math.inf,
    ) -> None:
        self._most, self._most_of_address = most, most_of_address
        self._reported_at = -math.inf
        self._serve = serve
        self._limit = limit
        self._tls = tls
        self._handshake_seconds = None if tls is None else handshake_seconds
        self._sockets: list[socket.socket] = []
        self._connections: dict[asyncio.Task[None], _Connection] = {}

    @property
    def port(self) -> int:
        """The TCP port; only while it listens."""
        return int(self._sockets[0].getsockname()[1])

    async def start(self, host: str, port: int) -> None:
        """Listen at all addresses of a host; port 0 is a free one. OSError: none can be had, or one is in use."""
        absent: OSError | None = None
        for family, address in await _resolved(host, port):
            try:
                self._listen(socket.create_server(address, family=family, backlog=_BACKLOG))
            except OSError as error:
                absent = error
                if error.errno not in _ABSENT:  # localhost may name an address of a family that is switched off
                    break
        if absent is not None and (not self._sockets or absent.errno not in _ABSENT):
            await self.close()
            raise absent

    async def start_unix(self, path: Path) -> None:
        """Listen at a Unix socket; one that an earlier process left there is replaced. OSError: it cannot be had."""
        if path.is_socket():  # noqa: ASYNC240 - once, at the start
            path.unlink()  # noqa: ASYNC240
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(os.fspath(path))
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        self._listen(listening)

    async def close(self) -> None:
        """Stop listening, end all connections and await their ends. May be called twice."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        ending = dict(self._connections)
        for task, connection in ending.items():
            task.cancel()
            connection.abort()  # also what is being closed and waits for a peer to read
        await asyncio.gather(*ending, return_exceptions=True)
        async with asyncio.timeout(_LOST_SECONDS):
            for connection in ending.values():
                await connection.ended.wait()

    def _listen(self, listening: socket.socket) -> None:
        listening.setblocking(False)  # noqa: FBT003 - its only argument
        self._sockets.append(listening)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _log.warning("no connection is accepted for a second: %s", os.strerror(error.errno or 0))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_EXHAUSTED_SECONDS, self._resume, listening)
                return
            address = str(peer[0]) if isinstance(peer, tuple) else ""
            if self._admits(address):
                self._own(_Connection(accepted, self._limit, address))
            else:
                accepted.close()

    def _admits(self, address: str) -> bool:
        """True if there is capacity for a connection of an address, where need be by the end of a handshake."""
        own = [(task, one) for task, one in self._connections.items() if one.address == address]
        full = len(self._connections) >= self._most
        if len(own) < self._most_of_address and not full:
            return True
        if self._reports():
            _log.warning(
                "a connection of %s is refused: %d are open, %d of them its own",
                address,
                len(self._connections),
                len(own),
            )
        among = list(self._connections.items()) if full else own
        oldest = next((task for task, one in among if one.is_new and not task.cancelling()), None)
        if oldest is not None:
            oldest.cancel()
        return oldest is not None

    def _reports(self) -> bool:
        """True if there was no line for a while: whoever connects can have one written."""
        now = asyncio.get_running_loop().time()
        if now - self._reported_at < _REPORT_SECONDS:
            return False
        self._reported_at = now
        return True

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _own(self, connection: _Connection) -> None:
        task = asyncio.ensure_future(self._run(connection))
        self._connections[task] = connection

        def ended(task: asyncio.Task[None]) -> None:
            connection.close()  # also where the task was cancelled before its first step
            if connection.ended.is_set():
                del self._connections[task]
            else:
                connection.then = lambda: self._connections.pop(task, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                task.get_loop().call_exception_handler({"message": "a connection's task failed", "exception": error})

        task.add_done_callback(ended)

    async def _run(self, connection: _Connection) -> None:
        try:
            writer = await connection.open(self._tls, self._handshake_seconds)
        except OSError as error:  # it is gone, or is no TLS
            if isinstance(error, ssl.SSLError) and self._reports():
                _log.warning("the TLS handshake of %s failed: %s", connection.address, _words(error))
            return
        await self._serve(connection.reader, writer)


def _words(error: ssl.SSLError) -> str:
    return (error.reason or type(error).__name__).replace("_", " ").lower()


async def _resolved(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    """Families and addresses of a host. OSError: it has none."""
    find = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = find(flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name: the resolver may wait for a server
        found = await asyncio.get_running_loop().run_in_executor(None, find)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


class _Connection(asyncio.StreamReaderProtocol):
    """An accepted socket, and the stream that is made of it."""

    def __init__(self, accepted: socket.socket, limit: int, address: str) -> None:
        self.address = address
        self.reader = asyncio.StreamReader(limit)
        super().__init__(self.reader)
        self.ended = asyncio.Event()
        self.then: Callable[[], object] = lambda: None
        self._socket = accepted
        self._writer: asyncio.StreamWriter | None = None
        accepted.setblocking(False)  # noqa: FBT003 - its only argument

    async def open(self, tls: ssl.SSLContext | None, handshake_seconds: float | None) -> asyncio.StreamWriter:
        """Make the stream, with the TLS handshake. OSError: the peer is gone, or its handshake failed."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: self, self._socket, ssl=tls, ssl_handshake_timeout=handshake_seconds)
        assert self._writer is not None  # noqa: S101 - it is connected
        return self._writer

    @property
    def is_new(self) -> bool:
        """True until it is a stream: its TLS handshake is not over."""
        return self._writer is None

    def close(self) -> None:
        """Close it when what was written is sent; at once where no stream was made of it."""
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()
            self._end()

    def abort(self) -> None:
        """Close it at once; a stream that is being made is closed by the cancellation of :meth:`open`."""
        if self._writer is not None:
            self._writer.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.Protocol`."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._writer = asyncio.StreamWriter(transport, self, self.reader, asyncio.get_running_loop())

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        super().connection_lost(exc)
        self._end()

    def _end(self) -> None:
        self.ended.set()
        self.then()
