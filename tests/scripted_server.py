"""Websocket server of a stream that follows a test's script: it does what the real one does never, or not then."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.server import serve
from websockets.typing import Subprotocol

from cardinal.protocols.streams.types import Record
from cardinal_relay.transport import protocol
from serving import APP, DEADLINE

if TYPE_CHECKING:
    import socket as sockets
    from collections.abc import Iterator, Sequence
    from contextlib import ExitStack

    from websockets.sync.client import ClientConnection
    from websockets.sync.server import ServerConnection

TP = (APP.default_topic, 0)
LENGTH = 100
SPOKEN = (Subprotocol(protocol.SUBPROTOCOL),)


class Scripted:
    """See the module. A test overrides :meth:`on`; everything else follows the rules.

    It sends the records of one partition from where the last READ says, at most five at a time.
    """

    def __init__(self) -> None:
        self.reads: list[protocol.Read] = []
        self.connections = 0
        self.failure: BaseException | None = None
        self._at = 0

    def on(self, socket: ServerConnection, request: protocol.Request) -> None:
        self.answer(socket, request)

    def answer(self, socket: ServerConnection, request: protocol.Request) -> None:
        """Follow the rules."""
        match request:
            case protocol.GetWatermarks(number, _):
                self.say(socket, protocol.Watermarks(number, ((*TP, (0, LENGTH)),)))
            case protocol.Read(number, positions):
                self._at = protocol.by_partition(positions)[TP]
                socket.send(records_frame(self._at, min(5, LENGTH - self._at), number=number))
                self._at += 5

    @staticmethod
    def say(socket: ServerConnection, answer: protocol.Answer) -> None:
        socket.send(protocol.encode_message(answer))

    @contextmanager
    def running(self, subprotocols: Sequence[Subprotocol] | None = SPOKEN) -> Iterator[str]:
        """Run it; its URL. Raises at the end what a connection's thread has raised."""
        with serve(self._serve, "127.0.0.1", 0, subprotocols=subprotocols) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
            finally:
                server.shutdown()
                thread.join(DEADLINE)
        if self.failure is not None:
            raise self.failure

    def _serve(self, socket: ServerConnection) -> None:
        self.connections += 1
        try:
            for message in socket:
                request = protocol.decode_request(message)
                if isinstance(request, protocol.Read):
                    self.reads.append(request)
                self.on(socket, request)
        except ConnectionClosed:
            pass
        except BaseException as error:
            self.failure = error
            raise


def records_frame(first: int, count: int, *, size: int = 10, number: int = 2) -> bytes:
    """A records message of so many records of so many bytes, by the READ with this id: a source's first assignment."""
    records = [Record(*TP, first + index, b"k", bytes(size)) for index in range(count)]
    return protocol.encode_frame(number, protocol.encode_chunks(records, {TP: first}, {}, compress=False))


def ask(socket: ClientConnection, request: protocol.Request) -> protocol.Answer:
    """Send a request to a real server; its answer, behind records that were in flight."""
    socket.send(protocol.encode_message(request))
    while isinstance(message := socket.recv(DEADLINE), bytes):
        pass
    return protocol.decode_answer(message)


def join(url: str, **options: Any) -> ClientConnection:  # noqa: ANN401 - of the library
    """A connection of a client to a real server, without a client."""
    return connect(url, **{"subprotocols": SPOKEN, "compression": None, "proxy": None, **options})


def begin(socket: ClientConnection, topic: str, at: int) -> None:
    """Read a topic of a real server: from its start (0) or its end (1)."""
    opened = ask(socket, protocol.GetWatermarks(1, (topic,)))
    assert isinstance(opened, protocol.Watermarks)
    positions = tuple((name, number, both[at]) for name, number, both in opened.partitions)
    socket.send(protocol.encode_message(protocol.Read(2, positions)))


def grant(socket: ClientConnection, size: int) -> None:
    """Give a real server credit."""
    socket.send(protocol.encode_message(protocol.Credit(size)))


def greedy(stack: ExitStack, url: str, topic: str, at: int, plain: sockets.socket | None = None) -> None:
    """A client that grants all credit and accepts nothing of what is sent; it begins at the start or end."""
    connection = stack.enter_context(join(url, sock=plain, max_queue=1, close_timeout=0.1))
    begin(connection, topic, at)
    grant(connection, 2**32 - 1)
