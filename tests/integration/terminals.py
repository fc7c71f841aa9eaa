"""A command on a terminal, and the final content of its screen."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from commands import COMMAND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COLUMNS: Final = 100
_PIECE: Final = re.compile(r"\x1b\[(\?|)(\d*)((?:;\d+)*)([A-Za-z])|[\r\n]|[^\x1b\r\n]+")


class Terminal:
    """A terminal and the process on it; ``written`` grows as the process writes."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self.written = ""
        self._master = master
        self._bytes = b""
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(master, self._read)

    async def end(self) -> int:
        """Wait for the end of the process and of what it wrote; its status."""
        status = await self.process.wait()
        await self._ended.wait()
        return status

    async def shows(self, pattern: str) -> None:
        """Wait until this was written."""
        async with asyncio.timeout(60):
            while not re.search(pattern, self.written):
                assert not self._ended.is_set(), self.written
                await asyncio.sleep(0.02)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)

    def _read(self) -> None:
        try:
            piece = os.read(self._master, 1 << 16)
        except OSError:  # nobody has the other end any more
            piece = b""
        if not piece:
            asyncio.get_running_loop().remove_reader(self._master)
            self._ended.set()
        self._bytes += piece
        self.written = self._bytes.decode(errors="replace")


@asynccontextmanager
async def on_terminal(*args: str, **environment: str) -> AsyncIterator[Terminal]:
    """`cardinal …` with standard error on a terminal; its standard output is a pipe."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, *args),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", **environment},
    )
    os.close(slave)
    terminal = Terminal(process, master)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        terminal.close()


def screen(written: str) -> list[str]:
    """The lines that a terminal shows after all this was written to it, which are as many as it takes."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for piece in _PIECE.finditer(written):
        text = piece.group()
        if text == "\r":
            column = 0
        elif text == "\n":
            row += 1
            lines += [[]] * (row == len(lines))
            lines[row] = lines[row] or []
        elif not text.startswith("\x1b"):
            lines[row] += [" "] * (column - len(lines[row]))
            lines[row][column : column + len(text)] = text
            column += len(text)
        elif piece.group(4) == "A":
            row = max(0, row - int(piece.group(2) or 1))
        elif piece.group(4) == "K" and piece.group(2) == "2":
            lines[row] = []
        else:
            assert piece.group(4) in "mhlK", f"a sequence that this terminal does not know: {text!r}"
    return ["".join(line).rstrip() for line in lines]


def cursor_is_shown(written: str) -> bool:
    """Whether the last that was said of the cursor is that it may be seen."""
    return written.rfind("\x1b[?25l") <= written.rfind("\x1b[?25h")
