"""Spinner with the elapsed seconds of one wait, on a terminal; elsewhere one line. On standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType


class Spinner:
    """Context manager that is drawn until :meth:`stop`, which may be called again."""

    def __init__(self, text: str, console: Console | None = None) -> None:
        """Draw on ``console``; on standard error where None."""
        self._text = text
        self._console = console or Console(stderr=True, force_terminal=sys.stderr.isatty())
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        if not self._console.is_terminal:
            self._console.print(f"{self._text} …", highlight=False)
            return self
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._progress.add_task(self._text, total=None)
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self.stop()

    def stop(self) -> None:
        """Remove the spinner."""
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.stop()
