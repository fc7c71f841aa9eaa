"""`cardinal produce`: a node's blocks to a stream."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from typing import TYPE_CHECKING

import click

from cardinal import apps
from cardinal.server.produce import Feed, ProduceService, ProduceSettings, Progress, open_feed
from cardinal.transports import parse_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.errors import CardinalError
    from cardinal.producing.published import HalfPublished
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.standby import ProducerCount

_REPORT_SECONDS = 2.0
_NAMED = 10


@click.command()
@click.option("--from", "from_url", required=True, metavar="URL", help="The node: http(s)://, ws(s)://, dev://…")
@click.option("--to", "to_url", required=True, metavar="URL", help="The stream: kafka://host:port")
@click.option("--start", type=click.IntRange(0), help="First block, where nothing is published yet (default 0).")
@click.option("--until", type=click.IntRange(0), help="Stop after this block (default: follow the head for ever).")
@click.option("--producer-id", help="This producer's name among those of the stream (default: the host's name).")
@click.option("--chain-id", type=click.IntRange(1), help="Refuse a node of another chain.")
@click.option(
    "--redundancy",
    type=click.Choice(["all", "standby"]),
    default="all",
    show_default=True,
    help="Beside other producers: send everything, or only what those with lower names leave out.",
)
@click.option("--allow-coverage-change", is_flag=True, help="Publish also where recent blocks have other entries.")
def produce(
    *,
    from_url: str,
    to_url: str,
    start: int | None,
    until: int | None,
    producer_id: str | None,
    chain_id: int | None,
    redundancy: str,
    allow_coverage_change: bool,
) -> None:
    """Publish a node's blocks: from where the topics end, then the head as it moves.

    Stops cleanly on SIGINT and SIGTERM. After any other end, start it again: what is missing is published then.
    """
    parse_url(to_url)
    feed = open_feed(from_url, chain_id=chain_id)
    settings = ProduceSettings(producer_id or socket.gethostname(), redundancy, allow_coverage_change)
    asyncio.run(_produce(feed, to_url, settings, start=start, until=until))


async def _produce(feed: Feed, to_url: str, settings: ProduceSettings, *, start: int | None, until: int | None) -> None:
    service: ProduceService | None = None
    try:
        app = apps.get("evm", chain_id=await feed.chain_id())
        service = ProduceService(feed, to_url, app, settings=settings, again=_say_again)
        published = await service.prepare()
        _say_half("half published where the topics end, sent again as the node gives them", service.progress.half)
        begins = f"continues after block {published[-1].number}" if published else "begins a stream"
        click.echo(f"{begins} on {parse_url(to_url)}", err=True)
        await _until_told(service, asyncio.create_task(service.run(published, start=start, until=until)))
    finally:
        await (service or feed).close()


async def _until_told(service: ProduceService, running: asyncio.Task[None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    began, reported = time.monotonic(), service.progress
    try:
        while not running.done():
            await asyncio.wait({running}, timeout=_REPORT_SECONDS)
            reported = _report(reported, service.progress, _REPORT_SECONDS)
        with contextlib.suppress(asyncio.CancelledError):
            running.result()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        await service.close()
        final, seconds = service.progress, time.monotonic() - began
        left = f", {final.skipped} blocks left to others" if final.skipped else ""
        click.echo(f"{final.blocks} blocks, {final.messages} messages in {seconds:.1f} s{left}", err=True)
        _say_producers(final.producers)
        _say_half("left half published, because the node did not give them (consumers expire them)", final.half)


def _report(before: Progress, now: Progress, seconds: float) -> Progress:
    if now.blocks != before.blocks and now.number is not None:
        blocks, messages = (now.blocks - before.blocks) / seconds, (now.messages - before.messages) / seconds
        click.echo(
            f"block {now.number}: {blocks:.0f} blocks/s, {messages:.0f} messages/s, {now.under_way} under way", err=True
        )
    return now


def _say_producers(producers: ProducerCount | None) -> None:
    if producers is not None and producers.count > 1:
        shown = [f"{name} (first with {producers.first.get(name, 0)} blocks)" for name in producers.live]
        click.echo(f"{producers.count} producers: {', '.join(shown)}", err=True)


def _say_half(what: str, half: Sequence[HalfPublished]) -> None:
    if half:
        names = [f"{'?' if one.number is None else one.number} (0x{one.hash.hex()})" for one in half[:_NAMED]]
        more = f" and {len(half) - _NAMED} more" if len(half) > _NAMED else ""
        click.echo(f"{len(half)} blocks {what}: {', '.join(names)}{more}", err=True)


def _say_again(payload: Payload, error: CardinalError) -> None:
    click.echo(f"sends block {payload.number} again: {error}", err=True)
