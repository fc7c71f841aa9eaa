"""`cardinal produce`: publish a node's blocks to a stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

import click

from cardinal import apps
from cardinal.cli.block_bar import NEAR_BLOCKS, BlockBar
from cardinal.cli.common import app_option, config_option, metrics_option, stream, wait_option
from cardinal.cli.positions import NODE, start_option, stop_option
from cardinal.cli.stopping import cancelled_when_told
from cardinal.config import schemes
from cardinal.config.settings import find_node
from cardinal.errors import ConfigurationError, DeliveryError
from cardinal.feeds import open_feed
from cardinal.server.log_fields import SENTENCE, LoggedHash
from cardinal.server.produce import Conditions, ProduceService, ProduceSettings
from cardinal.texts import Count, numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from cardinal.config.url import NodeUrl
    from cardinal.feeds import BlockFeed
    from cardinal.producing.survey.partial import PartialBlock
    from cardinal.server.produce import Progress
    from cardinal.server.produce.metrics import ProduceMetrics

LOG: Final = logging.getLogger("cardinal.produce")
_REPORT_SECONDS: Final = 2.0
_HEAD_SECONDS: Final = 60.0
"""Between two reports at the head, where each block would be one."""

_LOOK_SECONDS: Final = 0.2
_NAMED: Final = 10


@click.command()
@click.option(
    "--from",
    "from_url",
    required=True,
    metavar="URL",
    help="Node: http(s)://, ws(s)://, ipc:///socket (several with commas, options behind #), archive://, dev://",
)
@click.option(
    "--to",
    "to_url",
    required=True,
    metavar="URL",
    help="Stream: kafka://host:port, file:///folder; ingest nodes: ingest://host:port,host:port",
)
@start_option(
    help="First block of a new stream; a stream that has blocks continues after them. "
    "Default: latest, the node's head (archive:// and dev://: earliest).",
    default=None,
    kinds=NODE,
)
@click.option(
    "--start-total",
    metavar="TOTAL@HASH",
    help="Total difficulty of the block with this hash, for a new stream near it whose node serves none.",
)
@stop_option(help="Stop after this block (default: follow the head).")
@wait_option("Wait so long at the start for the node and the broker. Default: until they answer.")
@click.option("--lag", type=click.IntRange(0), help="Lag N blocks behind the head.", metavar="N")
@click.option("--finality", type=click.Choice(["safe", "finalized"]), help="Publish only blocks of this finality.")
@click.option("--state", is_flag=True, help="Also publish state deltas: accounts, code and storage.")
@click.option(
    "--workers",
    type=click.IntRange(0),
    help="Processes that verify a backfill (default: one per processor; none with --state).",
)
@app_option
@click.option("--topic", help="Default topic of the stream (default: the application's own).")
@click.option("--producer-id", help="Unique name of this producer on the stream (default: the host's name).")
@click.option("--chain-id", type=click.IntRange(1), help="Refuse a node of another chain.")
@click.option(
    "--redundancy",
    type=click.Choice(["all", "standby"]),
    default="all",
    show_default=True,
    help="all: always send; standby: send only what producers with lower ids do not.",
)
@click.option(
    "--allow-coverage-change",
    is_flag=True,
    help="Continue although this producer publishes different entries than recent blocks have.",
)
@click.option(
    "--no-reorg-channels",
    is_flag=True,
    help="Publish reorgs deeper than the threshold like any others: for streams that the Go implementation reads.",
)
@metrics_option
@config_option
def produce(
    *,
    from_url: str,
    to_url: str,
    start: str | int | datetime | None,
    stop: int | None,
    wait: float | None,
    lag: int | None,
    finality: str | None,
    state: bool,
    start_total: str | None,
    workers: int | None,
    app_name: str,
    topic: str | None,
    producer_id: str | None,
    chain_id: int | None,
    redundancy: Literal["all", "standby"],
    allow_coverage_change: bool,
    no_reorg_channels: bool,
    metrics: str | None,
    config: Path | None,
) -> None:
    """Publish a node's blocks: from where the topics end, then the head as it moves.

    Node and stream are URLs, or names of the file in --config. --lag, --finality, --state and --workers may also be
    set there, or behind a node URL's #, as in https://node#token_file=PATH&lag=3.
    With ingest:// the blocks are pushed to ingest nodes, which acknowledge, agree on and publish them.
    An unreachable node or broker is waited for, at the start no longer than --wait. Stops cleanly on SIGINT
    and SIGTERM. After any other end, start it again: missing blocks are published then.

    \b
    Example:
      cardinal produce --from ws://localhost:8546 --to kafka://localhost:9092 --metrics 127.0.0.1:9464
    """
    to = stream(to_url, config)
    if schemes.destination(to.scheme) is not None:
        given = {
            "--topic": topic is not None,
            "--redundancy standby": redundancy == "standby",
            "--allow-coverage-change": allow_coverage_change,
            "--no-reorg-channels": no_reorg_channels,
        }
        _refuse_for_destination(to.scheme, [name for name, is_given in given.items() if is_given])
    chosen = {"lag": lag, "finality": finality, "state": "yes" if state else None, "workers": workers}
    chosen["start.total"] = start_total
    options = {name: str(value) for name, value in chosen.items() if value is not None}
    node = find_node(from_url, config)
    if "://" in from_url:
        _refuse_contradictions(node, options)
    feed = open_feed(node.with_options(options), chain_id=chain_id)
    settings = ProduceSettings(
        producer_id or socket.gethostname(), redundancy, allow_coverage_change, not no_reorg_channels
    )
    presets = {} if topic is None else {"topic": topic}
    conditions = Conditions(patience=wait)

    def service(chain: int, collector: ProduceMetrics | None) -> ProduceService:
        app = apps.get(app_name, chain_id=chain, **presets)
        one = ProduceService(
            feed, to, app, settings=settings, start=start, stop=stop, observer=collector, conditions=conditions
        )
        if collector is not None:
            collector.app, collector.progress = app, lambda: one.progress
        return one

    with contextlib.ExitStack() as opened:
        collector = None if metrics is None else _metrics(metrics, conditions, opened)
        try:
            asyncio.run(_produce(feed, lambda chain: service(chain, collector), conditions))
        except ConfigurationError as error:
            if error.setting in ("start", "stop", "until"):
                raise click.UsageError(str(error)) from None
            raise


def _refuse_for_destination(scheme: str, given: Sequence[str]) -> None:
    """Refuse options that concern what a producer writes to topics: a destination writes them by itself."""
    if given:
        raise click.UsageError(
            f"{', '.join(given)} is of no use with {scheme}://: topics, redundancy and reorgs are matters of the other "
            "side, so leave it out"
        )


def _refuse_contradictions(url: NodeUrl, options: Mapping[str, str]) -> None:
    """Refuse an option that has another value behind the URL's ``#``."""
    for name, value in options.items():
        if (other := url.options.get(name, value)) != value:
            raise click.UsageError(f"{name} is {other[:20]!r} behind the URL's # and another by --{name}: set it once")


def _metrics(address: str, conditions: Conditions, opened: contextlib.ExitStack) -> ProduceMetrics:
    from cardinal.metrics import Endpoint  # noqa: PLC0415 - an extra of its own
    from cardinal.server.produce.metrics import ProduceMetrics  # noqa: PLC0415 - the same

    collector = ProduceMetrics(conditions=conditions)
    endpoint = opened.enter_context(Endpoint(address, collector.registry, collector.waits_for))
    LOG.info("metrics at http://%(address)s/metrics", {"kind": "metrics", "address": endpoint.address})
    return collector


async def _produce(feed: BlockFeed, service_of: Callable[[int], ProduceService], conditions: Conditions) -> None:
    service: ProduceService | None = None
    try:
        with cancelled_when_told():
            service = service_of(await conditions.answer(feed.chain_id))
            await service.prepare()
            _log_partial(
                "partially published where the topics end, completed from the node",
                service.progress.partial,
                logging.INFO,
            )
            await _until_stopped(service, asyncio.create_task(service.run()))
    except asyncio.CancelledError:
        pass  # stopped before it began
    finally:
        await (service or feed).close()


async def _until_stopped(service: ProduceService, running: asyncio.Task[None]) -> None:
    began = time.monotonic()
    try:
        with cancelled_when_told(running), BlockBar() as bar:
            await _reported(service, running, bar)
        with contextlib.suppress(asyncio.CancelledError):
            running.result()
    finally:
        await service.close()
        _log_end(service.progress, time.monotonic() - began)
    if service.unsealed:
        unsealed = Count(len(service.unsealed), "block was", "blocks were")
        raise DeliveryError(
            f"{unsealed} not acknowledged (the lowest is {service.unsealed[0].number}): "
            "start again, missing blocks are sent then",
            block_hash=service.unsealed[0].hash,
        )


async def _reported(service: ProduceService, running: asyncio.Task[None], bar: BlockBar) -> None:
    """Report progress until it has ended: by a bar where there is one, else by lines."""
    said, before = time.monotonic(), service.progress
    while not running.done():
        await asyncio.wait({running}, timeout=_LOOK_SECONDS)
        now, at = service.progress, time.monotonic()
        bar.report(now.number, now.target)
        if at - said >= _report_seconds(before, now):
            if now.stats.blocks != before.stats.blocks and not bar.drawn and now.number != bar.last:
                _log_progress(before, now, at - said)
            said, before = at, now


def _report_seconds(before: Progress, now: Progress) -> float:
    """Time between two snapshots that are reported: the line that the head is reached follows soon, the next do not."""
    at_head = all(
        one.number is not None and one.target is not None and one.target - one.number < NEAR_BLOCKS
        for one in (before, now)
    )
    return _HEAD_SECONDS if at_head else _REPORT_SECONDS


def _log_progress(before: Progress, now: Progress, seconds: float) -> None:
    """Log the rates between two snapshots, and the distance of what is published to the target."""
    blocks = (now.stats.blocks - before.stats.blocks) / seconds
    messages = (now.stats.messages - before.stats.messages) / seconds
    fields = {
        "kind": "progress",
        "block": now.number,
        "head": now.head,
        "lag": now.lag,
        "blocks_per_second": round(blocks, 3),
        "messages_per_second": round(messages, 3),
        "in_flight": now.stats.in_flight,
        "reorgs": Count(now.reorgs, "reorg"),
    }
    head = "" if now.head is None else ", node head %(head)d, lag %(lag)d"
    if now.lag >= NEAR_BLOCKS and blocks:
        fields["seconds_to_go"] = round(now.lag / blocks)
    eta = f", {timedelta(seconds=round(now.lag / blocks))} to go" if "seconds_to_go" in fields else ""
    LOG.info(
        f"block %(block)s{head}: %(blocks_per_second).1f blocks/s, %(messages_per_second).0f messages/s, "  # noqa: G004
        f"%(in_flight)d in flight, %(reorgs)s{eta}",
        fields,
    )


def _log_end(end: Progress, seconds: float) -> None:
    others = f", {Count(end.stats.skipped, 'block')} left to other producers" if end.stats.skipped else ""
    fields = {
        "kind": "end",
        "blocks": Count(end.stats.blocks, "block"),
        "messages": Count(end.stats.messages, "message"),
        "seconds": round(seconds, 3),
    }
    LOG.info(f"%(blocks)s, %(messages)s in %(seconds).1f s{others}", fields)  # noqa: G004 - no value
    if end.producers is not None and end.producers.count > 1:
        names = [
            f"{name} (first with {Count(end.producers.first.get(name, 0), 'block')})" for name in end.producers.live
        ]
        LOG.info(
            "%(count)d producers: %(names)s",
            {"kind": "producers", "count": end.producers.count, "names": ", ".join(names)},
        )
    below = [one for one in end.partial if one not in end.above]
    absent = [one for one in below if one.hash in end.absent]
    _log_partial("left partially published, because the node does not have them (consumers abandon them)", absent)
    _log_partial(
        "left partially published, not completed yet: the next start completes what the node has",
        [one for one in below if one not in absent],
    )
    _log_partial(
        "left partially published, because they are above what was followed (see --lag, --finality, --stop)", end.above
    )


def _log_partial(state: str, blocks: Sequence[PartialBlock], level: int = logging.WARNING) -> None:
    if blocks:
        names = [numbered(one.number, LoggedHash(one.hash)) for one in blocks[:_NAMED]]
        more = f" and {len(blocks) - _NAMED} more" if len(blocks) > _NAMED else ""
        fields = {
            "kind": "partial",
            "blocks": len(blocks),
            "message": f"{Count(len(blocks), 'block')} {state}: {', '.join(names)}{more}",
            "hashes": ",".join(f"0x{one.hash.hex()}" for one in blocks[:_NAMED]),
        }
        LOG.log(level, SENTENCE, fields)
