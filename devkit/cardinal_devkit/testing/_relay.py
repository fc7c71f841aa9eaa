"""One proxied connection with a link per direction."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Final

from cardinal.errors import ConfigurationError

_CHUNK: Final = 16 << 10
_WINDOW_CHUNKS: Final = 16
_SLICES_A_SECOND: Final = 50
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Link:
    """Behaviour of one direction.

    Attributes:
        latency: seconds that every byte takes.
        bytes_per_second: bandwidth of one connection; None: no limit.
        blackhole: nothing passes until another link is set; new connections are accepted and receive nothing.
        cut_after: the connection is reset before its byte after this many; None: never.

    Raises:
        ConfigurationError: an impossible value.

    """

    latency: float = 0.0
    bytes_per_second: int | None = None
    blackhole: bool = False
    cut_after: int | None = None

    def __post_init__(self) -> None:
        if self.latency < 0:
            raise ConfigurationError(f"a latency is not negative: {self.latency}", setting="latency")
        if self.bytes_per_second is not None and self.bytes_per_second < 1:
            raise ConfigurationError("at least a byte passes in a second", setting="bytes_per_second")
        if self.cut_after is not None and self.cut_after < 0:
            raise ConfigurationError("a link is cut after 0 bytes or more", setting="cut_after")


CLEAR: Final = Link()
"""A link without impairment."""


class Links:
    """Current link of one direction, for all connections. ``passed`` counts their bytes."""

    def __init__(self) -> None:
        self.link = CLEAR
        self.passed = 0
        self._changed = asyncio.Event()

    def change(self, link: Link) -> None:
        """Change to ``link``, and wake all that wait on the current one."""
        self.link = link
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float | None) -> None:
        """Wait for a timeout, or for another link."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


class _CutError(Exception):
    """The link's ``cut_after`` was reached."""


class Pair:
    """A client's connection, and ours to the target for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._client = (reader, writer)
        self._target: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connect(self, host: str, port: int) -> bool:
        """Connect to the target; True if it accepted."""
        try:
            self._target = await asyncio.open_connection(host, port)
        except OSError:
            return False
        return True

    async def relay(self, up: Links, down: Links) -> bool:
        """Pass bytes until both sides are done; True if the link cut the connection."""
        if self._target is None:
            return False
        cut = False
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass(self._client[0], self._target[1], up))
                both.create_task(_pass(self._target[0], self._client[1], down))
            # Both have ended and everything is in flight: a reset would discard what the peers have not read yet.
            self._client[1].close()
            self._target[1].close()
        except* OSError:
            pass  # a peer closed: the caller resets the other one
        except* _CutError:
            cut = True
        return cut

    def abort(self) -> None:
        """Reset the sockets that are not closed in order. May be called twice."""
        for pair in (self._client, self._target):
            if pair is not None:
                _reset(pair[1])


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):  # it is closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, links: Links) -> None:
    """Relay one direction to its end: one task reads and stamps, the other one writes when it is due."""
    window: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_WINDOW_CHUNKS)
    async with asyncio.TaskGroup() as both:
        both.create_task(_take(reader, window))
        both.create_task(_give(window, writer, links))


async def _take(reader: asyncio.StreamReader, window: asyncio.Queue[tuple[float, bytes]]) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        data = await reader.read(_CHUNK)
        await window.put((clock(), data))
        if not data:
            return


async def _give(window: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, links: Links) -> None:
    clock = asyncio.get_running_loop().time
    writer.transport.set_write_buffer_limits(0)  # what was written has left before the next piece, or a cut
    passed = 0
    while True:
        arrived, data = await window.get()
        ended = not data
        while data or ended:
            link = links.link
            if link.blackhole:
                await links.wait(None)
                continue
            if (early := arrived + link.latency - clock()) > 0:
                await links.wait(early)
                continue
            if ended:
                writer.write_eof()
                return
            if link.cut_after is not None and passed >= link.cut_after:
                raise _CutError
            piece = data[: _most(link, passed)]
            writer.write(piece)
            await writer.drain()
            data = data[len(piece) :]
            passed += len(piece)
            links.passed += len(piece)
            if link.bytes_per_second is not None:
                await links.wait(len(piece) / link.bytes_per_second)


def _most(link: Link, passed: int) -> int:
    """Number of bytes that may be sent now."""
    most = _CHUNK
    if link.bytes_per_second is not None:
        most = min(most, max(1, link.bytes_per_second // _SLICES_A_SECOND))
    if link.cut_after is not None:
        most = min(most, link.cut_after - passed)
    return most
