"""Progress bar of a producer's backfill: block numbers, blocks a second and the remaining time.

It is drawn on a terminal only, whatever the environment variables for colours, and only while many blocks remain.
Lines written to the current ``sys.stderr`` meanwhile appear above it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

NEAR_BLOCKS: Final = 10
"""Fewer remaining blocks than this need no bar."""

_SHOWN_TENTHS: Final = 10


class BlockBar:
    """Progress bar; a context manager.

    Attributes:
        last: the last displayed number; None before.

    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        # The console alone is not enough: environment variables can make it treat anything as a terminal.
        self._draws = sys.stderr.isatty() and self._console.is_terminal and not self._console.is_dumb_terminal
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._first = 0
        self.last: int | None = None

    @property
    def drawn(self) -> bool:
        """True while the bar is drawn."""
        return self._bar is not None

    def report(self, number: int | None, target: int | None) -> None:
        """Draw the progress.

        Arguments:
            number: the newest submitted block; None before the first.
            target: the last block to fetch; None while it is unknown.

        """
        if not self._draws or number is None or target is None:
            return
        if self._bar is None and target - number >= NEAR_BLOCKS:
            self._begin(number)
        if self._bar is not None and self._task is not None:
            self.last = number
            done, whole = number - self._first, max(target, number) - self._first
            self._bar.update(self._task, completed=done, total=whole, number=number, target=target)
            if number >= target:
                self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._end()

    def _begin(self, number: int) -> None:
        shown = TextColumn("block {task.fields[number]} of {task.fields[target]}")
        left = (_Rate(), TimeRemainingColumn(), TextColumn("to go"))
        self._bar = Progress(shown, BarColumn(bar_width=None), *left, console=self._console, expand=True)
        self._first = number
        self._task = self._bar.add_task("", total=None, number=number, target="?")
        self._bar.start()

    def _end(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()


class _Rate(ProgressColumn):
    """Column with blocks a second, over the last half minute."""

    def render(self, task: Task) -> Text:
        """The column's text."""
        rate = task.finished_speed or task.speed
        if rate is None:
            return Text("? blocks/s")
        return Text(f"{rate:.0f} blocks/s" if rate >= _SHOWN_TENTHS else f"{rate:.1f} blocks/s")
