"""Lines on the standard output, where somebody reads them or nobody does any more."""

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
    """Whoever read the output has gone."""


def write_line(line: str) -> None:
    """One line that whoever reads has at once; for use within :func:`output`."""
    with _written():
        click.echo(line)
        sys.stdout.flush()


@contextmanager
def output() -> Iterator[Callable[[str], None]]:
    """What is written inside stops quietly where nobody reads any more (``cardinal tail … | head``).

    Gives what writes a line without flushing it; all of them are flushed at the end.

    Raises:
        CardinalError: nothing more can be written, such as to a disk that is full.

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
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise _NobodyReadsError from None
        raise CardinalError(
            f"nothing more can be written to the standard output: {error.strerror}; make room and start again"
        ) from None
