"""Reports that a command repeats until it is stopped: on a terminal in place, elsewhere one below the other."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from cardinal.cli.stopping import exit_on_signals
from cardinal.errors import TopicError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

WATCH_SECONDS: Final = 2.0
"""Between two reports; one of a broker with a few streams takes some seconds itself."""

watch_option = click.option("--watch", "watch_it", is_flag=True, help="Repeat the report until it is stopped (Ctrl-C).")


def watch(report: Callable[[], Callable[[], None]], seconds: float = WATCH_SECONDS) -> NoReturn:
    """Repeat a report until a signal ends the command, with status 0.

    Arguments:
        report: reads what is reported, and returns what prints it: the screen is cleared in between, so that it never
            stays empty. A server that does not answer and a stream that does not exist are reported and read again.
        seconds: the pause.

    """
    exit_on_signals()
    while True:
        try:
            show = report()
        except (TopicError, UnreachableError) as error:
            show = partial(click.echo, click.style(f"error: {error}", fg="red"), err=True)
        if sys.stdout.isatty():
            click.clear()
            click.echo(click.style(f"every {seconds:g} s; Ctrl-C ends it", dim=True))
        show()
        sys.stdout.flush()
        time.sleep(seconds)
