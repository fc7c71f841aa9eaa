"""`cardinal tail`: a stream's chain updates on the terminal."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from cardinal.cli.common import config_option, stream
from cardinal.cli.positions import start_option, stop_option
from cardinal.cli.stopping import exit_when_told
from cardinal.cli.writing import output, write_line
from cardinal.config.settings import find_node
from cardinal.consumer import Consumer
from cardinal.consuming.options import application_of
from cardinal.protocols.streams.events import BeganAbove, Incomplete
from cardinal.protocols.streams.payload import Payload
from cardinal.server.healing import FeedHealer

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from cardinal.consuming.healing import HealingFailed
    from cardinal.protocols.streams.events import ChainUpdate, Event
    from cardinal.protocols.streams.payload import AnyPayload


@click.command()
@click.argument("url")
@click.option("--format", "shape", type=click.Choice(["table", "json"]), default="table", show_default=True)
@start_option()
@stop_option(help="Stop with the update that reaches this block; it may go beyond it.")
@click.option("--chain-id", type=click.IntRange(1), help="Which stream, where there are several.")
@click.option("--heal", metavar="NODE", help="Complete blocks that lack messages from this node, a URL or a name.")
@config_option
def tail(
    *,
    url: str,
    shape: str,
    start: str | int | datetime,
    stop: int | None,
    chain_id: int | None,
    heal: str | None,
    config: Path | None,
) -> None:
    """Print every chain update of the stream at URL (or of that name): one line a block, or one JSON object an update.

    A line's cursor, given to --start, continues after that line.
    """
    show: Callable[[ChainUpdate], str] = _json if shape == "json" else _table
    source = stream(url, config)
    exit_when_told()
    with output(), ExitStack() as stack:
        healer = None
        if heal is not None:
            app = application_of(source, "evm", chain_id, 0.0)
            healer = stack.enter_context(
                FeedHealer(find_node(heal, config), app, chain_id=int(app.chain.removeprefix("evm:")))
            )
        consumer = stack.enter_context(
            Consumer(source, "evm", start=start, chain_id=chain_id, heal=healer, on_event=_report)
        )
        if stop is not None and consumer.head is not None and consumer.head.number >= stop:
            return
        for update in consumer:
            write_line(show(update))
            if stop is not None and update.added and update.added[-1].number >= stop:
                return


def _report(event: Event | HealingFailed) -> None:
    """Print what an operator has to know of blocks that are left out."""
    match event:
        case BeganAbove():
            click.echo(
                f"the stream begins with block {event.start.number}: blocks from {event.lowest} on are on the topics, "
                "but no Batch links them to it; retention has expired what lies between, or it was never there",
                err=True,
            )
        case Incomplete():
            lacking = event.explanation
            number = "?" if lacking.number is None else lacking.number
            click.echo(f"block {number} (0x{lacking.block.hex()}) is incomplete: it {lacking.lacks}", err=True)
        case _:
            pass


def _json(update: ChainUpdate) -> str:
    line = {
        "seq": update.seq,
        "removed": [_ref(block) for block in update.removed],
        "added": [{**_ref(block), "messages": _messages(block)} for block in update.added],
        "cursor": str(update.cursor),
    }
    return json.dumps(line, separators=(",", ":"))


def _ref(block: AnyPayload) -> dict[str, object]:
    return {"number": block.number, "hash": f"0x{block.hash.hex()}"}


def _messages(block: AnyPayload) -> int:
    """The number of keys that the block writes or deletes."""
    return len(block.updates) + len(block.deletes) if isinstance(block, Payload) else 0


def _table(update: ChainUpdate) -> str:
    seq = update.first_seq
    lines = []
    for sign, blocks in (("-", update.removed), ("+", update.added)):
        for block in blocks:
            lines.append(f"{seq:>10}  {sign}  {block.number:>12}  0x{block.hash.hex()}  {_messages(block):>7} keys")
            seq += 1
    return "\n".join(lines)
