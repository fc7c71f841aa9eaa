"""A websocket server of a stream that does what its test says: what the real one never does, or not at that moment."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve
from websockets.typing import Subprotocol

from cardinal.protocols.streams.types import Record
from cardinal.testing import ChainGenerator
from cardinal.transports.websocket.chunks import encode_chunks
from cardinal.transports.websocket.frames import SUBPROTOCOL, MarkList, Marks, Open, Read, Reading
from cardinal.transports.websocket.wire import decode_request, encode_answer, encode_records
from serving import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from websockets.sync.server import ServerConnection

    from cardinal.transports.websocket.frames import Answer, Request

APP = ChainGenerator().application
WHERE = (APP.default_topic, 0)
LENGTH = 100
SPOKEN = (Subprotocol(SUBPROTOCOL),)


class Scripted:
    """See the module. A test overrides :meth:`on`; what it leaves unsaid is done by the rules.

    It sends the records of one partition from where the last READ says, at most five at a time.
    """

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.connections = 0
        self._at = 0

    def on(self, socket: ServerConnection, request: Request) -> None:
        self.answer(socket, request)

    def answer(self, socket: ServerConnection, request: Request) -> None:
        """By the rules."""
        match request:
            case Open(number, _) | Marks(number):
                self.say(socket, MarkList(number, {WHERE: (0, LENGTH)}))
            case Read(number, positions):
                self.say(socket, Reading(number))
                at = positions[WHERE]
                self._at = self._at if at < 0 else at
                socket.send(records_frame(self._at, min(5, LENGTH - self._at), number=number))
                self._at += 5

    @staticmethod
    def say(socket: ServerConnection, answer: Answer) -> None:
        socket.send(encode_answer(answer))

    @contextmanager
    def running(self, subprotocols: Sequence[Subprotocol] | None = SPOKEN) -> Iterator[str]:
        """Its URL."""
        with serve(self._serve, "127.0.0.1", 0, subprotocols=subprotocols) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
            finally:
                server.shutdown()
                thread.join(DEADLINE)

    def _serve(self, socket: ServerConnection) -> None:
        self.connections += 1
        with suppress(ConnectionClosed):
            for message in socket:
                request = decode_request(message)
                if isinstance(request, Read):
                    self.reads.append(request)
                self.on(socket, request)


def records_frame(first: int, count: int, *, size: int = 10, number: int = 1_000) -> bytes:
    """A RECORDS frame of so many records of so many bytes, by the READ of this number."""
    records = [Record(*WHERE, first + index, b"k", bytes(size)) for index in range(count)]
    return encode_records(number, [chunk.data for chunk in encode_chunks(records, {WHERE: first}, {})])
