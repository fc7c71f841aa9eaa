"""Positions on the command line: the options --start and --stop, and the values of their texts.

Every command accepts ``earliest``, ``latest``, a block's number and a time; commands on streams also a cursor, commands
on nodes a block's hash.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from cardinal.errors import CursorInvalidError
from cardinal.protocols.streams.cursor import Cursor

__all__ = ["NODE", "NUMBER", "STREAM", "position", "start_option", "stop_option"]

STREAM: Final = ("earliest", "latest", "NUMBER", "TIME", "CURSOR")
"""Kinds of positions in a stream."""

NODE: Final = ("earliest", "latest", "NUMBER", "TIME", "HASH")
"""Kinds of positions in a node's chain."""

NUMBER: Final = ("NUMBER",)

_CURSOR: Final = re.compile(r"\s*c\d+:.*", re.DOTALL)
_HASH: Final = re.compile("(0x)?[0-9a-fA-F]{64}")
_MEANINGS: Final = {
    "earliest": "earliest",
    "latest": "latest",
    "NUMBER": "a block number",
    "TIME": "a time such as 2026-01-13T22:00:00Z",
    "CURSOR": "a cursor",
    "HASH": "a block hash",
}
_Command = TypeVar("_Command", bound=Callable[..., object])


def position(text: str, kinds: tuple[str, ...] = STREAM) -> str | int | datetime:
    """The value of a position.

    Arguments:
        text: as written; a time without a zone is in UTC.
        kinds: the kinds that the command accepts, :data:`STREAM` or :data:`NODE`.

    Returns:
        A word (``earliest``, ``latest``), a cursor's text or a block hash as ``0x`` text; a number; or a time.

    Raises:
        click.BadParameter: the text is no such position.

    """
    if text in kinds and text.islower():
        return text
    if "HASH" in kinds and _HASH.fullmatch(text):
        return f"0x{text.removeprefix('0x').lower()}"
    if "NUMBER" in kinds and text.isascii() and text.isdecimal():
        return int(text)
    if "CURSOR" in kinds and _CURSOR.fullmatch(text):
        try:
            return str(Cursor.parse(text))
        except CursorInvalidError as error:
            raise click.BadParameter(f"{error}: copy the cursor whole, or write another position") from None
    if "TIME" in kinds and "-" in text[1:]:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    *others, last = (_MEANINGS[kind] for kind in kinds)
    raise click.BadParameter(f"write {', '.join(others) + ' or ' if others else ''}{last}, not {text[:40]!r}")


def start_option(
    *,
    help: str = "First block.",  # noqa: A002 - click's name
    default: str | None = "earliest",
    kinds: tuple[str, ...] = STREAM,
    **more: Any,  # noqa: ANN401 - click's settings
) -> Callable[[_Command], _Command]:
    """The option ``--start``, as the argument ``start``.

    Arguments:
        help: one sentence; a note on time zones is added where times are taken.
        default: the position without the option; None where there is none.
        kinds: see :func:`position`.
        more: other settings of the option, such as ``required``.

    """

    def parsed(context: click.Context, parameter: click.Parameter, text: str | None) -> str | int | datetime | None:
        del context, parameter
        return None if text is None else position(text, kinds)

    zone = " A time without a zone is in UTC." if "TIME" in kinds else ""
    return click.option(
        "--start",
        default=default,
        show_default=default is not None,
        metavar="|".join(kinds),
        callback=parsed,
        help=help + zone,
        **more,
    )


def stop_option(*, help: str = "Stop after this block.", **more: Any) -> Callable[[_Command], _Command]:  # noqa: A002, ANN401 - click's names
    """The option ``--stop NUMBER``, as the argument ``stop``; ``more`` as for :func:`start_option`."""
    return click.option("--stop", type=click.IntRange(0), metavar="NUMBER", help=help, **more)
