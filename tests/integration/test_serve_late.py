"""Answers that come late, and connections that break just after them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve
from websockets.typing import Subprotocol

from cardinal.errors import UnreachableError
from cardinal.protocols.streams.types import Record
from cardinal.testing import ChainGenerator
from cardinal.transports import open_source
from cardinal.transports.websocket.chunks import encode_chunks
from cardinal.transports.websocket.frames import SUBPROTOCOL, Failed, MarkList, Marks, Open, Read, Reading, Reason
from cardinal.transports.websocket.wire import decode_request, encode_answer, encode_records
from serving import DEADLINE, read, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from websockets.sync.server import ServerConnection

    from cardinal.transports.websocket.frames import Answer, Request

APP = ChainGenerator().application
WHERE = (APP.default_topic, 0)
LENGTH = 100


class Scripted:
    """A server that does what its test says; what is left unsaid it does by the rules.

    It sends the records of one partition from where the last READ says, at most five at a time.
    """

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.connections = 0
        self.url = ""
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
                records = [Record(*WHERE, offset, b"k", b"v") for offset in range(self._at, min(self._at + 5, LENGTH))]
                chunks = encode_chunks(records, {WHERE: self._at}, {})
                socket.send(encode_records(number, [chunk.data for chunk in chunks]))
                self._at += 5

    @staticmethod
    def say(socket: ServerConnection, answer: Answer) -> None:
        socket.send(encode_answer(answer))

    def _serve(self, socket: ServerConnection) -> None:
        self.connections += 1
        try:
            for message in socket:
                request = decode_request(message)
                if isinstance(request, Read):
                    self.reads.append(request)
                self.on(socket, request)
        except ConnectionClosed:
            pass

    @contextmanager
    def running(self) -> Iterator[str]:
        with serve(self._serve, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL)]) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
            finally:
                server.shutdown()
                thread.join(DEADLINE)


def test_a_connection_that_breaks_just_after_positions_were_taken_does_not_bring_the_old_ones_back() -> None:
    class Breaks(Scripted):
        def on(self, socket: ServerConnection, request: Request) -> None:
            if isinstance(request, Read) and len(self.reads) == 2:
                self.say(socket, Reading(request.id))
                socket.close()
                return
            self.answer(socket, request)

    server = Breaks()
    with server.running() as url:
        source: Any = open_source(url, APP)
        source.assign({WHERE: 90})
        ask = source._ask

        def slowly(*question: object) -> object:
            """As if this thread did not run until the connection was made anew."""
            answer = ask(*question)
            until(lambda: len(server.reads) == 3)
            return answer

        source._ask = slowly
        source.assign({WHERE: 10})
        assert server.reads[-1].positions == {WHERE: 10}
        assert [record.offset for record in read(source, 5)] == [10, 11, 12, 13, 14]
        source.close()


def test_positions_that_were_given_up_and_are_taken_late_change_nothing() -> None:
    class Late(Scripted):
        gave_up = threading.Event()

        def on(self, socket: ServerConnection, request: Request) -> None:
            if isinstance(request, Read) and len(self.reads) == 2:
                assert self.gave_up.wait(DEADLINE)
            self.answer(socket, request)

    server = Late()
    with server.running() as url:
        source = open_source(f"{url}?cardinal.connect.timeout.ms=300", APP)
        source.assign({WHERE: 0})
        found = source.poll(3, DEADLINE)
        with pytest.raises(UnreachableError, match="did not answer where to read from"):
            source.assign({WHERE: 60})
        assert source.positions() == {WHERE: 3}
        server.gave_up.set()
        until(lambda: len(server.reads) == 3)
        assert server.reads[-1].positions == {WHERE: 3}
        found += read(source, 5)
        assert [record.offset for record in found] == list(range(8))
        assert server.connections == 1
        source.close()


def test_a_question_that_was_given_up_and_fails_late_leaves_the_connection_alone() -> None:
    class Late(Scripted):
        gave_up = threading.Event()

        def on(self, socket: ServerConnection, request: Request) -> None:
            if isinstance(request, Marks):
                assert self.gave_up.wait(DEADLINE)
                self.say(socket, Failed(request.id, Reason.AWAY))
            else:
                self.answer(socket, request)

    server = Late()
    with server.running() as url:
        source = open_source(f"{url}?cardinal.connect.timeout.ms=300", APP)
        source.assign({WHERE: 0})
        with pytest.raises(UnreachableError, match="did not answer for watermarks"):
            source.watermarks()
        server.gave_up.set()
        with pytest.raises(UnreachableError, match="what it reads from is not"):
            source.watermarks()
        assert len(read(source, 5)) == 5
        assert server.connections == 1
        source.close()
