"""Stream: one call of a connection, as messages each way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from cardinal_ingest.rpc.messages import PREFIX, MessageReader
from cardinal_ingest.rpc.status import Code, RpcError, error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PAUSE_SECONDS: Final = 0.02
"""Pause before a stream that is not read is looked at."""


def _never() -> bool:
    return False


class Carrier(Protocol):
    """The connection of a stream."""

    def took(self, size: int) -> None:
        """Bytes that were held are held no more."""

    def replenish(self) -> None:
        """A message is awaited: take more of the peer, where there is room."""

    async def send_data(self, stream: Stream, data: bytes, *, end: bool = False) -> None:
        """Send a stream's bytes, as the peer has windows for them."""

    def respond(self, stream: Stream, headers: list[tuple[str, str]], *, end: bool = False) -> None:
        """Send headers, or trailers."""


class Stream:
    """One call.

    Attributes:
        number: in its connection.
        headers: of the peer that opened it; of the answer on the client's side.
        task: that serves it, on the server's side.

    """

    def __init__(self, connection: Carrier, number: int, headers: Mapping[str, str], limit: int) -> None:
        self.connection = connection
        self.number = number
        self.headers = headers
        self.reader = MessageReader(limit)
        self.task: asyncio.Task[None] | None = None
        self.wants = False
        """True while a message is awaited."""
        self.answer = asyncio.Event()
        """Set when the server's headers have come, or the call is over."""
        self.room = asyncio.Event()
        """Set when the peer takes more."""
        self._must_wait = _never
        self._changed = asyncio.Event()
        self._ended = False
        self._failure: RpcError | None = None
        self._refusal: RpcError | None = None

    # --- the user ---------------------------------------------------------------------------------------------------

    async def receive(self, must_wait: Callable[[], bool] = _never) -> bytes | None:
        """The next message; None after the last. It is not read while ``must_wait``.

        Raises:
            RpcError: the call has failed, or the message cannot be taken.

        """
        self._must_wait = must_wait
        while True:
            while must_wait():  # noqa: ASYNC110 - what it waits for notifies nobody
                await asyncio.sleep(_PAUSE_SECONDS)
            self._changed.clear()
            message = self.reader.take()
            if message is not None:
                self.connection.took(PREFIX.size + len(message))
                return message
            if self._refusal is not None:
                raise self._refusal
            if self._failure is not None:
                raise self._failure
            if self._ended:
                if self.reader.held:
                    raise RpcError(Code.INTERNAL, "the stream ended inside a message")
                return None
            self.wants = True
            try:
                self.connection.replenish()
                await self._changed.wait()
            finally:
                self.wants = False

    async def send(self, message: bytes) -> None:
        """Send a message; it waits while the peer takes none.

        Raises:
            RpcError: the call has ended.

        """
        await self.connection.send_data(self, PREFIX.pack(0, len(message)))
        await self.connection.send_data(self, message)

    async def end(self) -> None:
        """Send no more."""
        await self.connection.send_data(self, b"", end=True)

    # --- the connection ---------------------------------------------------------------------------------------------

    @property
    def eager(self) -> bool:
        """True while a message is awaited, and may be read."""
        return self.wants and not self._must_wait()

    @property
    def failure(self) -> RpcError | None:
        """The reason for which it is over; None while it is not."""
        return self._failure

    @property
    def is_over(self) -> bool:
        """True when nothing can be sent any more: a server that has ended a call takes no more of it."""
        return self._failure is not None or (self._ended and self.task is None)

    @property
    def has_ended(self) -> bool:
        """True when the peer sends no more."""
        return self._ended or self._failure is not None

    def feed(self, data: bytes) -> None:
        """Bytes came."""
        self.reader.feed(data)
        self._changed.set()

    def answered(self, headers: Mapping[str, str]) -> None:
        """Headers or trailers came from the server."""
        self.headers = {**self.headers, **headers}
        self.answer.set()

    def ended(self) -> None:
        """The peer sends no more; on the client's side its trailers have come."""
        self._ended = True
        if self.task is None and self._failure is None:
            self._failure = self._status()
        self._wake()

    def fail(self, failure: RpcError) -> None:
        """The call is over, where it was not; its task is cancelled once, so that it can clean up."""
        if not self.is_over:
            self._failure = failure
            if self.task is not None and self.task is not asyncio.current_task():
                self.task.cancel()
        self._wake()

    def refuse(self, reason: RpcError) -> None:
        """Refuse the message that is awaited."""
        self._refusal = reason
        self._changed.set()

    def _status(self) -> RpcError | None:
        status: Any = self.headers.get(":status")
        if "grpc-status" not in self.headers and status != "200":
            return RpcError(Code.UNIMPLEMENTED, f"the answer has the HTTP status {status}")
        return error_of(self.headers)

    def _wake(self) -> None:
        self.answer.set()
        self.room.set()
        self._changed.set()
