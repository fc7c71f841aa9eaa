"""`cardinal tail`: a stream's chain updates on the terminal."""

from __future__ import annotations

import json
import logging
import time
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import click

from cardinal.cli.blocks import BlockFacts, age, clock, count_names, facts_of, reorg_line
from cardinal.cli.common import (
    STREAM_SECONDS,
    app_option,
    application,
    chain_id_option,
    config_option,
    stream,
    topic_option,
    wait_option,
)
from cardinal.cli.positions import start_option, stop_option
from cardinal.cli.selecting import print_selected, selected_part, selection_options
from cardinal.cli.stopping import exit_on_signals
from cardinal.cli.writing import output, write_line
from cardinal.config.settings import find_node
from cardinal.consumer import Consumer, ConsumerOptions
from cardinal.consuming.options import chain_id_of, cursor_of
from cardinal.consuming.patience import Patience
from cardinal.server.healing import FeedHealer
from cardinal.texts import short_hash

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.protocols.streams.events import ChainUpdate
    from cardinal.protocols.streams.payload import AnyPayload

_log = logging.getLogger("cardinal.tail")
_COLUMNS: Final = f"{'block':>14}  {'hash':<13}  {'time (UTC)':<19}  {'age':>8}  {{:>12}}"


@click.command()
@click.argument("url")
@click.option(
    "--format", "shape", type=click.Choice(["table", "json"]), default="table", show_default=True, help="See below."
)
@start_option()
@stop_option(help="End when this block was added.")
@click.option("-n", "--count", type=click.IntRange(1), help="End after this many blocks; with json: updates.")
@click.option("--exit-at-end", is_flag=True, help="End when what is there now was printed.")
@wait_option(
    "Wait so long for the server, the stream, and the block of --start. Default: 10 for a stream, 0 for the others."
)
@click.option("--heal", metavar="NODE", help="Node that supplies messages which blocks lack: a URL or a name.")
@selection_options
@app_option
@chain_id_option
@topic_option
@config_option
def tail(
    *,
    url: str,
    shape: Literal["table", "json"],
    start: str | int | datetime,
    stop: int | None,
    count: int | None,
    exit_at_end: bool,
    wait: float | None,
    heal: str | None,
    app_name: str,
    chain_id: int | None,
    topic: str | None,
    config: Path | None,
    **selected: tuple[str, ...],
) -> None:
    """Print the chain updates of a stream as they come.

    URL is a stream's URL, or its name in the settings file. Other reports of the stream (incomplete blocks, producers
    that disagree, an unreachable broker) are in the log, on standard error.

    Table: one line for each added block (+) and each removed block (-), and one before each reorg. Age: time since the
    block's timestamp. A block without its content reads `missing`.

    Json: one object for each update, with "seq" (number of its last step), "removed" (newest first) and "added" (oldest
    first), lists of blocks with "number", "hash", and in "added" also "messages" (keys that it writes or deletes;
    null: content missing), "time" (unix seconds or null) and the application's own numbers, such as "transactions";
    and "cursor", with which --start continues after this update.

    A backlog is folded into few updates: reorgs that were over when it was read do not appear. `--start NUMBER`
    prints them step by step: for all of them, with the number of the stream's first block.

    Selections (--address, --topic0) print logs instead of blocks, those that leave the chain too: a line each, or with
    json the blocks of an update that have some, with "logs". Values of one option are alternatives, different options
    must hold together. --count then counts logs.

    \b
    Examples:
      cardinal tail kafka://localhost:9092 --start latest
      cardinal tail kafka://localhost:9092 --start 1000 -n 20 --wait 60
      cardinal tail kafka://localhost:9092 --format json --exit-at-end
      cardinal tail kafka://localhost:9092 --address 0xa0b8… --topic0 0xddf2… --start latest  (the whole values)
    """
    if stop is not None and isinstance(start, int) and start > stop:
        raise click.UsageError(f"--stop {stop} lies before --start {start}")
    selection = selected_part(app_name, selected)
    source = stream(url, config)
    exit_on_signals()
    with output(), ExitStack() as stack:
        patience, seconds = Patience(wait), STREAM_SECONDS if wait is None else 0.0
        chain_id = chain_id or chain_id_of(cursor_of(start))
        app = patience.answer(lambda: application(source, app_name, chain_id, topic, wait=seconds))
        healer = None
        if heal is not None:
            chain = int(app.chain.rpartition(":")[2])
            healer = stack.enter_context(FeedHealer(find_node(heal, config), app, chain_id=chain))
        until: Literal["end"] | int | None = "end" if exit_at_end else stop
        tracked = None if selection is None else selection.tracked
        options = ConsumerOptions(heal=healer, until=until, topics_timeout=seconds, tracked=tracked)
        consumer = stack.enter_context(patience.answer(lambda: Consumer(source, app, start=start, options=options)))
        if stop is not None and consumer.head is not None and consumer.head.number >= stop:
            return
        _announce(consumer, start)
        name = f"{app.chain} on {source}"
        if selection is not None:
            print_selected(consumer, selection, shape, name=name, stop=stop, count=count)
        else:
            (_print_json if shape == "json" else _print_table)(consumer, name, stop, count)


def _announce(consumer: Consumer, start: str | int | datetime) -> None:
    """Log reports that the output does not contain."""
    if start == "earliest" and consumer.lag:
        _log.info("the backlog is folded: reorgs that are over do not appear in it (--start NUMBER prints each step)")
    elif isinstance(start, datetime) and not consumer.lag:
        _log.info("nothing was published from %s on yet: waiting", start.isoformat())


# --- json ----------------------------------------------------------------------------------------------------


def _print_json(consumer: Consumer, name: str, stop: int | None, count: int | None) -> None:
    del name
    for printed, update in enumerate(consumer, 1):
        write_line(_json(consumer.app, update))
        if printed == count or (stop is not None and update.added and update.added[-1].number >= stop):
            return


def _json(app: Application, update: ChainUpdate) -> str:
    line = {
        "seq": update.seq,
        "removed": [_ref(block) for block in update.removed],
        "added": [_ref(block) | _facts(facts_of(app, block)) for block in update.added],
        "cursor": str(update.cursor),
    }
    return json.dumps(line, separators=(",", ":"))


def _facts(facts: BlockFacts) -> dict[str, object]:
    return {"time": facts.time, **facts.counts}


def _ref(block: AnyPayload) -> dict[str, object]:
    return {"number": block.number, "hash": f"0x{block.hash.hex()}"}


# --- table ---------------------------------------------------------------------------------------------------


def _print_table(consumer: Consumer, name: str, stop: int | None, count: int | None) -> None:
    app = consumer.app
    write_line(click.style(name, bold=True))
    write_line(click.style(f"  {_COLUMNS.format(count_names(app)[0])}", dim=True))
    printed = 0
    for update in consumer:
        if update.removed:
            write_line(click.style(reorg_line(update), fg="yellow"))
        for sign, block in _steps(update):
            line = _line(sign, block, facts_of(app, block))
            write_line(click.style(line, fg="red") if sign == "-" else line)
            printed += 1
            if printed == count or (sign == "+" and stop is not None and block.number >= stop):
                return


def _steps(update: ChainUpdate) -> Iterator[tuple[str, AnyPayload]]:
    for block in update.removed:
        yield "-", block
    for block in update.added:
        yield "+", block


def _line(sign: str, block: AnyPayload, facts: BlockFacts) -> str:
    content = facts.first_count()
    seconds = None if facts.time is None else time.time() - facts.time
    return (
        f"{sign} {block.number:>14}  {short_hash(block.hash)}  {clock(facts.time):<19}  {age(seconds):>8}  "
        f"{'missing' if content is None else content:>12}"
    )
