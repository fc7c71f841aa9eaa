"""Command `python -m tests.model`: runs seeded schedules of forks, producers, faults, lies and restarts."""

from __future__ import annotations

import sys
import time

import click

from .cluster_schedule import run_cluster
from .mesh_schedule import run_mesh
from .publish_network import run_network
from .publish_schedule import run_inputs
from .scenario import PROFILES
from .schedule import run_schedules

_OTHERS = {"publish": (run_inputs, run_network), "mesh": (run_mesh,), "cluster": (run_cluster,)}


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="Number of schedules.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="Seed of the first schedule.")
@click.option("--profile", type=click.Choice(sorted(PROFILES)), default="quick", show_default=True)
@click.option("--quorum", is_flag=True, help="Only schedules in which a quorum of producers decides, not one in eight.")
@click.option("--publish", "protocol", flag_value="publish", help="Publish: arbiter, model and network.")
@click.option("--mesh", "protocol", flag_value="mesh", help="Mesh: links between ingest nodes, with faults.")
@click.option("--cluster", "protocol", flag_value="cluster", help="Replication: clusters of ingest nodes, with faults.")
def main(*, seeds: int, first: int, profile: str, quorum: bool, protocol: str | None) -> None:
    """Run schedules against a protocol and its model, and compare the results; by default those of the streams core.

    Prints one line per schedule that differs; the line repeats it. The exit status is 1 if there is one.
    """
    began = time.perf_counter()
    if protocol is not None:
        broken = [line for seed in range(first, first + seeds) for run in _OTHERS[protocol] if (line := run(seed))]
        for line in broken:
            click.echo(line)
        seconds = time.perf_counter() - began
        click.echo(f"{seeds} schedules of {protocol}: {len(broken)} differ, {seconds:.1f} s ({seeds / seconds:.0f}/s)")
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
