"""Link: one gRPC stream to a node, as messages in order.

Rules:

1. What was pushed is sent first; only then one more message is drawn from the session, so that a block that is skipped
   is not sent to its end.
2. A stream that is ended gets what was pushed before, for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final, Protocol

from cardinal_ingest.protocols.publish import decode_response
from cardinal_ingest.publisher.nodes import CONNECT_SECONDS, failure_of
from cardinal_ingest.rpc.status import RpcError

if TYPE_CHECKING:
    from cardinal.errors import CardinalError
    from cardinal_ingest.protocols.publish import Response
    from cardinal_ingest.publisher.nodes import IngestNodes
    from cardinal_ingest.rpc.stream import Stream

_END_SECONDS: Final = 1.0


class Host(Protocol):
    """The driver of a link: decides, on the event loop, what it sends."""

    def opened(self, link: Link) -> None:
        """The stream is open."""

    def draw(self, link: Link) -> None:
        """One more message can be sent."""

    def received(self, link: Link, response: Response | None) -> None:
        """A response came; None: one of an unknown kind."""

    def closed(self, link: Link, failure: CardinalError | None) -> None:
        """The stream has ended; the error, where it was not by agreement."""


class Link:
    """One stream.

    Arguments:
        nodes, address: opened to this node.
        stream: its number in the session.
        driver: is notified, on the event loop.

    """

    def __init__(self, nodes: IngestNodes, address: str, stream: int, driver: Host) -> None:
        self.address = address
        self.stream = stream
        self._nodes = nodes
        self._driver = driver
        self._pushed: deque[bytes] = deque()
        self._ending = False
        self._changed = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    def push(self, message: bytes) -> None:
        """Send a message."""
        self._pushed.append(message)
        self._changed.set()

    def wake(self) -> None:
        """Something changed: there may be more to send."""
        self._changed.set()

    def end(self) -> None:
        """Close the stream after what was pushed."""
        if not self._ending:
            self._ending = True
            self._changed.set()
            asyncio.get_running_loop().call_later(_END_SECONDS, self.task.cancel)

    async def _run(self) -> None:
        failure: CardinalError | None = None
        try:
            await self._converse()
        except asyncio.CancelledError:
            if not self._ending:
                raise
        except Exception as error:
            failure = failure_of(error, self.address)
            if failure is None:
                raise
        finally:
            self._driver.closed(self, failure)

    async def _converse(self) -> None:
        async with AsyncExitStack() as opened:
            async with asyncio.timeout(CONNECT_SECONDS):
                call = await opened.enter_async_context(self._nodes.stream(self.address))
                await call.answer.wait()
            if call.failure is not None:
                raise call.failure
            self._driver.opened(self)
            reading = asyncio.ensure_future(self._read(call))
            try:
                await self._write(call, reading)
            finally:
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading  # raises the stream's error, which says more than that of the write

    async def _write(self, call: Stream, reading: asyncio.Future[None]) -> None:
        while not reading.done():
            self._changed.clear()
            if not self._pushed and not self._ending:
                self._driver.draw(self)
            if self._pushed:
                try:
                    await call.send(self._pushed.popleft())
                except RpcError:  # the stream has ended: reading raises why
                    await asyncio.wait((reading,), timeout=_END_SECONDS)
                    return
            elif self._ending:
                await call.end()
                await asyncio.wait((reading,), timeout=_END_SECONDS / 2)
                return
            else:
                await self._changed.wait()

    async def _read(self, call: Stream) -> None:
        try:
            while (data := await call.receive()) is not None:
                self._driver.received(self, decode_response(data))
        finally:
            self._changed.set()
