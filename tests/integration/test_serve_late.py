"""Answers that come late, and connections that break just after them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from cardinal.errors import UnreachableError
from cardinal.transports import open_source
from cardinal.transports.websocket.frames import Failed, Marks, Read, Reading, Reason
from scripted_server import APP, WHERE, Scripted
from serving import DEADLINE, read, until

if TYPE_CHECKING:
    from websockets.sync.server import ServerConnection

    from cardinal.transports.websocket.frames import Request


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
