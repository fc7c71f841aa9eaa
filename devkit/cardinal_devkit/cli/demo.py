"""`cardinal demo`: a whole deployment on this machine, which checks itself. Arguments and printing only."""

from __future__ import annotations

import shutil
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from cardinal import apps
from cardinal.cli.blocks import facts_of, reorg_line
from cardinal.errors import ConfigurationError, MissingExtraError
from cardinal.texts import Count, short_hash
from cardinal_devkit.cli.jar_bar import JarBar

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from cardinal.apps import Application
    from cardinal.protocols.streams.events import ChainUpdate
    from cardinal_devkit.demo.run import Outcome
    from cardinal_devkit.kafka.jars import Jar

_MARKER: Final = ".cardinal-demo"
_ROWS: Final = 16
_CLUSTER: Final = 3


@click.command()
@click.option("--blocks", default=48, show_default=True, type=click.IntRange(2, 2000), help="Length of the chain.")
@click.option("--seed", default=7, show_default=True, help="Of the chain; the same seed plays the same blocks.")
@click.option("--rate", default=4.0, show_default=True, type=click.FloatRange(0.1, 100), help="Blocks a second.")
@click.option("--no-spark", is_flag=True, help="Leave Spark and the lake out.")
@click.option("--ingest", is_flag=True, help="Through an ingest node: two publishers instead of two producers.")
@click.option("--cluster", is_flag=True, help="Through three ingest nodes; their leader and a publisher are killed.")
@click.option("--dir", "folder", default="cardinal-demo", show_default=True, help="Where the lake and the logs go.")
def demo(*, blocks: int, seed: int, rate: float, no_spark: bool, ingest: bool, cluster: bool, folder: str) -> None:
    """Node, two producers, Kafka, a consumer and Spark on this machine, until the lake equals the chain.

    Ends by itself; exit status 0 only if the lake and the consumer's chain equal the node's.

    \b
    Example:
      cardinal demo --blocks 100 --rate 10 --dir ./demo
      cardinal demo --cluster
    """
    try:
        from cardinal_devkit.demo.run import CHAIN_ID, Demo, DemoSettings  # noqa: PLC0415 - `--help` needs no extra
    except ModuleNotFoundError:
        raise MissingExtraError("The demo", "demo") from None
    nodes = _CLUSTER if cluster else int(ingest)
    settings = DemoSettings(_fresh(Path(folder).absolute()), seed, blocks, rate, spark=not no_spark, ingest_nodes=nodes)
    with Screen(Console(), apps.get("evm", chain_id=CHAIN_ID)) as screen:
        outcome = Demo(settings, screen).play()
    _report(outcome)
    if outcome.differences:
        sys.exit(1)


def _fresh(folder: Path) -> Path:
    """An empty folder; what an earlier demo left there goes."""
    if folder.exists():
        if not folder.is_dir() or (not (folder / _MARKER).exists() and any(folder.iterdir())):
            raise ConfigurationError(f"{folder} exists and is no demo's: name another folder by --dir", setting="dir")
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True)
        (folder / _MARKER).touch()
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be made: {error.strerror}", setting="dir") from None
    return folder


class Screen:
    """A live table in a terminal, plain lines elsewhere. A context manager."""

    def __init__(self, console: Console, app: Application) -> None:
        self._console = console
        self._app = app
        self._jars = JarBar()
        self._lines: deque[Text] = deque(maxlen=_ROWS)
        self._notes: deque[str] = deque(maxlen=6)
        self._lake = ""
        self._waits: Progress | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jars.__exit__(kind, error, trace)
        if self._live is not None:
            self._live.stop()

    def jar(self, jar: Jar, received: int) -> None:
        """A jar of the broker is being fetched."""
        self._jars.report(jar, received)

    def note(self, text: str) -> None:
        """Something was started, or is done."""
        self._notes.append(text)
        self._show(Text(f"· {text}", style="dim"))

    def wait(self, text: str) -> None:
        """Something takes long: elapsed seconds, until an empty text."""
        if text:
            self._waits = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._waits.add_task(text, total=None)
            self._show(Text(f"· {text} …"))
        elif self._waits is not None:
            self._waits = None
            self._draw()

    def update(self, update: ChainUpdate) -> None:
        """The consumer delivered an update."""
        if update.removed:
            self._line(reorg_line(update), "yellow")
        for sign, style, blocks in (("-", "red", update.removed), ("+", "green", update.added)):
            for block in blocks:
                facts = facts_of(self._app, block)
                count, (name, *_) = facts.first_count(), facts.counts
                content = "missing" if count is None else str(Count(count, name.removesuffix("s")))
                self._line(f"{sign} {block.number:>5}  {short_hash(block.hash)}  {content}", style)

    def batch(self, number: int, blocks: int, head: int, seconds: float) -> None:
        """Spark wrote a batch."""
        self._lake = f"lake: batch {number}, {Count(blocks, 'row')} in {seconds:.1f} s, head {head}"
        self._show(Text(self._lake, style="cyan"))

    def _line(self, text: str, style: str) -> None:
        line = Text(text, style)
        self._lines.append(line)
        self._show(line)

    def _show(self, line: Text) -> None:
        if not self._console.is_terminal:
            click.echo(line.plain)
            return
        if self._live is None:
            self._jars.__exit__(None, None, None)
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        self._draw()

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self.panel())

    def panel(self) -> Group:
        """The panel as a terminal shows it: the notes, the newest chain updates, and the lake."""
        table = Table(title="chain updates", expand=True, show_header=False)
        for row in self._lines:
            table.add_row(row)
        lake = Text(self._lake, style="cyan") if self._waits is None else self._waits
        return Group(Text("\n".join(self._notes), style="dim"), table, lake)


def _report(outcome: Outcome) -> None:
    depths = ", ".join(
        f"{reorg.removed}→{reorg.added}{' (shorter)' if reorg.added < reorg.removed else ''}"
        for reorg in outcome.reorgs
    )
    click.echo(f"blocks   {outcome.blocks} on the node's chain")
    click.echo(f"reorgs   {len(outcome.reorgs)}: removed→added {depths or 'none'}")
    for kill in outcome.kills:
        click.echo(
            f"killed   {kill.name}, {kill.role}, at block {kill.block}; "
            f"restarted at block {kill.resumed}, back after {kill.seconds:.1f} s"
        )
    if outcome.lake is not None:
        click.echo(f"         {outcome.across_batches} across a boundary of Spark batches")
        rows = ", ".join(f"{name} {count}" for name, count in outcome.rows.items())
        click.echo(f"rows     {rows}")
        click.echo(f"lake     {outcome.lake}")
        _sample(outcome.lake, outcome.blocks)
    for difference in outcome.differences[:20]:
        click.echo(f"DIFFERS  {difference}")
    what = "consumer and lake equal" if outcome.lake is not None else "the consumer's chain equals"
    verdict = f"{what} the node's chain" if not outcome.differences else "NOT equal to the node's chain"
    click.echo(f"result   {verdict} ({outcome.seconds:.0f} s)")


def _sample(lake: Path, blocks: int) -> None:
    from cardinal_devkit.demo.cast import cardinal  # noqa: PLC0415 - `--help` needs no extra

    arguments = ["--table", "current_blocks", "--columns", "number,transaction_count,gas_used,hash"]
    arguments += ["--from-block", str(max(0, blocks - 3))]
    click.echo(f"try      cardinal lake query {lake} {' '.join(arguments)}")
    for line in cardinal("lake", "query", str(lake), *arguments).splitlines():
        click.echo(f"         {line}")
