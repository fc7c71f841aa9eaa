"""`cardinal produce`: a node's blocks to a stream."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import sys
import time
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

import click

from cardinal import apps
from cardinal._concurrency import run_in_thread
from cardinal.cli.block_bar import NEAR_BLOCKS, BlockBar
from cardinal.cli.common import config_option, stream
from cardinal.cli.stopping import cancelled_when_told
from cardinal.config.settings import find_node
from cardinal.errors import ConfigurationError, DeliveryError, UnreachableError
from cardinal.feeds import BlockFeed, Bounded, Locating, open_feed
from cardinal.server.produce import ProduceService, ProduceSettings, Progress
from cardinal.transports import list_topics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cardinal.config.url import NodeUrl, TransportUrl
    from cardinal.errors import CardinalError
    from cardinal.producing.survey.partial import HalfPublished
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.publishing.standby import ProducerCount
    from cardinal.protocols.streams.types import BlockRef

_HASH = re.compile("(0x)?[0-9a-fA-F]{64}")
_REPORT_SECONDS = 2.0
_LOOK_SECONDS = 0.2
_DOUBLED = (
    "another producer of this stream has the same id: both take themselves for one, and everything may be sent twice; "
    "give each a --producer-id of its own"
)
_AGAIN_SECONDS = 5.0
_NAMED = 10


@click.command()
@click.option(
    "--from",
    "from_url",
    required=True,
    metavar="URL",
    help="The node: http(s)://, ws(s)://, ipc:///socket (several with commas, options behind #), archive://, dev://",
)
@click.option("--to", "to_url", required=True, metavar="URL", help="The stream: kafka://host:port, file:///folder")
@click.option("--start", metavar="NUMBER|HASH|TIME", help="First block, where nothing is published yet (default 0).")
@click.option("--until", type=click.IntRange(0), help="Stop after this block (default: follow the head for ever).")
@click.option("--lag", type=click.IntRange(0), help="Stay so many blocks below the node's head.")
@click.option("--finality", type=click.Choice(["safe", "finalized"]), help="Publish only what the node calls so.")
@click.option("--state", is_flag=True, help="Publish also what each block did to accounts, code and storage.")
@click.option(
    "--workers",
    type=click.IntRange(0),
    help="Processes that check a backfill (default: one a processor; none with --state).",
)
@click.option("--producer-id", help="This producer's name, no other's of the stream (default: the host's name).")
@click.option("--chain-id", type=click.IntRange(1), help="Refuse a node of another chain.")
@click.option(
    "--redundancy",
    type=click.Choice(["all", "standby"]),
    default="all",
    show_default=True,
    help="Beside other producers: send everything, or only what those with lower names leave out.",
)
@click.option("--allow-coverage-change", is_flag=True, help="Publish also where recent blocks have other entries.")
@click.option(
    "--no-reorg-channels",
    is_flag=True,
    help="Send reorgs deeper than the threshold as any others: for streams that the Go implementation reads.",
)
@config_option
def produce(
    *,
    from_url: str,
    to_url: str,
    start: str | None,
    until: int | None,
    lag: int | None,
    finality: str | None,
    state: bool,
    workers: int | None,
    producer_id: str | None,
    chain_id: int | None,
    redundancy: Literal["all", "standby"],
    allow_coverage_change: bool,
    no_reorg_channels: bool,
    config: Path | None,
) -> None:
    """Publish a node's blocks: from where the topics end, then the head as it moves.

    Node and stream are given by URL, or by a name of the file in --config. Of --lag, --finality, --state and --workers
    the file may hold what is not given here, as a node's options; a URL may, behind #. There stands also the file of a
    token that the node wants to be shown: https://node#token_file=PATH.
    Stops cleanly on SIGINT and SIGTERM. After any other end, start it again: what is missing is published then.
    """
    to = stream(to_url, config)
    wanted = {"lag": lag, "finality": finality, "state": "true" if state else None, "workers": workers}
    given = {name: str(value) for name, value in wanted.items() if value is not None}
    node = find_node(from_url, config)
    if "://" in from_url:
        _check_options(node, given)
    feed = open_feed(node.with_options(given), chain_id=chain_id)
    settings = ProduceSettings(
        producer_id or socket.gethostname(), redundancy, allow_coverage_change, not no_reorg_channels
    )
    asyncio.run(_produce(feed, to, settings, start=start, until=until))


def _check_options(url: NodeUrl, given: Mapping[str, str]) -> None:
    """UsageError for an option that the same command line has with another value behind the URL's ``#``."""
    for name, value in given.items():
        if url.options.get(name, value) != value:
            raise click.UsageError(f"{name} is {url.options[name][:20]!r} behind the URL's # and another by --{name}")


def _check_start(feed: BlockFeed, start: str | None) -> None:
    """ConfigurationError for what names no block of this feed, before topics are made that would stay empty."""
    if start is None or _is_number(start):
        return
    if not isinstance(feed, Locating):
        raise ConfigurationError("this feed finds blocks by number only: write --start NUMBER", setting="start")
    if not _HASH.fullmatch(start):
        try:
            datetime.fromisoformat(start)
        except ValueError:
            raise ConfigurationError(
                f"--start is a block's number, its hash or a time such as 2022-01-13T22:00:00Z, not {start[:70]!r}",
                setting="start",
            ) from None


async def _check_beginning(feed: BlockFeed, to: TransportUrl, topic: str, start: str | None, until: int | None) -> None:
    """ConfigurationError where a stream that is not there would stay empty; one that is there goes on from its end."""
    if not isinstance(feed, Bounded):
        return
    try:
        there = topic in await asyncio.wrap_future(run_in_thread(partial(list_topics, to), "cardinal-topics"))
    except UnreachableError:
        return  # said by the producer, who asks more
    if not there:
        await feed.check_beginning(None if start is None else int(start), until)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


async def _number(feed: BlockFeed, start: str | None, published: Sequence[BlockRef]) -> int | None:
    """The first block to publish; it is of no matter where blocks are published."""
    if start is None or _is_number(start):
        return None if start is None else int(start)
    return await feed.locate(start) if isinstance(feed, Locating) and not published else None


async def _produce(
    feed: BlockFeed, to: TransportUrl, settings: ProduceSettings, *, start: str | None, until: int | None
) -> None:
    service: ProduceService | None = None
    try:
        with cancelled_when_told():
            _check_start(feed, start)
            app = apps.get("evm", chain_id=await feed.chain_id())
            await _check_beginning(feed, to, app.default_topic, start, until)
            service = ProduceService(feed, to, app, settings=settings, again=_Again())
            published = await service.prepare()
            _say_half("half published where the topics end, sent again as the node gives them", service.progress.half)
            begins = f"continues after block {published[-1].number}" if published else "begins a stream"
            click.echo(f"{begins} on {to}", err=True)
            first = await _number(feed, start, published)
            await _until_told(service, asyncio.create_task(service.run(published, start=first, until=until)))
    except asyncio.CancelledError:
        pass  # told to stop before it began
    finally:
        await (service or feed).close()


async def _until_told(service: ProduceService, running: asyncio.Task[None]) -> None:
    began = time.monotonic()
    try:
        with cancelled_when_told(running), BlockBar() as bar:
            await _reported(service, running, bar)
        with contextlib.suppress(asyncio.CancelledError):
            running.result()
    finally:
        await service.close()
        final, seconds = service.progress, time.monotonic() - began
        left = f", {final.skipped} blocks left to others" if final.skipped else ""
        click.echo(f"{final.blocks} blocks, {final.messages} messages in {seconds:.1f} s{left}", err=True)
        _say_producers(final.producers)
        withheld = [one for one in final.half if one not in final.above]
        _say_half("left half published, because the node did not give them (consumers expire them)", withheld)
        _say_half(
            "left half published, because they are above what was followed (see --lag, --finality, --until)",
            final.above,
        )
    if service.unsealed:
        raise DeliveryError(
            f"{len(service.unsealed)} blocks were taken and not sealed (the lowest is {service.unsealed[0].number}): "
            "start again, what is missing is sent then",
            block_hash=service.unsealed[0].hash,
        )


async def _reported(service: ProduceService, running: asyncio.Task[None], bar: BlockBar) -> None:
    """Say how far it is until it has ended: by a bar where there is one, else by a line now and then."""
    said, before, doubled = time.monotonic(), service.progress, False
    while not running.done():
        await asyncio.wait({running}, timeout=_LOOK_SECONDS)
        now, at = service.progress, time.monotonic()
        bar.report(now.number, now.target)
        if now.producers is not None and now.producers.doubled and not doubled:
            doubled = True
            click.echo(_DOUBLED, err=True)
        if at - said >= _REPORT_SECONDS:
            if not bar.drawn and now.number != bar.last:  # else it was said
                _report(before, now, at - said)
            said, before = at, now


def _report(before: Progress, now: Progress, seconds: float) -> None:
    if now.blocks != before.blocks and now.number is not None:
        blocks, messages = (now.blocks - before.blocks) / seconds, (now.messages - before.messages) / seconds
        left = _left(now, blocks)
        click.echo(
            f"block {now.number}{left}: {blocks:.0f} blocks/s, {messages:.0f} messages/s, {now.under_way} under way",
            err=True,
        )


def _left(now: Progress, rate: float) -> str:
    """How far it is to where the feed is going, where that is known and more than a moment away."""
    left = (now.target or 0) - (now.number or 0)
    if left < NEAR_BLOCKS or rate <= 0:
        return ""
    return f" of {now.target}, {timedelta(seconds=round(left / rate))} to go"


def _say_producers(producers: ProducerCount | None) -> None:
    if producers is not None and producers.count > 1:
        shown = [f"{name} (first with {producers.first.get(name, 0)} blocks)" for name in producers.live]
        click.echo(f"{producers.count} producers: {', '.join(shown)}", err=True)


def _say_half(what: str, half: Sequence[HalfPublished]) -> None:
    if half:
        names = [f"{'?' if one.number is None else one.number} (0x{one.hash.hex()})" for one in half[:_NAMED]]
        more = f" and {len(half) - _NAMED} more" if len(half) > _NAMED else ""
        click.echo(f"{len(half)} blocks {what}: {', '.join(names)}{more}", err=True)


class _Again:
    """Says that blocks are sent again: the first at once, of others now and then how many."""

    def __init__(self) -> None:
        self._said = -_AGAIN_SECONDS
        self._numbers: list[int] = []

    def __call__(self, payload: Payload, error: CardinalError) -> None:
        self._numbers.append(payload.number)
        now = time.monotonic()
        if now - self._said < _AGAIN_SECONDS:
            return
        lowest, count = min(self._numbers), len(self._numbers)
        what = f"block {lowest}" if count == 1 else f"{count} blocks, the lowest {lowest},"
        # Not err=True, which goes past whatever stands for standard error while a bar is drawn.
        click.echo(f"sends {what} again: {error}", file=sys.stderr)
        self._said = now
        self._numbers.clear()
