"""`cardinal dev-node`: a development chain behind JSON-RPC. Arguments and printing only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Final

import click

from .settings import DEFAULTS, DevSettings

if TYPE_CHECKING:
    from cardinal_devkit.testing.replay import Announce

    from .node import DevNode, Orphans

_LOOK_SECONDS: Final = 0.05


@click.command("dev-node")
@click.option(
    "--seed", default=DEFAULTS.seed, show_default=True, help="Seed of the chain; the same seed, the same blocks."
)
@click.option("--blocks", default=DEFAULTS.blocks, show_default=True, help="Number of the last block.")
@click.option(
    "--reorg-rate", default=DEFAULTS.reorg_rate, show_default=True, help="Probability that a step is a reorg, 0 to 1."
)
@click.option("--max-depth", default=DEFAULTS.max_depth, show_default=True, help="Most blocks that a reorg removes.")
@click.option("--rate", default=4.0, show_default=True, type=click.FloatRange(0.001, 10_000), help="Blocks per second.")
@click.option(
    "--wait",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Produce no block before this many clients subscribed to new heads.",
)
@click.option("--hold", type=click.IntRange(0), help="From this block on, stop before each reorg until SIGUSR1.")
@click.option("--ahead", default=0, show_default=True, help="Number of the head when the node starts.")
@click.option("--transactions", default=DEFAULTS.transactions, show_default=True, help="Most transactions in a block.")
@click.option("--chain-id", default=DEFAULTS.chain_id, show_default=True, help="Chain id that the node reports.")
@click.option("--merged", is_flag=True, help="Blocks as after the merge: no difficulty, withdrawals, finality.")
@click.option(
    "--orphans",
    default="keep",
    show_default=True,
    type=click.Choice(["keep", "forget"]),
    help="Keep blocks that a reorg removed retrievable by hash, or forget them.",
)
@click.option(
    "--announce",
    default="final",
    show_default=True,
    type=click.Choice(["final", "each", "silent"]),
    help="New heads of a reorg that subscribers receive: only the final one, each one, or none ever.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port to listen on.  [default: a free one]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the node listens.")
def dev_node(
    *,
    rate: float,
    wait: int,
    hold: int | None,
    ahead: int,
    orphans: Orphans,
    announce: Announce,
    host: str,
    port: int,
    as_json: bool,
    **chain: int,
) -> None:
    """Run a development node: HTTP and WebSocket JSON-RPC on one port.

    The chain stops growing at its last block; the node serves it until SIGINT or SIGTERM.

    \b
    Example:
      cardinal dev-node --port 8545 --reorg-rate 0.2 --blocks 1000
    """
    from .node import DevNode  # noqa: PLC0415 - `--help` needs no extra

    made = DevNode(DevSettings(**chain), orphans=orphans, announce=announce)  # type: ignore[arg-type] # click knows the types
    made.step_to(ahead)
    asyncio.run(_serve(_Course(made, rate, wait, hold, as_json=as_json), host, port))


class _Course:
    """Course of the chain: its pace and pauses, and their output."""

    def __init__(self, chain: DevNode, rate: float, wait: int, hold: int | None, *, as_json: bool) -> None:
        self.chain = chain
        self.as_json = as_json
        self.released = asyncio.Event()
        self._rate = rate
        self._wait = wait
        self._hold = hold

    async def play(self) -> None:
        """Play the script to its end."""
        await self.chain.play(self._rate, self._before)

    async def _before(self) -> None:
        while self.chain.subscribers < self._wait and not self.chain.head():  # noqa: ASYNC110 - the node has no event
            await asyncio.sleep(_LOOK_SECONDS)
        if self._hold is not None and self.chain.head() >= self._hold and self.chain.reorg_is_next:
            head = self.chain.head()
            self.report({"held": head}, f"held at block {head}, before a reorg: SIGUSR1 resumes")
            await self.released.wait()
            self.released.clear()

    def report(self, value: dict[str, object], sentence: str) -> None:
        """Print one line."""
        click.echo(json.dumps(value) if self.as_json else sentence)


async def _serve(course: _Course, host: str, port: int) -> None:
    from cardinal_devkit.testing.node import JsonRpcNode  # noqa: PLC0415 - `--help` needs no extra

    chain, loop, stopped = course.chain, asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGUSR1, course.released.set)
    async with JsonRpcNode(chain, host=host, port=port) as served:
        course.report(
            {"http": served.url, "ws": served.ws_url, "chain_id": chain.chain_id(), "pid": os.getpid()},
            f"development chain {chain.chain_id()} at {served.url} and {served.ws_url}; Ctrl-C ends it",
        )
        playing = asyncio.create_task(course.play())
        waiting = asyncio.create_task(stopped.wait())
        await asyncio.wait({waiting, playing}, return_when=asyncio.FIRST_COMPLETED)
        if playing.done():
            playing.result()
            if not course.as_json:
                click.echo(f"the script has ended at block {chain.head()}, {chain.hash_at(chain.head())}")
        await waiting
        playing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await playing
