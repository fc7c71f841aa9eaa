"""Bytes that break the protocol: on the server from a client, and on a client from a server."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import ConnectionClosed

from cardinal.errors import CardinalError, RefusedError, RemoteProtocolError, TransportError, UnreachableError
from cardinal.transports import open_source
from cardinal_devkit import MemoryBroker
from cardinal_relay.transport.protocol import (
    CloseCode,
    Credit,
    Failed,
    FindTime,
    GetWatermarks,
    Read,
    Reason,
    Request,
    Watermarks,
    encode_message,
)
from scripted_server import TP, Scripted, ask, grant, join, records_frame
from serving import APP, DEADLINE, from_start, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from websockets.sync.client import ClientConnection
    from websockets.sync.server import ServerConnection

    from cardinal.transports import Source

pytestmark = pytest.mark.slow


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def _receive(socket: ClientConnection, count: int) -> None:
    for _ in range(count):
        socket.recv(DEADLINE)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        ['{"type":"credit","size":-1}'],
        ['{"type":"read","id":1,"positions":[["t",0]]}'],
        [encode_message(GetWatermarks(1, ())) + "x"],
    ],
)
def test_a_client_that_breaks_the_protocol_is_closed_with_the_reason_and_others_are_served(
    broker: MemoryBroker, frames: list[bytes | str]
) -> None:
    with serving(broker.url, APP) as served:
        other = from_start(open_source(served.url, APP))
        with join(served.url) as socket:
            for frame in frames:
                socket.send(frame)
            with pytest.raises(ConnectionClosed) as caught:
                _receive(socket, 3)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == CloseCode.PROTOCOL
        assert caught.value.rcvd.reason
        assert served.status.protocol_errors_total == 1
        assert len(read(other, len(broker.records()))) == len(broker.records())
        other.close()


def test_a_frame_that_is_too_large_ends_the_connection(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served, join(served.url) as socket:
        socket.send(bytes(2 << 20))
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(DEADLINE)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


def test_a_refused_request_keeps_the_connection(broker: MemoryBroker) -> None:
    other = (APP.default_topic, 2**31 - 1)
    with serving(broker.url, APP) as served, join(served.url) as socket:
        assert ask(socket, GetWatermarks(1, ("elsewhere",))) == Failed(1, Reason.TOPIC, "elsewhere")
        grant(socket, 2**32 - 1)
        answer = ask(socket, Read(3, ((*TP, 99),)))
        assert isinstance(answer, Failed)
        assert (answer.read, answer.reason, answer.partitions[0][:2]) == (3, Reason.EXPIRED, TP)
        assert ask(socket, Read(4, ((*other, 0),))) == Failed(0, Reason.TOPIC, APP.default_topic, read=4)
        assert ask(socket, Read(5, (("elsewhere", 0, 0),))) == Failed(0, Reason.TOPIC, "elsewhere", read=5)
        socket.send(encode_message(Read(6, ((*TP, 0),))))
        assert isinstance(socket.recv(DEADLINE), bytes)
        assert isinstance(ask(socket, GetWatermarks(7, (APP.default_topic,))), Watermarks)


def test_any_bytes_from_a_client_leave_other_clients_served(broker: MemoryBroker) -> None:
    rng = random.Random(5)
    valid = [
        encode_message(GetWatermarks(1, (APP.default_topic,))),
        encode_message(Read(2, ((*TP, 0),))),
        encode_message(Credit(9)),
        encode_message(GetWatermarks(3, tuple(APP.all_topics))),
        encode_message(FindTime(4, (APP.default_topic,), 5)),
    ]
    with serving(broker.url, APP) as served:
        for _ in range(60):
            with join(served.url) as socket:
                try:
                    for _ in range(6):
                        frame = list(rng.choice(valid))
                        if rng.random() < 0.4:
                            frame[rng.randrange(len(frame))] = chr(rng.randrange(256))
                        socket.send("".join(frame))
                except ConnectionClosed:
                    pass
        source = from_start(open_source(served.url, APP))
        assert len(read(source, len(broker.records()))) == len(broker.records())
        source.close()
        until(lambda: served.status.clients == 0)


class Breaking(Scripted):
    """By the rules until it is requested to read; then it does this."""

    def __init__(self, records: Callable[[ServerConnection], None]) -> None:
        super().__init__()
        self._records = records

    def on(self, socket: ServerConnection, request: Request) -> None:
        if isinstance(request, Read):
            self._records(socket)
        else:
            self.answer(socket, request)


def _ended(source: Source) -> bool:
    try:
        source.watermarks()
    except RemoteProtocolError:
        return True
    except UnreachableError:
        return False
    return False


def _flood(socket: ServerConnection) -> None:
    for first in range(0, 10_000_000, 1_000):
        socket.send(records_frame(first, 1_000, size=1_000))


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (lambda socket: socket.send("text"), "JSON"),
        (lambda socket: socket.send(records_frame(0, 5)[:-1]), "malformed"),
        (lambda socket: socket.send(records_frame(0, 5)[:-2] + b"?" + b"\0"), "checksum"),
        (lambda socket: socket.send(records_frame(7, 5)), "left out"),
        (_flood, "beyond"),
    ],
)
def test_a_server_that_breaks_the_protocol_ends_the_source_with_an_error_of_ours(
    records: Callable[[ServerConnection], None], says: str
) -> None:
    with Breaking(records).running() as url:
        source = open_source(f"{url}?window.bytes=100000", APP)
        source.assign({TP: 0})
        if records is _flood:
            until(lambda: _ended(source))  # nobody polls meanwhile
        with pytest.raises(RemoteProtocolError, match=says):
            read(source, 1_000_000)
        with pytest.raises(CardinalError):
            source.watermarks()
        source.close()


def test_a_frame_larger_than_the_client_takes_is_named() -> None:
    with Breaking(lambda socket: socket.send(bytes(200_000))).running() as url:
        source = open_source(f"{url}?max.frame.bytes=100000", APP)
        source.assign({TP: 0})
        with pytest.raises(TransportError, match=r"max\.frame\.bytes"):
            source.poll(1, DEADLINE)
        source.close()


def test_another_kind_of_server_is_named() -> None:
    with Breaking(_flood).running(subprotocols=None) as url, pytest.raises(CardinalError) as caught:
        open_source(url, APP)
    assert isinstance(caught.value, RemoteProtocolError | RefusedError)
