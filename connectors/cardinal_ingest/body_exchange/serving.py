"""Serving side of the links between ingest nodes: a peer dials this node, and fetches what it lacks.

Rules:

1. A link holds one body in memory, or a few small ones, and requests in the number that the protocol allows. Bodies are
   read from the disk when they are written to the link.
2. The state of a link is used on threads, one call at a time: the store makes readers wait while it syncs.
3. A client that breaks a rule, sends no first message, or takes longer over a reply than a client would wait for it,
   loses its link. A client that waits for new blocks may be silent.
4. The number of links is bounded. Where it is reached, the machine with the most of them loses its newest.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final, Self

from cardinal._stream_server import StreamServer
from cardinal.config.listening import refusal
from cardinal.errors import ConfigurationError
from cardinal.texts import Count
from cardinal_ingest.body_exchange.counts import LOG, PeerCounts, notice_loss
from cardinal_ingest.body_exchange.settings import PAUSE_SECONDS, READ_BYTES, PeerSettings
from cardinal_ingest.errors import StoreError, ViolationError
from cardinal_ingest.protocols.diffusion import Server, State

if TYPE_CHECKING:
    from cardinal_ingest.body_exchange.served_bodies import Shelf
    from cardinal_ingest.protocols.diffusion import ObjectId

_IDLE_READS: Final = 20
"""Reads of a link without a body since, after which it is read with pauses."""
_TOGETHER_BYTES: Final = 1 << 20
"""Bytes of bodies that are read at once, where one has fewer: each time costs a change of threads."""
_WRITE_BYTES: Final = 2_500_000
"""For which a client has the time of a reply, as it has itself for the server (O19)."""


class PeerServer:
    """Serves peers at an address; a context manager.

    Arguments:
        shelf: what is served.
        settings: of the links; ``listen`` is set.
        counts: of the node's links.

    Attributes:
        port: at which it listens.

    """

    def __init__(self, shelf: Shelf, settings: PeerSettings, counts: PeerCounts) -> None:
        self._shelf = shelf
        self._settings = settings
        self._counts = counts
        self._server = StreamServer(
            self._accept, limit=READ_BYTES, tls=settings.server_tls, handshake_seconds=settings.connect_seconds
        )
        self._links: dict[asyncio.Task[None], str] = {}
        """The links, oldest first, and the machines that dialed them."""
        self.port = 0

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ConfigurationError: the address cannot be had.

        """
        assert self._settings.listen is not None  # noqa: S101 - the service checks
        host, port = self._settings.listen
        try:
            await self._server.start(host, port)
        except OSError as error:
            raise ConfigurationError(
                f"peers cannot be served at {host}:{port}: {refusal(error)}", setting="peer-listen"
            ) from None
        self.port = self._server.port
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all links."""
        await self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None  # noqa: S101 - for the type checker
        host, port = writer.get_extra_info("peername")[:2]
        self._links[link] = host
        self._counts.clients = len(self._links)
        try:
            if len(self._links) > self._settings.clients:
                self._disconnect_one()
            notice_loss(writer)
            await self._serve(f"{host}:{port}", reader, writer)
        finally:
            writer.transport.abort()
            del self._links[link]
            self._counts.clients = len(self._links)

    def _disconnect_one(self) -> None:
        """There are too many links: rule 4."""
        ((host, count),) = Counter(self._links.values()).most_common(1)
        newest = next(link for link, its in reversed(self._links.items()) if its == host)
        newest.cancel()
        served = Count(self._settings.clients, "link is", "links are")
        sentence = f"a peer at {host} was disconnected: {served} served, {count} of them to it"
        self._counts.refuse("crowded", host, sentence)

    async def _serve(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until its link ends, for any reason."""
        link = _Link(self._shelf, self._settings)
        news = asyncio.Event()
        self._shelf.watchers.add(news.set)
        try:
            answering = asyncio.ensure_future(self._answer(link, news, writer))
            reading = asyncio.ensure_future(self._read(link, news, reader))
            try:
                done, _ = await asyncio.wait((answering, reading), return_when=asyncio.FIRST_COMPLETED)
                done.pop().result()
            finally:
                answering.cancel()
                reading.cancel()
                await asyncio.gather(answering, reading, return_exceptions=True)
        except ViolationError as error:
            self._counts.refuse(
                error.violation,
                name,
                f"the link of the peer {name} was closed, it broke the protocol ({error.violation}): {error.reason}",
            )
        except _Late as late:
            self._counts.refuse(late.reason, name, f"the link of the peer {name} was closed: {late}")
        except StoreError as error:
            fields = {"kind": "store", "peer": name, "error": error}
            LOG.warning("the link of the peer %(peer)s was closed: %(error)s", fields)
        except OSError as error:
            LOG.info("the peer %(peer)s is gone: %(error)s", {"kind": "gone", "peer": name, "error": error})
        finally:
            self._shelf.watchers.discard(news.set)
            await asyncio.shield(asyncio.to_thread(link.close))

    async def _read(self, link: _Link, news: asyncio.Event, reader: asyncio.StreamReader) -> None:
        """Take requests until the client ends the link."""
        served, idle = 0, 0
        first: float | None = self._settings.connect_seconds
        while True:
            try:
                async with asyncio.timeout(first):
                    data = await reader.read(READ_BYTES)
            except TimeoutError:
                raise _Late("silent", f"no message came within {first:g} s") from None
            if not data:
                return
            await asyncio.to_thread(link.receive, data)
            if link.state is State.DONE:
                return
            if link.state is not State.INIT:
                first = None
            news.set()
            idle = 0 if link.served > served else idle + 1
            served = link.served
            if idle > _IDLE_READS:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _answer(self, link: _Link, news: asyncio.Event, writer: asyncio.StreamWriter) -> None:
        """Write replies as they are due."""
        while True:
            await news.wait()
            news.clear()
            while pieces := await asyncio.to_thread(link.next):
                size = sum(map(len, pieces))
                seconds = self._settings.reply_seconds * (1 + size // _WRITE_BYTES)
                try:
                    async with asyncio.timeout(seconds):
                        for piece in pieces:
                            await _write(writer, piece)
                except TimeoutError:
                    raise _Late("slow", f"it did not read {size:,} bytes within {seconds:g} s") from None
                self._counts.served += link.taken()


async def _write(writer: asyncio.StreamWriter, piece: bytes) -> None:
    """Write a piece of a reply; no more of it than a part is copied."""
    if len(piece) <= READ_BYTES:
        writer.write(piece)
    else:
        view = memoryview(piece)
        for at in range(0, len(piece), READ_BYTES):
            writer.write(view[at : at + READ_BYTES])
            await writer.drain()
    await writer.drain()


class _Late(Exception):  # noqa: N818 - the end of a link, which is caught here
    """A client took too long."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class _Link:
    """The protocol's state of one link, for threads."""

    def __init__(self, shelf: Shelf, settings: PeerSettings) -> None:
        self._lock = threading.Lock()
        self._shelf = shelf
        self._server = Server(self, settings.diffusion)
        self.after, self.pin, self.release = shelf.after, shelf.pin, shelf.release
        self.served = 0
        """Bodies that were read for the client."""
        self._counted = 0

    @property
    def state(self) -> State:
        return self._server.state

    def body(self, one: ObjectId) -> bytes:
        """As the shelf's."""
        self.served += 1
        return self._shelf.body(one)

    def taken(self) -> int:
        """Bodies that were read since the last call."""
        new, self._counted = self.served - self._counted, self.served
        return new

    def receive(self, data: bytes) -> None:
        with self._lock:
            self._server.receive(data)

    def next(self) -> list[bytes]:
        """The next pieces to write, a mebibyte or one body; empty where there is nothing to write now."""
        pieces: list[bytes] = []
        size = 0
        with self._lock:
            while size < _TOGETHER_BYTES and (piece := self._server.send()) is not None:
                pieces.append(piece)
                size += len(piece)
        return pieces

    def close(self) -> None:
        with self._lock:
            self._server.close()
