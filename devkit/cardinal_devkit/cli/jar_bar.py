"""Progress of fetching Kafka's jars: a bar with sizes, or plain lines without a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

if TYPE_CHECKING:
    from types import TracebackType

    from cardinal_devkit.kafka.jars import Jar

_LINES = 4
"""Lines without a terminal: one for each quarter that has arrived."""


class JarBar:
    """Progress bar that appears with the first reported jar; a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        """Write to ``console``; to standard error where None, since standard output may belong to a program."""
        self._console = console or Console(stderr=True)
        self._received: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._lines = 0
        self._started: float | None = None
        self._ended = 0.0

    @property
    def seconds(self) -> float:
        """Duration of the fetching; 0 where nothing was fetched."""
        return 0.0 if self._started is None else self._ended - self._started

    def report(self, jar: Jar, received: int) -> None:
        """Report the number of fetched bytes of a jar. Every jar of the run is reported with 0 first."""
        self._ended = time.monotonic()
        if self._started is None:
            self._started = self._ended
        self._sizes[jar.name] = jar.size
        self._received[jar.name] = min(received, jar.size)
        # The first pieces arrive after every jar was reported with 0, so that the total size is known.
        if received and self._console.is_terminal:
            self._draw()
        elif received:
            self._print()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        if self._bar is not None:
            self._bar.stop()

    def _draw(self) -> None:
        if self._bar is None:
            columns = (TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task(f"Kafka, {len(self._sizes)} jars, once", total=sum(self._sizes.values()))
            self._bar.start()
        if self._task is not None:
            self._bar.update(self._task, completed=sum(self._received.values()))

    def _print(self) -> None:
        total, received = sum(self._sizes.values()), sum(self._received.values())
        if self._lines == 0:
            self._console.print(f"fetching Kafka, {len(self._sizes)} jars, {total / 1e6:.1f} MB, once", highlight=False)
            self._lines = 1
        while self._lines <= _LINES and received * _LINES >= total * self._lines:
            self._console.print(
                f"fetched {total * self._lines / _LINES / 1e6:.1f} of {total / 1e6:.1f} MB", highlight=False
            )
            self._lines += 1
