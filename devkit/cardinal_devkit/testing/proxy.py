"""TCP proxy with network faults on command.

    with TcpProxy("127.0.0.1:9092") as proxy:
        client = connect(proxy.address)
        proxy.impair(Link(latency=0.05))       # 50 ms each way
        proxy.reset()                          # reset every connection, as a router that restarts
        proxy.impair(Link(blackhole=True))     # an unplugged cable; sent bytes arrive after heal()
        proxy.heal()

Kafka clients connect to advertised addresses, so a broker behind a proxy must advertise the proxy:
``EmbeddedKafka(data, port=port, advertised=proxy.address)``.

Rules:

1. Bytes arrive unchanged and in order: an impaired link is slow, stuck or cut, never corrupt.
2. Each direction of a connection buffers a bounded number of bytes; then its sender waits, as with TCP. Bytes are lost
   only by a cut, a reset, or a closed peer.
3. An impairment applies from the next byte on, also to open connections.
4. The proxy runs on a thread and an event loop of its own. Every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

from cardinal._stream_server import StreamServer
from cardinal.errors import ConfigurationError, UnreachableError

from ._relay import CLEAR, Link, Links, Pair

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["CLEAR", "Link", "ProxyStats", "TcpProxy"]

_Answer = TypeVar("_Answer")
_CALL_SECONDS: Final = 60.0


class ProxyStats(NamedTuple):
    """Counters of a proxy: connections accepted, open, cut or reset by the proxy, refused by the target; bytes."""

    accepted: int
    open: int
    cut: int
    refused: int
    up: int
    down: int


class TcpProxy:
    """Proxy in front of ``target``.

    Arguments:
        target: ``host:port`` of the server, which may start later.
        port: the port on 127.0.0.1; 0: a free one.

    Raises:
        ConfigurationError: the target is no address.

    """

    def __init__(self, target: str, *, port: int = 0) -> None:
        host, colon, number = target.rpartition(":")
        if not (host and colon and number.isdecimal()):
            raise ConfigurationError(f"the target of a proxy is host:port, not {target!r}", setting="target")
        self.target = (host, int(number))
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: StreamServer | None = None
        self._up, self._down = Links(), Links()
        self._pairs: dict[asyncio.Task[None], Pair] = {}
        self._accepted = self._cut = self._refused = 0

    # --- for every thread ------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """``host:port`` for clients; unchanged by :meth:`stop` and :meth:`start`."""
        return f"127.0.0.1:{self._port}"

    @property
    def stats(self) -> ProxyStats:
        """Counters since the start."""
        return ProxyStats(
            self._accepted, len(self._pairs), self._cut, self._refused, self._up.passed, self._down.passed
        )

    def start(self) -> Self:
        """Listen. May be called again after :meth:`stop`.

        Raises:
            UnreachableError: the port is taken.

        """
        if self._thread is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="cardinal-tcp-proxy", daemon=True)
            self._thread.start()
            try:
                self._run(self._listen())
            except OSError as error:
                self._end()
                raise UnreachableError(f"a proxy cannot listen at {self.address}", address=self.address) from error
        return self

    def stop(self) -> None:
        """Stop listening and reset open connections. May be called twice."""
        if self._thread is not None:
            self._run(self._close())
            self._end()

    def impair(self, up: Link, down: Link | None = None) -> None:
        """Set the link to the target, ``up``, and the link from it, ``down`` (None: the same)."""
        if self._thread is None:
            self._up.link, self._down.link = up, up if down is None else down
        else:
            self._run(self._change(up, up if down is None else down))

    def heal(self) -> None:
        """Remove all impairments; delayed bytes are delivered."""
        self.impair(CLEAR)

    def reset(self) -> int:
        """Reset every open connection, in both directions, and return their number; new ones are accepted."""
        return self._run(self._reset()) if self._thread is not None else 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- on the loop -----------------------------------------------------------------------------------------

    def _run(self, call: Coroutine[object, object, _Answer]) -> _Answer:
        if self._loop is None:
            call.close()
            raise UnreachableError("the proxy does not run: call start()", address=self.address)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(_CALL_SECONDS)

    def _end(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CALL_SECONDS)
            self._loop.close()
        self._loop = self._thread = None

    async def _listen(self) -> None:
        self._server = StreamServer(self._serve)
        await self._server.start("127.0.0.1", self._port)
        self._port = self._server.port

    async def _close(self) -> None:
        await self._reset()
        if self._server is not None:
            await self._server.close()
            self._server = None

    async def _change(self, up: Link, down: Link) -> None:
        self._up.change(up)
        self._down.change(down)

    async def _reset(self) -> int:
        for task, pair in self._pairs.items():
            pair.abort()
            task.cancel()
            self._cut += 1
        return len(self._pairs)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        task = asyncio.current_task()
        if task is None:
            return
        pair = self._pairs[task] = Pair(reader, writer)
        try:
            if not await pair.connect(*self.target):
                self._refused += 1
            elif await pair.relay(self._up, self._down):
                self._cut += 1
        finally:
            pair.abort()
            del self._pairs[task]
