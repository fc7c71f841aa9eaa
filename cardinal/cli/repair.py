"""`cardinal repair`: complete a range of blocks on a stream."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final

import click

from cardinal import apps
from cardinal.cli.common import app_option, config_option, stream
from cardinal.cli.positions import NUMBER, start_option, stop_option
from cardinal.config.settings import find_node
from cardinal.errors import ConfigurationError
from cardinal.feeds import open_feed
from cardinal.server.produce.repair import Repaired, RepairRange
from cardinal.server.produce.repair import repair as complete
from cardinal.texts import numbered

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.feeds import BlockFeed
    from cardinal.protocols.streams.types import BlockRef
    from cardinal.transports import TransportUrl

LOG: Final = logging.getLogger("cardinal.repair")
_NAMED: Final = 10


@click.command()
@click.option("--from", "from_url", required=True, metavar="URL", help="Node: http(s)://, ws(s)://, dev://…")
@click.option("--to", "to_url", required=True, metavar="URL", help="Stream: kafka://host:port")
@start_option(help="First block of the range.", default=None, kinds=NUMBER, required=True)
@stop_option(help="Last block of the range.", required=True)
@click.option("--dry-run", is_flag=True, help="Only print what would be sent.")
@app_option
@click.option("--topic", help="Default topic of the stream (default: the application's own).")
@click.option("--producer-id", help="Producer id of the blocks, with -repair added (default: the host's name).")
@click.option("--chain-id", type=click.IntRange(1), help="Refuse a node of another chain.")
@config_option
def repair(
    *,
    from_url: str,
    to_url: str,
    start: int,
    stop: int,
    dry_run: bool,
    app_name: str,
    topic: str | None,
    producer_id: str | None,
    chain_id: int | None,
    config: Path | None,
) -> None:
    """Send the blocks of a range that the node has and that are missing or incomplete on the stream.

    `cardinal produce` does this near the end of a stream. Run it with --dry-run first.

    \b
    Example:
      cardinal repair --from ws://localhost:8546 --to kafka://localhost:9092 --start 100 --stop 200 --dry-run
    """
    # An id of its own: where updates are transactions, the id of a running `cardinal produce` would fence that one.
    to = stream(to_url, config)
    feed = open_feed(find_node(from_url, config), chain_id=chain_id)
    what = RepairRange(start, stop, producer_id or socket.gethostname(), dry_run)
    presets = {} if topic is None else {"topic": topic}
    try:
        _report(what, asyncio.run(_repair(feed, to, app_name, presets, what)))
    except ConfigurationError as error:
        if error.setting in ("start", "stop"):
            raise click.UsageError(str(error)) from None
        raise


async def _repair(
    feed: BlockFeed, to: TransportUrl, app_name: str, presets: dict[str, str], what: RepairRange
) -> Repaired:
    def sends(ref: BlockRef) -> None:
        click.echo(f"{'would send' if what.dry_run else 'sends'} block {ref.number} 0x{ref.hash.hex()}")

    try:
        app = apps.get(app_name, chain_id=await feed.chain_id(), **presets)
        return await complete(feed, to, app, what, sends)
    finally:
        await feed.close()


def _report(what: RepairRange, done: Repaired) -> None:
    LOG.info(
        "blocks %d to %d: %d complete, %d missing, %d partially published, %d sent",
        *(what.start, what.stop, done.complete, len(done.missing), len(done.partial), done.sent),
    )
    if done.left:
        names = ", ".join(numbered(ref.number, f"0x{ref.hash.hex()}") for ref in done.left[:_NAMED])
        more = f" and {len(done.left) - _NAMED} more" if len(done.left) > _NAMED else ""
        LOG.warning("left partially published, because the node does not have them: %s%s", names, more)
    if not done.looked:
        LOG.warning("the range is too wide to look for blocks without a Batch: repair it in parts for that")
