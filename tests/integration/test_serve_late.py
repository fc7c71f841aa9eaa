"""Answers that come late, and connections that break just after them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import TopicError, UnreachableError
from cardinal.transports import open_source
from cardinal.transports.websocket.protocol import Failed, FindTime, Read, Reading, Reason
from scripted_server import APP, TP, Scripted
from serving import DEADLINE, read, until

if TYPE_CHECKING:
    from websockets.sync.server import ServerConnection

    from cardinal.transports.websocket.protocol import Request


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
        source = open_source(url, APP)
        source.assign({TP: 90})
        source.assign({TP: 10})
        until(lambda: len(server.reads) == 3)
        assert server.reads[-1].positions == ((*TP, 10),)
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
        source.assign({TP: 0})
        found = source.poll(3, DEADLINE)
        with pytest.raises(UnreachableError, match="did not answer a request for positions"):
            source.assign({TP: 60})
        assert source.positions() == {TP: 3}
        server.gave_up.set()
        until(lambda: len(server.reads) == 3)
        assert server.reads[-1].positions == ((*TP, 5),)  # what was received before is not sent again
        found += read(source, 7)
        assert [record.offset for record in found] == list(range(10))
        assert server.connections == 2
        source.close()


def test_a_reading_that_fails_after_a_reconnection_is_raised_and_the_connection_stays() -> None:
    class Deleted(Scripted):
        def on(self, socket: ServerConnection, request: Request) -> None:
            match request:
                case Read() if len(self.reads) == 1:
                    self.answer(socket, request)
                    socket.close()
                case Read(number, _) if len(self.reads) == 2:
                    self.say(socket, Failed(number, Reason.TOPIC, TP[0]))
                case _:
                    self.answer(socket, request)

    server = Deleted()
    with server.running() as url:
        source = open_source(url, APP)
        source.assign({TP: 0})
        found = source.poll(5, DEADLINE)
        with pytest.raises(TopicError, match=TP[0]):
            source.poll(1, DEADLINE)
        source.pause({TP})
        source.pause(())
        source.assign({TP: len(found)})
        assert source.poll(1, DEADLINE)[0].offset == len(found)
        assert server.connections == 2
        source.close()


def test_a_question_that_was_given_up_and_fails_late_leaves_the_connection_alone() -> None:
    class Late(Scripted):
        gave_up = threading.Event()

        def on(self, socket: ServerConnection, request: Request) -> None:
            if isinstance(request, FindTime):
                assert self.gave_up.wait(DEADLINE)
                self.say(socket, Failed(request.id, Reason.UNAVAILABLE))
            else:
                self.answer(socket, request)

    server = Late()
    with server.running() as url:
        source = open_source(f"{url}?cardinal.connect.timeout.ms=300", APP)
        source.assign({TP: 0})
        with pytest.raises(UnreachableError, match="did not answer a request for offsets by time"):
            source.offsets_for_time(0)
        server.gave_up.set()
        with pytest.raises(UnreachableError, match="what it reads from does not"):
            source.offsets_for_time(0)
        assert len(read(source, 5)) == 5
        assert server.connections == 1
        source.close()
