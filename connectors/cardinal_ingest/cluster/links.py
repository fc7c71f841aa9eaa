"""Links between the members of a cluster: the frames of the mesh, on TCP connections.

Each pair of members has two connections: the dialer of one alone sends messages on it. Every decision is the mesh's
(:mod:`cardinal_ingest.protocols.mesh`); this module has the sockets, the clock and the random numbers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cardinal._stream_server import StreamServer
from cardinal.config.listening import refusal
from cardinal.errors import ConfigurationError
from cardinal_ingest.body_exchange.counts import LOG, notice_loss
from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols.mesh import (
    Acceptor,
    Begun,
    Changed,
    Close,
    Dial,
    Effect,
    Effects,
    LinkState,
    OutgoingLink,
    Reason,
    Received,
    Send,
    SnapshotWanted,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Hashable

    from cardinal_ingest.protocols.mesh import Identity, MeshSettings

_READ_BYTES: Final = 1 << 16
_NONCE_BYTES: Final = 16
_CONNECTIONS_MOST: Final = 256
"""Connections at once, TLS handshakes included, of which the oldest ends for a new one."""
_TICK_SECONDS: Final = 0.05
_QUIET: Final = frozenset({Reason.REPLACED, Reason.CLOSED})
_UNREACHED: Final = frozenset({Reason.CONNECTION_LOST, Reason.DIAL_TIMEOUT})
_MISSED_SECONDS: Final = 10.0


class Host(Protocol):
    """The node behind the links."""

    def begin(self, peer: str) -> None:
        """A session of the peer begins: its snapshot follows."""
        ...

    def receive(self, peer: str, kind: int, payload: bytes, committed: Callable[[], None]) -> None:
        """A message of the peer; ``committed`` is to be called when its step is.

        Raises:
            ViolationError: the message is not one that a member sends.

        """
        ...

    def snapshot(self, peer: str) -> None:
        """A session to the peer begins: its snapshot is to be sent, by :meth:`Links.snapshot`."""
        ...


class Links:
    """Links of one member to all others.

    Arguments:
        identity: of this member.
        host: takes the messages.
        listen: ``(host, port)`` for the other members.
        server_tls, client_tls: contexts of the two sides; None: frames are signed and not encrypted.
        settings: times and bounds of the mesh.
        now: a monotonic clock.

    Attributes:
        ended: ends of links by their reason.

    """

    def __init__(
        self,
        identity: Identity,
        host: Host,
        listen: tuple[str, int],
        *,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        settings: MeshSettings | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ended: Counter[str] = Counter()
        self._addresses = {one.id: one.address for one in identity.cluster.members if one.id != identity.id}
        self._host = host
        self._listen = listen
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._now = now
        draw = random.SystemRandom().random
        self._outgoing = {peer: OutgoingLink(identity, peer, draw, now(), settings) for peer in self._addresses}
        self._acceptor = Acceptor(identity, settings)
        self._dialed: dict[str, asyncio.StreamWriter] = {}
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._accepted: dict[Hashable, asyncio.StreamWriter] = {}
        self._names = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported: dict[tuple[str, str], tuple[Reason | None, str]] = {}
        """Last logged end of each link since it was connected; strangers share one."""
        self._missed: dict[tuple[str, str], float] = {}
        """Time since which a link is not connected; infinity once that was a warning."""

    # --- queries ----------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> list[str]:
        """Peers with which messages pass both ways; none of these is suspected."""
        heard = {link.peer for link in self._acceptor.links.values() if link.state is LinkState.CONNECTED}
        return [peer for peer, link in self._outgoing.items() if link.state is LinkState.CONNECTED and peer in heard]

    @property
    def suspected(self) -> list[str]:
        """Peers that a link has reason to doubt."""
        links = [*self._outgoing.values(), *self._acceptor.links.values()]
        return sorted({link.peer for link in links if link.state is LinkState.SUSPECTED})

    # --- the node's side ----------------------------------------------------------------------------------------------

    def send(self, peer: str, kind: int, payload: bytes) -> None:
        """Send a message, where a session is open."""
        link = self._outgoing[peer]
        self._act(peer, link.send(kind, payload, self._now()))

    def broadcast(self, kind: int, payload: bytes) -> None:
        """Send a message to every member to which a session is open."""
        for peer in self._outgoing:
            self.send(peer, kind, payload)

    def snapshot(self, peer: str, messages: list[tuple[int, bytes]]) -> None:
        """Begin a session with the node's committed facts."""
        self._act(peer, self._outgoing[peer].snapshot(messages, self._now()))

    async def run(self) -> None:
        """Dial and accept until cancelled.

        Raises:
            ConfigurationError: the address for members cannot be had.

        """
        server = StreamServer(self._accept, limit=_READ_BYTES, tls=self._server_tls, most=_CONNECTIONS_MOST)
        try:
            await server.start(*self._listen)
        except OSError as error:
            raise ConfigurationError(
                f"members cannot be served at {self._listen[0]}:{self._listen[1]}: {refusal(error)}", setting="members"
            ) from None
        try:
            while True:
                now = self._now()
                for peer, link in self._outgoing.items():
                    self._act(peer, link.tick(now))
                self._act_all(self._acceptor.tick(now))
                await asyncio.sleep(_TICK_SECONDS)
        finally:
            self.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.close()

    def close(self) -> None:
        """End all sessions; running links dial again."""
        now = self._now()
        for peer, link in self._outgoing.items():
            self._act(peer, link.close(now))
        self._act_all(self._acceptor.close(now))

    # --- connections that this node opens -----------------------------------------------------------------------------

    async def _dial(self, peer: str, connection: int) -> None:
        link, (host, port) = self._outgoing[peer], _host_port(self._addresses[peer])
        detail = "the peer closed it"
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=_READ_BYTES, ssl=self._client_tls)
            try:
                notice_loss(writer)
                self._dialed[peer] = writer
                self._act(peer, link.opened(connection, os.urandom(_NONCE_BYTES), self._now()))
                while data := await reader.read(_READ_BYTES):
                    self._act(peer, link.receive(connection, data, self._now()))
            finally:
                if self._dialed.get(peer) is writer:
                    del self._dialed[peer]
                writer.transport.abort()
        except OSError as error:
            detail = str(error)
        self._act(peer, link.lost(connection, detail, self._now()))

    def _act(self, peer: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Dial(connection):
                    self._dials[peer] = self._start(self._dial(peer, connection))
                case Send(data):
                    self._dialed[peer].write(data)
                case Close():
                    # Opened or not: a connection that opens later would take the place of the next one, and a silent
                    # one would wait for what was written to be sent.
                    self._dialed.pop(peer, None)
                    self._dials.pop(peer).cancel()
                case SnapshotWanted():
                    self._host.snapshot(peer)
                case Changed():
                    self._changed("to", effect)
                case _:
                    raise AssertionError(effect)

    # --- connections that peers open --------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = next(self._names)
        self._accepted[name] = writer
        detail = "the peer closed it"
        try:
            notice_loss(writer)
            self._act_all(self._acceptor.accept(name, os.urandom(_NONCE_BYTES), self._now()))
            while name in self._acceptor.links and (data := await reader.read(_READ_BYTES)):
                self._act_all(self._acceptor.receive(name, data, self._now()))
                while (link := self._acceptor.links.get(name)) is not None and link.is_paused:  # noqa: ASYNC110
                    await asyncio.sleep(_TICK_SECONDS)  # until steps are committed
        except OSError as error:
            detail = str(error)
        finally:
            self._act_all(self._acceptor.lost(name, detail, self._now()))
            del self._accepted[name]

    def _act_all(self, effects: Effects) -> None:
        for name, effect in effects:
            match effect:
                case Send(data):
                    self._accepted[name].write(data)
                case Close():
                    self._accepted[name].close()
                case Begun(peer):
                    self._host.begin(peer)
                case Received(peer, seq, kind, payload):
                    self._received(name, peer, seq, kind, payload)
                case Changed():
                    self._changed("of", effect)
                case _:
                    raise AssertionError(effect)

    def _received(self, name: Hashable, peer: str, seq: int, kind: int, payload: bytes) -> None:
        if self._acceptor.session(peer) != name:
            return  # a newer session replaced it in the same turn
        try:
            self._host.receive(peer, kind, payload, partial(self._committed, name, seq))
        except ViolationError as error:
            fields = {"kind": error.violation, "peer": peer, "reason": error.reason}
            LOG.warning("the link of %(peer)s is closed, it broke the protocol (%(kind)s): %(reason)s", fields)
            if (link := self._acceptor.links.get(name)) is not None:  # what came behind it may have ended it
                self._act_all([(name, effect) for effect in link.close(Reason.DECODER_FAILURE, self._now())])

    def _committed(self, name: Hashable, seq: int) -> None:
        self._act_all(self._acceptor.committed(name, seq, self._now()))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _changed(self, way: str, change: Changed) -> None:
        """Log and count what an operator may have to know."""
        peer = change.peer or "a stranger"
        fields: dict[str, object] = {"kind": change.state.name.lower(), "peer": peer, "way": way}
        if change.state is LinkState.CONNECTED:
            self._reported.pop((way, peer), None)
            self._missed.pop((way, peer), None)
            LOG.info("the link %(way)s %(peer)s is connected", fields)
        elif change.state is LinkState.SUSPECTED:
            LOG.warning("the link %(way)s %(peer)s makes no progress", fields)
        elif change.reason is not None:
            self.ended[change.reason] += 1
            self._ended(way, peer, change, fields)

    def _ended(self, way: str, peer: str, change: Changed, fields: dict[str, object]) -> None:
        """Log the end of a link, or that it could not be opened.

        Members start one after another, and are restarted: one that cannot be reached is a warning when that lasts.
        """
        link = way, peer
        missed = self._now() - self._missed.setdefault(link, self._now())
        fields |= {"reason": change.reason, "detail": change.detail, "seconds": round(max(0.0, missed), 3)}
        detail = ": %(detail)s" if change.detail else ""
        if way == "to" and missed >= _MISSED_SECONDS and change.reason in _UNREACHED:
            self._missed[link] = float("inf")
            LOG.warning(f"the link %(way)s %(peer)s is not connected for %(seconds).0f s{detail}", fields)
        elif self._reported.get(link) != (change.reason, change.detail):  # else it is dialed again and again
            level = logging.INFO if change.reason in _QUIET | _UNREACHED else logging.WARNING
            LOG.log(level, f"the link %(way)s %(peer)s ended (%(reason)s){detail}", fields)
        self._reported[link] = change.reason, change.detail


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
