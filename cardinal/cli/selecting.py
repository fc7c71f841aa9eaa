"""Options by which an application selects parts of blocks, and the lines of what they select."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from cardinal import apps
from cardinal.cli.blocks import reorg_line
from cardinal.cli.writing import write_line
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import Payload
from cardinal.texts import short_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cardinal.apps.selection import Selection
    from cardinal.consumer import Consumer
    from cardinal.protocols.streams.events import ChainUpdate
    from cardinal.protocols.streams.payload import AnyPayload

__all__ = ["print_selected", "selected_part", "selection_options"]

_Command = TypeVar("_Command", bound=Callable[..., object])


def selection_options(command: _Command) -> _Command:
    """Options of all applications, each as a tuple of texts under its own name."""
    for name in reversed(apps.names()):
        for option in reversed(apps.selection_options(name)):
            text = f"{option.help} May be repeated; {name} only."
            command = click.option(f"--{option.name}", multiple=True, metavar=option.metavar, help=text)(command)
    return command


def selected_part(app_name: str, values: Mapping[str, tuple[str, ...]]) -> Selection | None:
    """The selection that the options make; None without any. UsageError: one cannot be used."""
    used = [name for name, texts in values.items() if texts]
    own = {option.name for option in apps.selection_options(app_name)}
    if strange := [name for name in used if name not in own]:
        raise click.UsageError(f"--{strange[0]} is no option of the application {app_name}: leave it out, or set --app")
    try:
        return apps.selection(app_name, values) if used else None
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None


def print_selected(
    consumer: Consumer,
    selection: Selection,
    shape: Literal["table", "json"],
    *,
    name: str,
    stop: int | None,
    count: int | None,
) -> None:
    """Print what is selected of each update, until a block or a number of lines."""
    if shape == "table":
        write_line(click.style(name, bold=True))
        write_line(click.style(f"  {'block':>14}  {'hash':<13}  {selection.heading}", dim=True))
    printed = 0
    for update in consumer:
        for line in (_json if shape == "json" else _lines)(selection, update):
            write_line(line)
            printed += 1
            if printed == count:
                return
        if stop is not None and update.added and update.added[-1].number >= stop:
            return


def _json(selection: Selection, update: ChainUpdate) -> Iterator[str]:
    """One object for an update of which something is selected."""
    removed, added = (list(_selected(selection, blocks)) for blocks in (update.removed, update.added))
    if removed or added:
        line: dict[str, Any] = {"seq": update.seq, "removed": removed, "added": added, "cursor": str(update.cursor)}
        yield json.dumps(line, separators=(",", ":"))


def _selected(selection: Selection, blocks: Iterable[AnyPayload]) -> Iterator[dict[str, object]]:
    for block in blocks:
        rows = selection.rows(block) if isinstance(block, Payload) else None
        if rows is None or rows:
            yield {"number": block.number, "hash": f"0x{block.hash.hex()}", selection.noun: rows}


def _lines(selection: Selection, update: ChainUpdate) -> Iterator[str]:
    """A line for each selected item, and one before those of a reorg."""
    announced = not update.removed
    for sign, blocks in (("-", update.removed), ("+", update.added)):
        for block in blocks:
            texts = (
                [selection.line(row) for row in selection.rows(block)] if isinstance(block, Payload) else ["missing"]
            )
            for text in texts:
                if not announced:
                    announced = True
                    yield click.style(reorg_line(update), fg="yellow")
                line = f"{sign} {block.number:>14}  {short_hash(block.hash):<13}  {text}"
                yield click.style(line, fg="red") if sign == "-" else line
