"""`cardinal topics`: list the topics of a server's streams, or delete those of one."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from cardinal import apps
from cardinal.cli.blocks import age
from cardinal.cli.common import any_app_option, check_folder, config_option, stream, topic_option
from cardinal.errors import TopicError
from cardinal.server.topics import TopicState, delete_topics, streams_on, topic_states, topics_of
from cardinal.texts import Count

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.transports import TransportUrl

_COLUMNS: Final = "{:<40}  {:>10}  {:>12}  {:>10}"


@click.command()
@click.argument("url")
@click.option("--delete", is_flag=True, help="Delete the topics of the one stream that is named, with all records.")
@click.option("--yes", is_flag=True, help="Delete without a question.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each stream.")
@any_app_option
@click.option("--chain-id", type=click.IntRange(0), help="Only streams of this chain.")
@topic_option
@config_option
def topics(
    *,
    url: str,
    delete: bool,
    yes: bool,
    as_json: bool,
    app_name: str | None,
    chain_id: int | None,
    topic: str | None,
    config: Path | None,
) -> None:
    """List the topics of the streams on a server, or delete those of one stream.

    A stream's topics are those of its blocks, its reorg channels, and the claims and markers of its ingest cluster; a
    stream of which only some exist is listed as well. Streams are found by the applications' own topic names: name
    another one with --topic and --chain-id. Records are counted by offsets. Kafka's client library does not report
    sizes in bytes. Stop the stream's producers and ingest nodes before --delete: they would fail.

    \b
    Examples:
      cardinal topics kafka://localhost:9092
      cardinal topics kafka://localhost:9092 --chain-id 1337 --delete
    """
    source = stream(url, config)
    found = _streams(source, app_name, chain_id, topic)
    if delete and len(found) > 1:
        chains = ", ".join(app.chain for app in found)
        raise click.UsageError(
            f"there are several streams ({chains}): name the one to delete by --chain-id (and --app)"
        )
    for app in found:
        names = topics_of(source, app)
        states = topic_states(source, app, names)
        if as_json:
            click.echo(json.dumps({"chain": app.chain, "topics": [asdict(state) for state in states]}))
        else:
            _print(f"{app.chain} on {source}", states)
        if delete and names:
            if not yes:
                _confirm(f"delete {Count(len(names), 'topic')} of {app.chain} with all records?")
            delete_topics(source, names)
            click.echo(f"deleted {Count(len(names), 'topic')} of {app.chain}", err=True)


def _streams(url: TransportUrl, app_name: str | None, chain_id: int | None, topic: str | None) -> list[Application]:
    """The streams with topics on the server that the options name."""
    if topic is not None and chain_id is None:
        raise click.UsageError("--topic does not say which chain the topic holds: add --chain-id")
    check_folder(url)
    others: list[Application] = []
    if topic is not None:
        named = [apps.get(app_name or apps.DEFAULT, chain_id=chain_id, topic=topic)]
        found = [app for app in named if topics_of(url, app)]
    else:
        found = others = streams_on(url, apps.names() if app_name is None else (app_name,))
        if chain_id is not None:
            found = [app for app in found if app.chain.endswith(f":{chain_id}")]
    if not found:
        wanted = " ".join(filter(None, [app_name, "stream", "" if chain_id is None else f"of chain {chain_id}"]))
        there = f", only of {', '.join(app.chain for app in others)}" if others else ""
        raise TopicError(
            f"there is no topic of any {wanted} on {url}{there}: correct the options, or name a stream whose topics "
            "have another name by --chain-id and --topic",
            topic=topic or "",
        )
    return found


def _confirm(question: str) -> None:
    try:
        click.confirm(question, abort=True)
    except click.Abort:
        if not sys.stdin.isatty():
            raise click.ClickException("nothing was deleted: add --yes where no terminal can answer") from None
        raise


def _print(title: str, states: list[TopicState]) -> None:
    click.echo(click.style(title, bold=True))
    click.echo(_COLUMNS.format("topic", "partitions", "records", "retention"))
    for state in states:
        click.echo(_COLUMNS.format(state.name, state.partitions, state.records, _retention(state.retention_ms)))


def _retention(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "-"
    return "for ever" if milliseconds < 0 else age(milliseconds / 1000)
