"""`cardinal selftest`: the streams core beside its model, over seeded schedules."""

from __future__ import annotations

import sys
import time

import click

from cardinal.testing.scenario import PROFILES
from cardinal.testing.schedule import run_schedules


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="How many schedules.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first one's seed.")
@click.option("--profile", type=click.Choice(sorted(PROFILES)), default="quick", show_default=True)
def selftest(*, seeds: int, first: int, profile: str) -> None:
    """Run schedules of forks, several producers, faults, lies and restarts, and compare the result with a model.

    Prints one line for every schedule that differs; the line repeats it. The exit status is 1 if there is one.
    """
    began = time.perf_counter()
    differing = 0
    records = 0
    for outcome in run_schedules(seeds, first, PROFILES[profile]):
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
