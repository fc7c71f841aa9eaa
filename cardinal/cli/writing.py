"""Lines on standard output, which a reader may close."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cardinal.errors import CardinalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _NobodyReadsError(Exception):
    """The reader closed the output."""


def write_line(line: str) -> None:
    """Write one line and flush it; within :func:`output`."""
    with _written():
        click.echo(line)
        sys.stdout.flush()


@contextmanager
def output() -> Iterator[Callable[[str], None]]:
    """Context that ends silently when the reader closes the output (``cardinal tail … | head``).

    Yields a function that writes a line without flushing it; all lines are flushed at the end.

    Raises:
        CardinalError: the output cannot be written, such as on a full disk.

    """

    def write(line: str) -> None:
        with _written():
            click.echo(line)

    try:
        yield write
        with _written():
            sys.stdout.flush()
    except _NobodyReadsError:
        pass


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Buffered data would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise _NobodyReadsError from None
        raise CardinalError(
            f"nothing more can be written to the standard output: {error.strerror}; make room and restart"
        ) from None
