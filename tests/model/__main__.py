"""Command `python -m tests.model`: runs seeded schedules of forks, producers, faults, lies and restarts."""

from __future__ import annotations

import sys
import time

import click

from .mesh_schedule import run_mesh
from .publish_network import run_network
from .publish_schedule import run_inputs
from .scenario import PROFILES
from .schedule import run_schedules


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="Number of schedules.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="Seed of the first schedule.")
@click.option("--profile", type=click.Choice(sorted(PROFILES)), default="quick", show_default=True)
@click.option("--quorum", is_flag=True, help="Only schedules in which a quorum of producers decides, not one in eight.")
@click.option("--publish", is_flag=True, help="Schedules of the publish protocol: arbiter, model and network.")
@click.option("--mesh", is_flag=True, help="Schedules of faults between ingest nodes.")
def main(*, seeds: int, first: int, profile: str, quorum: bool, publish: bool, mesh: bool) -> None:
    """Run schedules against the streams core and its model, and compare the results.

    Prints one line per schedule that differs; the line repeats it. The exit status is 1 if there is one.
    """
    began = time.perf_counter()
    if mesh:
        broken = [line for seed in range(first, first + seeds) if (line := run_mesh(seed))]
        for line in broken:
            click.echo(line)
        click.echo(f"{seeds} schedules of mesh nodes: {len(broken)} differ, {time.perf_counter() - began:.1f} s")
        sys.exit(1 if broken else 0)
    if publish:
        lines = (line for seed in range(first, first + seeds) for line in (run_inputs(seed), run_network(seed)))
        broken = [line for line in lines if line]
        for line in broken:
            click.echo(line)
        seconds = time.perf_counter() - began
        click.echo(f"{seeds} schedules and networks of publishers: {len(broken)} differ, {seconds:.1f} s")
        sys.exit(1 if broken else 0)
    differing = records = 0
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
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main(prog_name="python -m tests.model")
