"""What one client is sent while it catches up, step by step: the moments at which a turn may end."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from cardinal.server.serving import sending
from cardinal.server.serving.counts import Counts
from cardinal.server.serving.errands import Errands
from cardinal.server.serving.sending import Sender
from cardinal.server.serving.streams import Streams
from cardinal.server.serving.taking import Taking
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.transports.websocket.chunks import decode_chunks
from cardinal.transports.websocket.frames import Read, Records
from cardinal.transports.websocket.wire import decode_answer

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = ChainGenerator().application
WHERE = (APP.default_topic, 0)
DEADLINE = 20.0


class Socket:
    """A client that takes whatever is sent, as long as each chunk begins where the one before ended."""

    def __init__(self) -> None:
        self.at = 0

    async def send(self, data: bytes) -> None:
        frame = decode_answer(data)
        assert isinstance(frame, Records)
        for chunk in decode_chunks(frame.chunks):
            assert chunk.begin == self.at
            self.at = chunk.next


class Crowded(Errands):
    """Somebody always waits. When that is looked at, the client gives leave for one frame more, a moment later."""

    taking: Taking

    @property
    def waiting(self) -> int:
        asyncio.get_running_loop().call_soon(self._give)
        return 1

    @waiting.setter
    def waiting(self, value: int) -> None:
        pass

    def _give(self) -> None:
        if self.taking.credit <= 0:
            self.taking.give(1 - self.taking.credit)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def _append(broker: MemoryBroker, count: int, size: int) -> int:
    """Where the partition ends then."""
    with broker._changed:
        for _ in range(count):
            broker._append(*WHERE, b"k", bytes(size), ())
    return broker.marks([WHERE])[WHERE][1]


async def _catch_up(broker: MemoryBroker, socket: Socket, errands: Errands, taking: Taking) -> None:
    """Send all that there is to a client that begins at the start and takes a frame at a time."""
    streams = Streams(broker.url, APP, ring_bytes=1, closed_error=OSError)
    await streams.start()
    taking.open(streams.main, frozenset({APP.default_topic}))
    taking.read(Read(1, {WHERE: 0}), 0)
    taking.give(1)
    sender = Sender(socket, taking, streams, errands, Counts(), slow_seconds=DEADLINE)
    task = asyncio.create_task(sender.run())
    try:
        async with asyncio.timeout(DEADLINE):
            goal = broker.marks([WHERE])[WHERE][1]
            while taking.positions[WHERE] < goal and not task.done():
                if taking.credit <= 0 and not isinstance(errands, Crowded):
                    taking.give(1 - taking.credit)
                await asyncio.sleep(0)
    finally:
        task.cancel()
        (end,) = await asyncio.gather(task, return_exceptions=True)
        await streams.stop()
        await errands.stop()
    assert isinstance(end, asyncio.CancelledError), end


def test_leave_that_comes_when_the_turn_was_just_given_up_leaves_no_record_out(broker: MemoryBroker) -> None:
    """Out of leave in the middle of what was polled, with others waiting: the rest is dropped, so the turn is over."""
    end = _append(broker, 1_200, 2_000)
    socket = Socket()

    async def run() -> None:
        errands = Crowded(1)
        errands.taking = Taking(lambda: 0)
        await _catch_up(broker, socket, errands, errands.taking)

    asyncio.run(run())
    assert socket.at == end


class Stuck(Socket):
    """A client behind a link that takes the first frame only when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()
        self.opened = asyncio.Event()

    async def send(self, data: bytes) -> None:
        await super().send(data)
        self.began.set()
        await self.opened.wait()


def test_a_client_whose_link_takes_long_for_one_frame_gives_its_place_to_who_waits_and_loses_nothing(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_TURN_SECONDS", 0.1)
    end = _append(broker, 300, 5_000)
    socket = Stuck()

    async def run() -> None:
        errands = Errands(1)
        slow = asyncio.create_task(_catch_up(broker, socket, errands, Taking(lambda: 0)))
        async with asyncio.timeout(DEADLINE):
            await socket.began.wait()
            async with errands.turn(lambda: broker.source([APP.default_topic])):
                assert not socket.opened.is_set()
            socket.opened.set()
            await slow

    asyncio.run(run())
    assert socket.at == end
