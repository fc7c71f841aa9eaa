"""`cardinal lake`: run the pipeline, query a lake, maintain it. Arguments and printing only."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import signal
import sys
import tempfile
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cardinal import apps
from cardinal.errors import ConfigurationError, MissingExtraError
from cardinal.texts import Count

from .command_options import lake_option, open_snapshot, parse_options
from .query_command import query
from .spinner import Spinner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal_spark.lake.summary import ChainEnd
    from cardinal_spark.metrics import LakeMetrics
    from cardinal_spark.pipeline import BatchStatus, PipelineJob


@click.group()
def lake() -> None:
    """A lake of Delta tables that follows the chain.

    \b
    Examples:
      cardinal lake run --from kafka://localhost:9092 --to ./lake
      cardinal lake query ./lake "select count(*) from current_logs"
    """
    for module in ("pyarrow", "deltalake"):
        try:
            importlib.import_module(module)
        except ImportError:
            raise MissingExtraError("cardinal lake", "spark") from None


lake.add_command(query)


@lake.command()
@click.option("--from", "source", required=True, metavar="URL", help="The stream: kafka://host:port…")
@click.option("--to", "target", required=True, metavar="DIR", help="The lake: a folder or an object store's URL.")
@click.option("--app", "app_name", default=apps.DEFAULT, show_default=True, help="Application of the stream.")
@click.option("--chain-id", type=click.IntRange(1), help="Chain id of the stream, where the server has several.")
@click.option("--topic", help="Default topic of the stream, where it is not the application's own (needs --chain-id).")
@click.option(
    "--start", metavar="earliest|latest|NUMBER|TIME|CURSOR", help="First block of a new lake.  [default: earliest]"
)
@click.option("--config", metavar="FILE", help="TOML file that names streams (or set CARDINAL_CONFIG).")
@click.option("--checkpoint", metavar="DIR", help="The query's checkpoint  [default: in the lake]")
@click.option("--exit-at-end", is_flag=True, help="End at the current end of the stream.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Wait so long for the server and the stream.  [default: 60 for the stream, 0 for the server]",
)
@click.option("--trigger", default="1 second", show_default=True, help="Interval of batches, as in Spark.")
@click.option("--master", default="", metavar="URL", help="A Spark cluster  [default: this machine]")
@click.option("--cores", type=click.IntRange(1), default=2, show_default=True, help="Concurrent Spark tasks.")
@click.option(
    "--compact-every",
    type=click.IntRange(0),
    metavar="BATCHES",
    help="Compaction interval; 0: never.  [default: 256]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per batch.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve /metrics (Prometheus), /healthz and /readyz there.")
@lake_option
def run(
    *,
    source: str,
    target: str,
    app_name: str,
    chain_id: int | None,
    topic: str | None,
    start: str | None,
    config: str | None,
    checkpoint: str | None,
    exit_at_end: bool,
    wait: float | None,
    trigger: str,
    master: str,
    cores: int,
    compact_every: int | None,
    as_json: bool,
    metrics: str | None,
    options: tuple[str, ...],
) -> None:
    """Stream complete blocks into a lake, exactly once.

    It ends on SIGINT and SIGTERM; a restart resumes.

    \b
    Example:
      cardinal lake run --from kafka://localhost:9092 --to ./lake --exit-at-end
    """
    from cardinal_spark import pipeline  # noqa: PLC0415 - only this command needs Spark
    from cardinal_spark.session import local_session  # noqa: PLC0415 - the same

    named: dict[str, object] = {
        "app": app_name,
        "chainId": chain_id,
        "topic": topic,
        "startingOffsets": start,
        "config": config,
        "topicsTimeout": None if wait is None else math.ceil(wait),
    }
    chosen = parse_options(options) | {name: str(value) for name, value in named.items() if value is not None}
    if compact_every is not None:
        chosen["compactEvery"] = str(compact_every)
    job = pipeline.PipelineJob(source, target, checkpoint, exit_at_end, trigger, chosen)
    pipeline.check(job)
    if wait is not None:
        _wait_for(job, wait)
    stopping = threading.Event()
    nothing = True
    with contextlib.ExitStack() as closing:
        numbers = None if metrics is None else _answering(closing, metrics, job)
        java = closing.enter_context(tempfile.TemporaryFile())
        spinner = closing.enter_context(Spinner("Spark starts and reads the first batch"))
        spark = local_session(f"cardinal lake {target}", cores=cores, master=master, java_output=java)
        for number in (signal.SIGINT, signal.SIGTERM):  # after Spark, which sets a handler of its own
            signal.signal(number, lambda *_: stopping.set())
        for status in pipeline.run(spark, job, stopping, None if numbers is None else numbers.progress):
            spinner.stop()
            click.echo(json.dumps(asdict(status)) if as_json else _line(status))
            sys.stdout.flush()
            nothing = False
            if numbers is not None:
                numbers.batch(status)
    if nothing and not stopping.is_set():
        waits = " and that are as final as finality asks" if "finality" in job.options else ""
        click.echo(f"nothing new: the lake has all blocks that are on the topics{waits}", err=True)


def _wait_for(job: PipelineJob, seconds: float) -> None:
    """Wait for the server, and for the stream where no option names its chain, before Spark starts."""
    from cardinal.config.settings import find_url  # noqa: PLC0415 - `--help` needs no extra
    from cardinal.consumer import find_application  # noqa: PLC0415 - the same
    from cardinal.consuming.patience import Patience  # noqa: PLC0415 - the same
    from cardinal.transports import list_topics  # noqa: PLC0415 - the same
    from cardinal_spark.pipeline import source_options  # noqa: PLC0415 - the same

    options = {**job.options, **source_options(job)}
    url, chain = find_url(job.source, options.get("config")), options.get("chainId")
    app = options.get("app", apps.DEFAULT)
    Patience(seconds).answer(lambda: find_application(url, app) if chain is None else list_topics(url))


def _answering(stack: contextlib.ExitStack, address: str, job: PipelineJob) -> LakeMetrics:
    from cardinal.metrics import Endpoint  # noqa: PLC0415 - an extra of its own

    from .lake.state import find_state  # noqa: PLC0415 - `--help` needs no extra
    from .metrics import LakeMetrics  # noqa: PLC0415 - an extra of its own

    numbers, state = LakeMetrics(), find_state(job.location)
    if state is not None:
        numbers.set_head(state.number, state.seq)
    endpoint = stack.enter_context(contextlib.closing(Endpoint(address, numbers.registry, numbers.waits_for)))
    click.echo(f"metrics at http://{endpoint.address}/metrics", err=True)
    return numbers


def _line(status: BatchStatus) -> str:
    unfit = f"  {Count(status.unfit, 'block')} with a number that no column holds" if status.unfit else ""
    return (
        f"batch {status.batch:>6}  {Count(status.blocks, 'block')!s:>12}  {status.seconds:>7.2f} s  "
        f"head {status.number} {status.hash[:18]}…  seq {status.seq}{unfit}"
    )


@lake.command()
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@lake_option
def status(*, path: str, as_json: bool, options: tuple[str, ...]) -> None:
    """Print the state of the lake at PATH: both ends of its chain, rows, files and size of each table.

    Rows are all that are stored, also of blocks that left the chain; current_ views have fewer.

    \b
    Example:
      cardinal lake status ./lake --json
    """
    from cardinal_spark.lake.summary import chain_ends, table_sizes  # noqa: PLC0415 - `--help` needs no extra

    snapshot = open_snapshot(path, options)
    state, sizes, (oldest, head) = snapshot.state, table_sizes(snapshot), chain_ends(snapshot)
    if as_json:
        facts = {"seq": state.seq, "number": state.number, "hash": f"0x{state.hash.hex()}", "lineage": state.lineage}
        ends = {"oldest": _block_json(oldest), "head": _block_json(head)}
        sized = {size.name: {"rows": size.rows, "files": size.files, "bytes": size.bytes} for size in sizes}
        click.echo(
            json.dumps({**facts, **ends, "app": json.loads(state.app), "tables": snapshot.tables, "sizes": sized})
        )
        return
    click.echo(f"head   {_block_text(head)}  seq {state.seq}  {state.app}")
    click.echo(f"oldest {_block_text(oldest)}")
    click.echo(f"{'table':<14}{'rows':>14}{'files':>8}{'MB':>12}")
    for size in sizes:
        rows = "?" if size.rows is None else size.rows
        click.echo(f"{size.name:<14}{rows:>14}{size.files:>8}{size.bytes / 1e6:>12.2f}")
    click.echo(f"{'all':<14}{'':>14}{sum(size.files for size in sizes):>8}{sum(s.bytes for s in sizes) / 1e6:>12.2f}")
    click.echo(f"views: {', '.join(name for name in snapshot.tables if name.startswith('current_'))}")


def _block_json(end: ChainEnd) -> dict[str, object]:
    times = {"time": end.time, "published": end.published}
    return {
        "number": end.number,
        "hash": f"0x{end.hash.hex()}",
        **{name: time and time.isoformat() for name, time in times.items()},
    }


def _block_text(end: ChainEnd) -> str:
    time = end.time or end.published
    return f"{end.number} 0x{end.hash.hex()}" + (f"  {time:%Y-%m-%d %H:%M:%S} UTC" if time else "")


@lake.command()
@click.argument("path")
@click.option("--schema", default="cardinal", show_default=True, help="Schema of the tables: schema or catalog.schema.")
@click.option("--dialect", default="spark", show_default=True, help="spark (Databricks, EMR, Hive), trino or duckdb.")
@lake_option
def catalog(*, path: str, schema: str, dialect: str, options: tuple[str, ...]) -> None:
    """Print the SQL that registers the lake at PATH in a catalog, with its current_ views.

    \b
    Example:
      cardinal lake catalog ./lake --dialect trino
    """
    from cardinal_spark.lake.catalog import statements  # noqa: PLC0415 - `--help` needs no extra

    for line in statements(open_snapshot(path, options), schema, dialect):
        click.echo(line)


@lake.command()
@click.argument("path")
@click.option("--from", "source", metavar="URL", help="Compare it with this stream, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per difference.")
@lake_option
def check(*, path: str, source: str | None, as_json: bool, options: tuple[str, ...]) -> None:
    """Compare the tables of the lake at PATH with each other, and its chain and content with its stream's.

    Exits with status 1 where there are differences.

    \b
    Example:
      cardinal lake check ./lake --from kafka://localhost:9092
    """
    from cardinal_spark.lake.check import Check, stream_chain  # noqa: PLC0415 - `--help` needs no extra

    snapshot = open_snapshot(path, options)
    checking = Check(snapshot)
    found = 0
    streamed = () if source is None else checking.stream(stream_chain(source, snapshot.state.app))
    for difference in itertools.chain(checking.tables(), streamed):
        found += 1
        click.echo(json.dumps(asdict(difference)) if as_json else str(difference))
    compared = f"{Count(checking.blocks, 'block')} compared" + (
        f", {checking.stream_blocks} with the stream" if source else ""
    )
    click.echo(f"{Count(found, 'difference') if found else 'no differences'}; {compared}", err=as_json)
    if found:
        raise SystemExit(1)


def _columns(values: Sequence[str]) -> dict[str, list[str]]:
    """The columns of each table, parsed from comma-separated ``table=column``."""
    columns: dict[str, list[str]] = {}
    for value in ",".join(values).split(",") if values else ():
        table, equals, column = value.strip().partition("=")
        if not (table and equals and column):
            raise ConfigurationError(f"--z-order takes table=column, not {value!r}", setting="z-order")
        columns.setdefault(table, []).append(column)
    return columns


@lake.command()
@click.argument("path")
@click.option(
    "--min-files",
    type=click.IntRange(2),
    default=64,
    show_default=True,
    help="Small files that start a compaction.",
)
@click.option(
    "--z-order",
    multiple=True,
    metavar="TABLE=COLUMN,…",
    help="Sort the table, so that a filter on the column reads few files: logs=address,transactions=to_address. "
    "Rewrites the complete table with up to 1 GB of memory and temporary files; a range of blocks then reads every "
    "file. Stop the query before a sort of more than two minutes.",
)
@click.option("--no-clean", is_flag=True, help="Do not remove expired files.")
@click.option(
    "--retention-hours", type=click.IntRange(0), default=24, show_default=True, help="Longer than any query runs."
)
@lake_option
def maintain(
    *,
    path: str,
    min_files: int,
    z_order: tuple[str, ...],
    no_clean: bool,
    retention_hours: int,
    options: tuple[str, ...],
) -> None:
    """Compact the small files of the lake at PATH and remove the old ones, also while a query runs.

    \b
    Example:
      cardinal lake maintain ./lake --z-order logs=address
    """
    from cardinal_spark.lake import maintenance  # noqa: PLC0415 - `--help` needs no extra
    from cardinal_spark.lake.location import LakeLocation  # noqa: PLC0415 - the same

    location = LakeLocation.of(path, parse_options(options))
    done = maintenance.compact(location, min_files=min_files, z_order=_columns(z_order))
    for found in done:
        click.echo(f"{found.table}: {Count(found.removed, 'file')} became {found.added}")
    if not done:
        click.echo("nothing to compact")
    if not no_clean:
        click.echo(f"removed {Count(maintenance.clean(location, retention_hours=retention_hours), 'file')}")
