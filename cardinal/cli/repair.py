"""`cardinal repair`: complete a range of blocks on a stream by hand."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import click

from cardinal import apps
from cardinal.cli.common import config_option, stream
from cardinal.config.settings import find_node
from cardinal.feeds import BlockFeed, open_feed
from cardinal.server.repair import Repaired, Repairing
from cardinal.server.repair import repair as complete

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.protocols.streams.types import BlockRef
    from cardinal.transports import TransportUrl

_NAMED = 10


@click.command()
@click.option("--from", "from_url", required=True, metavar="URL", help="The node: http(s)://, ws(s)://, dev://…")
@click.option("--to", "to_url", required=True, metavar="URL", help="The stream: kafka://host:port")
@click.option("--first", required=True, type=click.IntRange(0), help="First block of the range.")
@click.option("--last", required=True, type=click.IntRange(0), help="Last block of the range.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@click.option("--producer-id", help="The name to send under, with -repair at its end (default: the host's).")
@click.option("--chain-id", type=click.IntRange(1), help="Refuse a node of another chain.")
@config_option
def repair(
    *,
    from_url: str,
    to_url: str,
    first: int,
    last: int,
    dry_run: bool,
    producer_id: str | None,
    chain_id: int | None,
    config: Path | None,
) -> None:
    """Send those blocks of a range again that the node has and the stream does not hold as a whole.

    `cardinal produce` does this by itself near the end of a stream. Run it with --dry-run first.
    """
    # A name of its own: where updates are transactions, that of the `cardinal produce` beside it would end that one.
    to = stream(to_url, config)
    feed = open_feed(find_node(from_url, config), chain_id=chain_id)
    what = Repairing(first, last, producer_id or socket.gethostname(), dry_run)
    _report(what, asyncio.run(_repair(feed, to, what)))


async def _repair(feed: BlockFeed, to: TransportUrl, what: Repairing) -> Repaired:
    def say(ref: BlockRef) -> None:
        click.echo(f"{'would send' if what.dry_run else 'sends'} block {ref.number} 0x{ref.hash.hex()}")

    try:
        return await complete(feed, to, apps.get("evm", chain_id=await feed.chain_id()), what, say)
    finally:
        await feed.close()


def _report(what: Repairing, done: Repaired) -> None:
    click.echo(
        f"blocks {what.first} to {what.last}: {done.complete} complete, {len(done.missing)} missing, "
        f"{len(done.half)} half published, {done.sent} sent",
        err=True,
    )
    if done.left:
        shown = [("?" if one.number is None else str(one.number), one.hash.hex()) for one in done.left[:_NAMED]]
        names = ", ".join(f"{number} (0x{block})" for number, block in shown)
        more = f" and {len(done.left) - _NAMED} more" if len(done.left) > _NAMED else ""
        click.echo(f"left half published, because the node does not have them: {names}{more}", err=True)
    if not done.looked:
        click.echo("the range is too wide to look for blocks without a Batch: repair it in parts for that", err=True)
