"""Where commands that read a stream begin: the option --from, and what its text means."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

_KINDS: Final = "start|tail|NUMBER|TIME|CURSOR"
_CURSOR: Final = re.compile(r"c\d+:.*", re.DOTALL)
_Command = TypeVar("_Command", bound="Callable[..., object]")


def beginning(context: click.Context, parameter: click.Parameter, text: str) -> str | int | datetime:
    """What a text for --from means; a cursor's text as it is."""
    del context, parameter
    if text in ("start", "tail") or _CURSOR.fullmatch(text.strip()):
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"write start (everything that is kept), tail (what comes from now on), a block's number, the time from "
            f"which on blocks were published such as 2026-01-13T22:00:00Z, or a cursor, not {text[:40]!r}"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def from_option(command: _Command) -> _Command:
    """The option, as ``start``."""
    return click.option(
        "--from",
        "start",
        default="start",
        show_default=True,
        metavar=_KINDS,
        callback=beginning,
        help="Where to begin; a time without a zone is in UTC.",
    )(command)
