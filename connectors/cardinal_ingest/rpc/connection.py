"""Connection: gRPC streams over one HTTP/2 connection; h2 is the protocol, this moves its bytes.

Rules:

1. A stream's window is opened as its bytes come; the connection's window is what is lent (see :mod:`.capacity`). It
   begins small, and doubles each time that it was used up and read.
2. A peer may overrun a window by a mebibyte: Helidon's client does, by up to 64 KiB, and a reset would lose its blocks.
   So h2 counts a mebibyte more than the peer is sent.
3. What costs a peer nothing is limited: pings, settings, resets, windows, streams and empty frames, by a rate; closed
   streams that are remembered, and header blocks, by their number and size.
4. A peer that reads nothing is read no more; one that is silent is pinged, then lost.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error, NoSuchStreamError, StreamClosedError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import SettingsFrame

from cardinal_ingest.rpc.capacity import LEAST_BYTES, WINDOW_BYTES, Capacity
from cardinal_ingest.rpc.frames import FrameScanner
from cardinal_ingest.rpc.status import Code, RpcError
from cardinal_ingest.rpc.stream import Stream

if TYPE_CHECKING:
    from h2.events import Event

OVERRUN_BYTES: Final = 1 << 20
_FIRST_BYTES: Final = 256 << 10
"""Window of a new connection: 200 that push and are not read cost 50 MiB, where there is so much."""
_STREAMS_MOST: Final = 16
_HEADERS_BYTES: Final = 16 << 10
_READ_BYTES: Final = 256 << 10
_END_SECONDS: Final = 1.0
"""Time in which a peer ends its side of a stream: Helidon's client reports a reset as an error."""
_BATCH_BYTES: Final = 256 << 10
"""Bytes that are made into frames at once."""
_PREFACE_BYTES: Final = 24
"""A client's first bytes, before its settings (RFC 9113, 3.4)."""
_CLOSED_STREAMS_MOST: Final = 256
"""Closed streams whose late frames are no error; h2 has 65,536."""
_EVENTS_BURST: Final = 1_000.0
_EVENTS_A_SECOND: Final = 50.0
_STREAM_EVENTS: Final = 10.0
"""A stream costs as much as ten pings: its headers are decoded, and it is served."""


_SENT_EVENTS: Final = 4.0
"""Frames that a peer may answer what it is sent with: windows, and pings that measure the line."""


class _Protocol(H2Connection):
    MAX_CLOSED_STREAMS = _CLOSED_STREAMS_MOST


class Settled(Settings):
    """Settings of our side."""

    def __init__(self, *, client: bool) -> None:
        values = {
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES + OVERRUN_BYTES,
            SettingCodes.MAX_CONCURRENT_STREAMS: _STREAMS_MOST,
            SettingCodes.MAX_HEADER_LIST_SIZE: _HEADERS_BYTES,
        }
        if client:
            values[SettingCodes.ENABLE_PUSH] = 0
        super().__init__(client=client, initial_values=values)


class Connection:
    """One connection.

    Arguments:
        reader, writer: of its bytes.
        capacity: of what it may hold.
        limit: bytes of the largest message that it takes.
        serve: serves a stream that the peer opens; None: this is the client's side.
        keepalive: seconds after which a silent peer is pinged; it has half of them to answer.

    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        capacity: Capacity,
        *,
        limit: int,
        serve: Callable[[Stream], Coroutine[Any, Any, None]] | None = None,
        keepalive: float = 20.0,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._capacity = capacity
        self._limit = limit
        self._serve = serve
        self._keepalive = keepalive
        self._h2 = _Protocol(H2Configuration(client_side=serve is None, header_encoding=False))
        self._scanner = FrameScanner(0 if serve is None else _PREFACE_BYTES)
        self._streams: dict[int, Stream] = {}
        self._windows: dict[int, int] = {}
        self._window = min(_FIRST_BYTES, capacity.window)
        self._lent = LEAST_BYTES
        self._held = 0
        self.received = 0
        self._events = _EVENTS_BURST
        self._events_at = time.monotonic()
        self.failure: RpcError | None = None
        capacity.add(self)
        self._open()

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the peer leaves, breaks the protocol, or is silent. It then closes every stream."""
        failure = RpcError(Code.UNAVAILABLE, "the connection was lost")
        try:
            while data := await self._read():
                if not self._scanner.feed(data):
                    self._calm("headers that do not end")
                for event in self._h2.receive_data(data):
                    self._handle(event)
                await self.flush()
        except H2Error as error:
            failure = RpcError(Code.UNAVAILABLE, f"the peer does not speak HTTP/2 as it should: {error}")
        except RpcError as error:
            failure = error
        except ssl.SSLError as error:
            failure = RpcError(Code.UNAUTHENTICATED, f"the peer refused the TLS connection ({error.reason})")
        except OSError as error:
            failure = RpcError(Code.UNAVAILABLE, error.strerror or "the connection was lost")
        finally:
            await self._close(failure)

    def _open(self) -> None:
        """Send the settings: rule 2. The window of the connection has no setting."""
        self._h2.local_settings = settings = Settled(client=self._serve is None)
        self._h2.initiate_connection()
        opening = self._h2.data_to_send()[: 0 if self._serve else _PREFACE_BYTES]
        told = SettingsFrame(0)
        told.settings = {int(code): value for code, value in settings.items()}
        told.settings[int(SettingCodes.INITIAL_WINDOW_SIZE)] = WINDOW_BYTES
        self._h2.increment_flow_control_window(OVERRUN_BYTES)
        self._h2.data_to_send()  # the peer is not sent that
        self._writer.write(opening + told.serialize())
        self.replenish()

    async def _read(self) -> bytes:
        """Some bytes; none at the end."""
        for wait in (self._keepalive, self._keepalive / 2):
            try:
                async with asyncio.timeout(wait):
                    return await self._reader.read(_READ_BYTES)
            except TimeoutError:
                self._h2.ping(bytes(8))
                await self.flush()
        raise RpcError(Code.UNAVAILABLE, "the peer is silent")

    async def _close(self, failure: RpcError) -> None:
        self.failure = failure
        self._capacity.remove(self, self._lent + self._held)
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        for stream in list(self._streams.values()):
            stream.fail(failure)
        self._writer.close()
        if tasks:
            await asyncio.wait(tasks)

    def terminate(self) -> None:
        """Tell the peer that it is over."""
        if self.failure is None:
            self._h2.close_connection(ErrorCodes.NO_ERROR)
            self._write()

    # --- bytes out --------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        data = self._h2.data_to_send()
        if data and not self._writer.is_closing():
            self._writer.write(data)

    async def flush(self) -> None:
        """Write what is to be sent; a peer that does not read for long is lost."""
        self._write()
        try:
            async with asyncio.timeout(1.5 * self._keepalive):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise RpcError(Code.UNAVAILABLE, "the peer reads nothing") from None

    async def send_data(self, stream: Stream, data: bytes, *, end: bool = False) -> None:
        """Send a stream's bytes, as the peer has windows for them."""
        view = memoryview(data)
        while view or end:
            self._check(stream)
            room = min(len(view), self._h2.local_flow_control_window(stream.number), _BATCH_BYTES)
            if view and room <= 0:
                stream.room.clear()
                await stream.room.wait()
                continue
            ends = end and room == len(view)
            self._events = min(_EVENTS_BURST, self._events + _SENT_EVENTS)
            self._frames(stream, view[:room], end=ends)
            view = view[room:]
            await self._drain(stream)
            if ends:
                return

    def _frames(self, stream: Stream, view: memoryview, *, end: bool) -> None:
        size = self._h2.max_outbound_frame_size
        for at in range(0, max(len(view), 1), size):
            self._h2.send_data(stream.number, view[at : at + size], end_stream=end and at + size >= len(view))
        self._write()

    async def _drain(self, stream: Stream) -> None:
        try:
            await self._writer.drain()
        except OSError:
            raise stream.failure or RpcError(Code.UNAVAILABLE, "the connection was lost") from None

    def _check(self, stream: Stream) -> None:
        if stream.is_over or self.failure is not None:
            raise stream.failure or self.failure or RpcError(Code.CANCELLED, "the call has ended")

    # --- streams ----------------------------------------------------------------------------------------------------

    def call(self, headers: list[tuple[str, str]]) -> Stream:
        """Open a stream."""
        number = self._h2.get_next_available_stream_id()
        stream = Stream(self, number, {}, self._limit)
        self._streams[number] = stream
        self._windows[number] = WINDOW_BYTES
        self._h2.send_headers(number, headers)
        self._write()
        return stream

    def respond(self, stream: Stream, headers: list[tuple[str, str]], *, end: bool = False) -> None:
        """Send headers, or trailers; after these a peer has a second to end, and what it sends is not wanted."""
        if stream.failure is None and self.failure is None:
            self._h2.send_headers(stream.number, headers, end_stream=end)
            self._write()
            if end and not stream.has_ended:
                asyncio.get_running_loop().call_later(_END_SECONDS, self._reset, stream.number)

    def _reset(self, number: int) -> None:
        if self.failure is None:
            with suppress(StreamClosedError, NoSuchStreamError):  # the peer has ended it
                self._h2.reset_stream(number, ErrorCodes.NO_ERROR)
                self._write()

    def cancel(self, stream: Stream) -> None:
        """Give a stream up."""
        if stream.number in self._streams and self.failure is None:
            self._h2.reset_stream(stream.number, ErrorCodes.CANCEL)
            self._write()
        self.release(stream)

    def release(self, stream: Stream) -> None:
        """A stream is over: what it holds is free."""
        if self._streams.pop(stream.number, None) is not None and self.failure is None:
            self._windows.pop(stream.number, None)
            self.took(stream.reader.held)
            self.replenish()
        stream.reader.clear()

    # --- windows ----------------------------------------------------------------------------------------------------

    def took(self, size: int) -> None:
        """Bytes that were held are held no more."""
        if self.failure is None:
            self._held -= size
            self._capacity.took(self, size)

    @property
    def eager(self) -> bool:
        """True while a message is awaited, and may be read."""
        return any(stream.eager for stream in self._streams.values())

    @property
    def stalls(self) -> bool:
        """True while a peer may send the rest of a message."""
        return self._lent > 0 and any(stream.eager and stream.reader.held for stream in self._streams.values())

    def evict(self) -> None:
        """End the calls whose messages wait for their rest: others need what they hold."""
        for stream in list(self._streams.values()):
            if stream.wants and stream.reader.held:
                stream.refuse(RpcError(Code.RESOURCE_EXHAUSTED, "memory is full: send the message again, and faster"))

    def replenish(self) -> None:
        """Open the connection's window: rule 1."""
        if self.failure is not None:
            return
        wanted = any(stream.wants for stream in self._streams.values())
        space = self._window - self._lent - (0 if wanted else self._held)
        if self._lent > self._window // 2 or space <= 0:
            self._capacity.leave(self)
            return
        if wanted:
            self._window = min(2 * self._window, self._capacity.window)
        least = min(space, LEAST_BYTES - self._lent - self._held)
        given = max(least, self._capacity.lend(self, space, waits=wanted and self._held > 0))
        if given > 0:
            self._lent += given
            self._capacity.taken += given
            self._h2.increment_flow_control_window(given)
            self._write()

    def _data(self, event: DataReceived) -> None:
        size = event.flow_controlled_length
        self._lent -= size
        self._capacity.taken -= size
        stream = self._streams.get(event.stream_id)
        if stream is not None and event.data:
            self._held += len(event.data)
            self.received += len(event.data)
            self._capacity.taken += len(event.data)
            stream.feed(event.data)
        elif event.stream_ended is None and not event.data:
            self._count(1)
        if stream is not None and event.stream_ended is None:
            left = self._windows[event.stream_id] - size
            if left < WINDOW_BYTES // 2:
                self._h2.increment_flow_control_window(WINDOW_BYTES - left, event.stream_id)
                left = WINDOW_BYTES
            self._windows[event.stream_id] = left
        self.replenish()

    # --- events -----------------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case DataReceived():
                self._data(event)
            case RequestReceived(stream_id=number, headers=headers):
                self._count(_STREAM_EVENTS)
                self._accept(number, _decoded(headers))
            case WindowUpdated(stream_id=number):
                self._count(1)
                self._widen(number)
            case RemoteSettingsChanged():
                self._count(1)
                self._widen(0)
            case ConnectionTerminated(error_code=code):
                raise RpcError(Code.UNAVAILABLE, f"the peer closed the connection ({code})")
            case ResponseReceived() | TrailersReceived() | StreamEnded():
                self._stream_event(event)
            case StreamReset():
                self._count(1)
                self._stream_event(event)
            case _:
                self._count(1)

    def _stream_event(self, event: ResponseReceived | TrailersReceived | StreamEnded | StreamReset) -> None:
        """An event of a stream; one that is over has no more of them."""
        stream = self._streams.get(event.stream_id)
        match event:
            case _ if stream is None:
                pass
            case ResponseReceived(headers=headers) | TrailersReceived(headers=headers):
                stream.answered(_decoded(headers))
            case StreamEnded():
                stream.ended()
            case StreamReset(error_code=code):
                stream.fail(RpcError(Code.UNAVAILABLE, f"the peer reset the stream ({code})"))

    def _accept(self, number: int, headers: dict[str, str]) -> None:
        assert self._serve is not None  # noqa: S101 - h2 refuses requests of servers
        stream = self._streams[number] = Stream(self, number, headers, self._limit)
        self._windows[number] = WINDOW_BYTES
        stream.task = asyncio.ensure_future(self._serve(stream))
        stream.task.add_done_callback(lambda _: self.release(stream))

    def _widen(self, number: int) -> None:
        for stream in [self._streams[number]] if number in self._streams else self._streams.values():
            stream.room.set()

    def _count(self, cost: float) -> None:
        """Pay for what costs the peer nothing: rule 3."""
        now = time.monotonic()
        self._events = min(_EVENTS_BURST, self._events + (now - self._events_at) * _EVENTS_A_SECOND) - cost
        self._events_at = now
        if self._events < 0 and self._serve is not None:
            self._calm("too many frames that carry nothing")

    def _calm(self, what: str) -> NoReturn:
        """End the connection of a peer that costs more than it brings."""
        self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
        self._write()
        raise RpcError(Code.UNAVAILABLE, f"the peer sends {what}")


def _decoded(headers: Iterable[tuple[bytes | str, bytes | str]]) -> dict[str, str]:
    """Headers as text, whatever a peer sends."""

    def text(part: bytes | str) -> str:
        return part if isinstance(part, str) else part.decode(errors="backslashreplace")

    return {text(name): text(value) for name, value in headers}
