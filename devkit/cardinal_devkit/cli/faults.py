"""`cardinal faults`: the fault kit on a handler of yours. Arguments and printing only."""

from __future__ import annotations

import sys
import time

import click

from cardinal.texts import Count
from cardinal_devkit.faultkit import APPS, FaultKit, Settings


@click.command()
@click.option(
    "--handler",
    required=True,
    metavar="MODULE:NAME",
    help="Class or function that opens the handler: package.module:name or file.py:name.",
)
@click.option("--app", type=click.Choice(APPS), default=APPS[0], show_default=True, help="Content of the blocks.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="Number of runs with faults; one without any is first.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the first run.")
@click.option("--blocks", type=click.IntRange(3, 200), default=12, show_default=True, help="Length of each chain.")
@click.option("--missing", is_flag=True, help="Deliver some blocks as MissingPayload.")
@click.option("--timeout", type=click.IntRange(1), default=30, show_default=True, help="Seconds for one process.")
@click.option("--script", metavar="STEPS", help="Repeat this run only, and show the handler's output.")
def faults(
    *, handler: str, app: str, seeds: int, seed: int, blocks: int, missing: bool, timeout: int, script: str | None
) -> None:
    """Run a handler on chains with forks while its process is killed, and compare its state with the chain's.

    The handler is opened with a directory, and has three methods: handle(update) applies a ChainUpdate and stores its
    cursor, cursor() returns the stored cursor or None, state() returns plain data that follows from the chain.

    Prints the shortest failing run found and the command that repeats it. The exit status is 1 if there is one.

    \b
    Example:
      cardinal faults --handler balances.py:Balances --app evm
    """
    settings = Settings(
        seeds=seeds,
        first=seed,
        blocks=blocks,
        app=app,
        missing=missing,
        timeout=timeout,
        verbose=script is not None,
    )
    began = time.perf_counter()
    with FaultKit(handler, settings) as kit:
        failure = kit.search() if script is None else kit.play(script)
        counts = kit.counts
    if failure is not None:
        click.echo(failure.story)
        sys.exit(1)
    click.echo(
        f"{Count(counts.runs, 'run')} of {handler}: {Count(counts.blocks, 'block')}, {Count(counts.reorgs, 'reorg')}, "
        f"{Count(counts.kills, 'kill')}, {Count(counts.restarts, 'restart')}; the state is the chain's after every run "
        f"({time.perf_counter() - began:.1f} s)"
    )
