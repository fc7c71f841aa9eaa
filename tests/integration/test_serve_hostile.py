"""Bytes that break the protocol: on the server from a client, and on a client from a server."""

from __future__ import annotations

import random
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.server import serve
from websockets.typing import Subprotocol

from cardinal.errors import CardinalError, RefusedError, RemoteProtocolError, TransportError
from cardinal.protocols.streams.types import Record
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.transports import open_source
from cardinal.transports.websocket.chunks import encode_chunks
from cardinal.transports.websocket.frames import (
    SUBPROTOCOL,
    CloseCode,
    Credit,
    Failed,
    MarkList,
    Marks,
    Open,
    Read,
    Reading,
    Reason,
)
from cardinal.transports.websocket.wire import (
    decode_answer,
    decode_request,
    encode_answer,
    encode_records,
    encode_request,
)
from serving import DEADLINE, from_start, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from websockets.sync.client import ClientConnection
    from websockets.sync.server import ServerConnection

    from cardinal.transports.websocket.frames import Request, ServerFrame

APP = ChainGenerator().application
WHERE = (APP.default_topic, 0)
SPOKEN = (Subprotocol(SUBPROTOCOL),)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def _receive(socket: ClientConnection, count: int) -> None:
    for _ in range(count):
        socket.recv(DEADLINE)


# --- clients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frames",
    [
        ["text"],
        [b""],
        [b"\x99\0\0\0\1"],
        [b"\x05\0\0\0\1\xff\xff\xff\xff"],
        [encode_request(Marks(1)) + b"x"],
        [encode_request(Marks(1))],
        [encode_request(Read(1, {WHERE: 0}))],
        [encode_request(Open(1, (APP.default_topic,))), encode_request(Read(2, {WHERE: -1}))],
        [encode_request(Open(1, (APP.default_topic,))), encode_request(Open(2, tuple(APP.all_topics)))],
    ],
)
def test_a_client_that_breaks_the_protocol_is_closed_with_the_reason_and_harms_nobody(
    broker: MemoryBroker, frames: list[bytes | str]
) -> None:
    with serving(broker.url, APP) as served:
        other = from_start(open_source(served.url, APP))
        with connect(served.url, subprotocols=[SUBPROTOCOL], proxy=None) as socket:
            for frame in frames:
                socket.send(frame)
            with pytest.raises(ConnectionClosed) as caught:
                _receive(socket, 3)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == CloseCode.PROTOCOL
        assert caught.value.rcvd.reason
        assert served.progress.refused == 1
        assert len(read(other, len(broker.records()))) == len(broker.records())
        other.close()


def test_a_frame_that_is_too_large_ends_the_connection(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served, connect(served.url, subprotocols=[SUBPROTOCOL], proxy=None) as socket:
        socket.send(bytes(2 << 20))
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(DEADLINE)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


def test_what_cannot_be_done_is_answered_and_the_connection_goes_on(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served, connect(served.url, subprotocols=[SUBPROTOCOL], proxy=None) as socket:

        def ask(frame: Request) -> ServerFrame:
            socket.send(encode_request(frame))
            return decode_answer(socket.recv(DEADLINE))

        assert ask(Open(1, ("elsewhere",))) == Failed(1, Reason.TOPIC, "elsewhere")
        assert isinstance(ask(Open(2, (APP.default_topic,))), MarkList)
        assert ask(Read(3, {WHERE: 99})) == Failed(3, Reason.EXPIRED, places={WHERE: (99, 1)})
        assert ask(Read(4, {(APP.default_topic, 2**32 - 1): 0})) == Failed(4, Reason.TOPIC, APP.default_topic)
        assert ask(Read(5, {("elsewhere", 0): 0})) == Failed(5, Reason.TOPIC, "elsewhere")
        socket.send(encode_request(Credit(2**32 - 1)))
        assert ask(Read(6, {WHERE: 0})) == Reading(6)
        assert decode_answer(socket.recv(DEADLINE)).id == 6
        socket.send(encode_request(Read(6, {WHERE: 0})))  # an id again: passed over
        assert isinstance(ask(Marks(7)), MarkList)


def test_any_bytes_from_clients_harm_nobody(broker: MemoryBroker) -> None:
    rng = random.Random(5)
    valid = [
        encode_request(Open(1, (APP.default_topic,))),
        encode_request(Read(2, {WHERE: 0})),
        encode_request(Credit(9)),
        encode_request(Marks(3)),
    ]
    with serving(broker.url, APP) as served:
        for _ in range(60):
            with connect(served.url, subprotocols=[SUBPROTOCOL], proxy=None) as socket:
                try:
                    for _ in range(6):
                        frame = bytearray(rng.choice(valid))
                        if rng.random() < 0.4:
                            frame[rng.randrange(len(frame))] = rng.randrange(256)
                        socket.send(bytes(frame))
                except ConnectionClosed:
                    pass
        source = from_start(open_source(served.url, APP))
        assert len(read(source, len(broker.records()))) == len(broker.records())
        source.close()
        until(lambda: served.progress.clients == 0)


def test_a_record_with_a_header_of_any_length_is_served_and_so_is_what_follows(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served:
        source = from_start(open_source(served.url, APP))
        with broker._changed:
            broker._append(*WHERE, b"k", b"v", (("n" * 70_000, b""), ("m", bytes(70_000))))
            broker._append(*WHERE, b"k", b"v", ())
            broker._changed.notify_all()
        assert sorted(read(source, len(broker.records()))) == broker.records()
        assert served.progress.reading
        source.close()


# --- servers -----------------------------------------------------------------------------------------------------


@contextmanager
def pretending(
    records: Callable[[ServerConnection], None], *, subprotocols: Sequence[Subprotocol] | None = SPOKEN
) -> Iterator[str]:
    """A server that answers by the rules until it is asked to read; then it does this."""

    def handle(socket: ServerConnection) -> None:
        for message in socket:
            match decode_request(message):
                case Open(number, _) | Marks(number):
                    socket.send(encode_answer(MarkList(number, {WHERE: (0, 100)})))
                case Read(number, _):
                    socket.send(encode_answer(Reading(number)))
                    records(socket)

    with serve(handle, "127.0.0.1", 0, subprotocols=subprotocols) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join(DEADLINE)


def _records(first: int, count: int, size: int = 10, number: int = 1_000) -> bytes:
    records = [Record(*WHERE, first + index, b"k", bytes(size)) for index in range(count)]
    return encode_records(number, [chunk.data for chunk in encode_chunks(records, {WHERE: first}, {})])


def _flood(socket: ServerConnection) -> None:
    try:
        for first in range(0, 10_000_000, 1_000):
            socket.send(_records(first, 1_000, 1_000))
    except ConnectionClosed:
        pass


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (lambda socket: socket.send("text"), "text"),
        (lambda socket: socket.send(b"\x07\0\0\0\0"), "begins with"),
        (lambda socket: socket.send(b"\x86\0\0\x03\xe8rubbish"), "too early"),
        (lambda socket: socket.send(_records(0, 5)[:-1]), "too early"),
        (lambda socket: socket.send(_records(7, 5)), "left out"),
        (_flood, "beyond"),
    ],
)
def test_a_server_that_breaks_the_protocol_ends_the_source_with_an_error_of_ours(
    records: Callable[[ServerConnection], None], says: str
) -> None:
    with pretending(records) as url:
        source = open_source(f"{url}?window.bytes=100000", APP)
        source.assign({WHERE: 0})
        if records is _flood:
            until(lambda: source._link.failure is not None)  # type: ignore[attr-defined] # nobody polls meanwhile
        with pytest.raises(RemoteProtocolError, match=says):
            read(source, 1_000_000)
        with pytest.raises(CardinalError):
            source.watermarks()
        source.close()


def test_a_frame_larger_than_the_client_takes_is_named() -> None:
    with pretending(lambda socket: socket.send(bytes(200_000))) as url:
        source = open_source(f"{url}?max.frame.bytes=100000", APP)
        source.assign({WHERE: 0})
        with pytest.raises(TransportError, match=r"max\.frame\.bytes"):
            source.poll(1, DEADLINE)
        source.close()


def test_a_request_larger_than_the_server_takes_is_named_as_ours(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served:
        source = open_source(served.url, APP)
        with pytest.raises(TransportError, match="a request of ours is larger than 1048576 bytes"):
            source.assign({(APP.default_topic, number): 0 for number in range(60_000)})
        source.close()


def test_what_is_no_server_of_ours_is_named() -> None:
    with pretending(_flood, subprotocols=None) as url, pytest.raises(CardinalError) as caught:
        open_source(url, APP)
    assert isinstance(caught.value, RemoteProtocolError | RefusedError)
