"""`cardinal status`: the streams on a server, their heads, producers and gaps; or the state of one block."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from cardinal.cli.blocks import age, clock, facts_of
from cardinal.cli.common import (
    any_app_option,
    chain_id_option,
    config_option,
    stream,
    streams,
    topic_option,
    wait_option,
)
from cardinal.cli.watching import watch, watch_option
from cardinal.consuming.patience import Patience
from cardinal.errors import TopicError
from cardinal.server.explanation import explain_block
from cardinal.server.status import NAMELESS, ProducerState, StreamState, stream_state
from cardinal.server.topics import topic_states
from cardinal.texts import Count, short_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.protocols.streams.events import Explanation
    from cardinal.transports import TransportUrl

_NAMED: Final = 10
_HASH_BYTES: Final = 32


def _hash(context: click.Context, parameter: click.Parameter, text: str | None) -> bytes | None:
    del context, parameter
    try:
        block_hash = None if text is None else bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        block_hash = b""
    if block_hash is not None and len(block_hash) != _HASH_BYTES:
        raise click.BadParameter(
            f"write a block's whole hash, 0x and 64 hex digits, not {text!r}: cardinal tail --format json prints it"
        )
    if block_hash is not None and not any(block_hash):
        raise click.BadParameter("the hash of zeros is no block: a chain's first block names it as its parent")
    return block_hash


@click.command()
@click.argument("url")
@click.option("--hash", "block_hash", metavar="0x…", callback=_hash, help="Explain the state of this block instead.")
@click.option(
    "--blocks", type=click.IntRange(1), default=64, show_default=True, help="Newest blocks to check for gaps."
)
@wait_option("Wait so long for the server and its streams. Default: 0.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each stream.")
@watch_option
@any_app_option
@chain_id_option
@topic_option
@config_option
def status(
    *,
    url: str,
    block_hash: bytes | None,
    blocks: int,
    wait: float | None,
    as_json: bool,
    watch_it: bool,
    app_name: str | None,
    chain_id: int | None,
    topic: str | None,
    config: Path | None,
) -> None:
    """Show the streams on a server: head, producers, retention and gaps.

    Streams are found by the applications' own topic names: name another one with --topic and --chain-id.
    The newest blocks are read with their content. Proving a gap among them takes some seconds. A producer is alive if
    it has pinged within 95 seconds, and ended if its last ping says so; its lag is the median time by which its blocks
    come after the first copy. One that has only pinged lately is named by the hash of its id.

    \b
    Examples:
      cardinal status kafka://localhost:9092
      cardinal status kafka://localhost:9092 --chain-id 1 --blocks 500 --json
      cardinal status kafka://localhost:9092 --watch
      cardinal status kafka://localhost:9092 --chain-id 1 --hash 0x88e9…  (the whole hash)
    """
    source = stream(url, config)
    patience = Patience(wait)

    def report() -> Callable[[], None]:
        apps = patience.answer(lambda: streams(source, app_name, chain_id, topic))
        if block_hash is not None:
            app, block = _explained(source, apps, block_hash, may_be_unknown=as_json)
            return partial(_print_block, app, block, as_json=as_json)
        states = (
            (app, patience.answer(partial(stream_state, source, app, blocks)), _retention(source, app)) for app in apps
        )
        # Each is printed when it is read, but a repeated report is complete before the one before it is cleared.
        return partial(_report, source, list(states) if watch_it else states, as_json=as_json)

    if watch_it:
        watch(report)
    report()()


def _retention(source: TransportUrl, app: Application) -> int | None:
    return topic_states(source, app, [app.default_topic])[0].retention_ms


def _report(
    source: TransportUrl, states: Iterable[tuple[Application, StreamState, int | None]], *, as_json: bool
) -> None:
    for app, state, retention in states:
        if as_json:
            click.echo(json.dumps(_values(app, state, retention)))
        else:
            _print(f"{app.chain} on {source}", app, state, retention)


def _explained(
    source: TransportUrl, apps: list[Application], block_hash: bytes, *, may_be_unknown: bool
) -> tuple[Application, Explanation]:
    """The state of a block, and its stream. TopicError where it is on none: time may heal it."""
    explanations = [(app, explain_block(source, app, block_hash)) for app in apps]
    app, block = next(((app, each) for app, each in explanations if each.state != "unknown"), explanations[0])
    if block.state == "unknown" and not may_be_unknown:
        raise TopicError(
            f"block 0x{block_hash.hex()} is not on the topics of {', '.join(one.chain for one in apps)}: it was never "
            "published, or retention has expired it",
            topic=app.default_topic,
        )
    return app, block


def _print_block(app: Application, block: Explanation, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"chain": app.chain, **_explanation(block)}))
        return
    name = f"0x{block.block.hex()}" if block.number is None else str(block.number)
    click.echo(f"block {name} of {app.chain} {block.summary}")
    lacking = block.missing_batch or block.missing_counts or block.missing_headers or block.missing_parts
    if (
        lacking and block.state != "removed" and (block.state == "open" or block.reason)
    ):  # what was read again of a whole block may be a part
        click.echo(f"  it {block.lacks}")
    for prefix, count in block.missing_counts.items():
        click.echo(f"  {Count(count, 'message')} below {prefix}")
    for (name, partition), offset in sorted(block.positions.items()):
        click.echo(f"  its messages begin at {name}:{partition}@{offset}")


def _print(title: str, app: Application, state: StreamState, retention_ms: int | None) -> None:
    now = time.time()
    click.echo(click.style(title, bold=True))
    if state.head is None:
        click.echo("  head       none: no block is complete")
    else:
        facts = facts_of(app, state.head)
        made = "" if facts.time is None else f"made {clock(facts.time)} ({age(now - facts.time)} ago), "
        click.echo(f"  head       {state.head.number}  0x{state.head.hash.hex()}")
        published = "a moment ago" if state.head_published is None else _ago(now, state.head_published)
        click.echo(f"             {made}published {published}")
    if state.highest is not None and (state.head is None or state.highest > state.head.number):
        click.echo(
            click.style(
                f"  waiting    up to block {state.highest}: blocks are incomplete or wait for parents", fg="red"
            )
        )
    kept = "-" if retention_ms is None else "for ever" if retention_ms < 0 else age(retention_ms / 1000)
    click.echo(f"  oldest     block {state.oldest}, published {_ago(now, state.oldest_published)}; retention {kept}")
    if state.first is not None:
        click.echo(
            f"  checked    blocks {state.first} to {state.last}: {len(state.missing) or 'none'} missing, "
            f"{len(state.incomplete) or 'none'} incomplete above"
        )
    for hidden in state.open_transactions:
        click.echo(click.style(f"  hidden     {hidden}", fg="red"))
    for what, blocks in (("missing", state.missing), ("incomplete", state.incomplete)):
        for one in blocks[:_NAMED]:
            click.echo(click.style(f"  {what:<9}  {_number(one)} {short_hash(one.block)} {one.lacks}", fg="red"))
    click.echo(f"  producers  {'ping':>8}  {'blocks':>7}  {'first':>7}  {'lag':>8}  {'newest':>10}  id")
    for producer in state.producers:
        alive = _health(producer)
        click.echo(
            f"  {alive}  {age(producer.ping_age):>8}  {producer.blocks:>7}  {producer.first:>7}  "
            f"{age(producer.lag):>8}  {'-' if producer.newest is None else producer.newest:>10}  {producer.name}"
        )


def _health(producer: ProducerState) -> str:
    if producer.name == NAMELESS:
        return "unknown  "
    if producer.ended:
        return "ended    "
    return click.style("alive    ", fg="green") if producer.alive else click.style("silent   ", fg="red")


def _ago(now: float, published: float | None) -> str:
    return "at an unknown time" if published is None else f"{age(now - published)} ago"


def _number(block: Explanation) -> str:
    return "?" if block.number is None else str(block.number)


def _explanation(block: Explanation) -> dict[str, object]:
    return {
        "number": block.number,
        "hash": f"0x{block.block.hex()}",
        "state": block.state,
        "reason": block.reason,
        "missing_batch": block.missing_batch,
        "missing_messages": dict(block.missing_counts),
        "positions": {f"{name}:{partition}": offset for (name, partition), offset in block.positions.items()},
    }


def _values(app: Application, state: StreamState, retention_ms: int | None) -> dict[str, object]:
    head = state.head
    return {
        "chain": state.chain,
        "topic": state.topic,
        "head": head
        and {
            "number": head.number,
            "hash": f"0x{head.hash.hex()}",
            "time": facts_of(app, head).time,
            "published": state.head_published,
        },
        "highest": state.highest,
        "oldest": {"number": state.oldest, "published": state.oldest_published},
        "retention_ms": retention_ms,
        "checked": {"first": state.first, "last": state.last},
        "missing": [_explanation(one) for one in state.missing],
        "incomplete": [_explanation(one) for one in state.incomplete],
        "open_transactions": [asdict(one) for one in state.open_transactions],
        "producers": [{**asdict(one), "alive": one.alive} for one in state.producers],
    }
