"""`cardinal selftest`: the streams core beside its model, over seeded schedules; or faults on a real broker."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cardinal.testing.scenario import PROFILES
from cardinal.testing.schedule import run_schedules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.server.faults.drills import Outcome


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="How many schedules.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first one's seed.")
@click.option("--profile", type=click.Choice(sorted(PROFILES)), default="quick", show_default=True)
@click.option("--quorum", is_flag=True, help="Only schedules in which a quorum of producers decides, not one in eight.")
@click.option("--faults", is_flag=True, help="Break a real broker, its network, a producer and a consumer instead.")
@click.option("--times", type=click.IntRange(1), default=3, show_default=True, help="With --faults: how often each.")
@click.option("--only", multiple=True, metavar="FAULT", help="With --faults: this one; may be given several times.")
def selftest(
    *, seeds: int, first: int, profile: str, quorum: bool, faults: bool, times: int, only: tuple[str, ...]
) -> None:
    """Run schedules of forks, several producers, faults, lies and restarts, and compare the result with a model.

    Prints one line for every schedule that differs; the line repeats it. The exit status is 1 if there is one.

    With --faults: brokers of our own are killed, stopped and cut off while a producer and a consumer work, and what
    was acknowledged and delivered is checked. Prints a table; the exit status is 1 if something did not hold.
    """
    if faults:
        sys.exit(0 if _break_things(only, times, first) else 1)
    began = time.perf_counter()
    differing = 0
    records = 0
    for outcome in run_schedules(seeds, first, PROFILES[profile], quorum=quorum):
        records += outcome.records
        if outcome.difference is not None:
            differing += 1
            click.echo(outcome.difference)
    seconds = time.perf_counter() - began
    click.echo(
        f"{seeds} schedules, {records} records: {differing} differ from the model, "
        f"{seconds:.1f} s ({seeds / seconds:.0f} schedules/s)"
    )
    if differing:
        sys.exit(1)


def _break_things(only: Sequence[str], times: int, seed: int) -> bool:
    """Play every fault, or only these; whether all held."""
    from cardinal.server.faults.drills import DRILLS, play  # noqa: PLC0415 - needs the embedded broker, `--help` does not

    names = [drill.fault for drill in DRILLS]
    if unknown := [name for name in only if name not in names]:
        raise click.UsageError(f"there is no fault {unknown[0]}; there are {', '.join(names)}")
    click.echo(f"{'fault':<18}{'what is done':<42}{'times':>6}{'acked':>8}{'blocks':>8}{'s':>7}  held")
    held = True
    # So that whatever was started is stopped on the way out, and the folder goes, as on Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        tempfile.TemporaryDirectory(prefix="cardinal-faults-") as folder,
        closing(play(Path(folder), only or names, times=times, seed=seed)) as outcomes,
    ):
        for drill, outcome in outcomes:
            held = held and not outcome.wrong
            click.echo(f"{drill.fault:<18}{drill.what:<42}{_line(outcome)}")
            if outcome.crashes:
                click.echo(f"    ended by a library's thread (librdkafka, issue 5280), and went on: {outcome.crashes}")
            for sentence in outcome.wrong:
                click.echo(f"    {sentence}")
    return held


def _line(outcome: Outcome) -> str:
    return (
        f"{outcome.injected:>6}{outcome.acknowledged:>8}{outcome.delivered:>8}{outcome.seconds:>7.1f}"
        f"  {'no' if outcome.wrong else 'yes'}"
    )
