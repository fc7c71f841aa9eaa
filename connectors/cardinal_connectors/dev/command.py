"""`cardinal node`: a development chain behind JSON-RPC. Arguments and printing only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING

import click

from .settings import DEFAULTS, DevSettings

if TYPE_CHECKING:
    from cardinal.testing.replay import Announce

    from .node import DevNode, Orphans


@click.command()
@click.option("--seed", default=DEFAULTS.seed, show_default=True, help="Everything random comes from it.")
@click.option("--blocks", default=DEFAULTS.blocks, show_default=True, help="The number of the last block.")
@click.option(
    "--reorg-rate", default=DEFAULTS.reorg_rate, show_default=True, help="The chance that a step is a reorg, 0 to 1."
)
@click.option("--max-depth", default=DEFAULTS.max_depth, show_default=True, help="The most that a reorg removes.")
@click.option("--rate", default=4.0, show_default=True, type=click.FloatRange(0.001, 10_000), help="Blocks a second.")
@click.option("--ahead", default=0, show_default=True, help="Be at this block at once, and play from there.")
@click.option("--transactions", default=DEFAULTS.transactions, show_default=True, help="The most in a block.")
@click.option("--chain-id", default=DEFAULTS.chain_id, show_default=True)
@click.option("--merged", is_flag=True, help="No difficulty, withdrawals and finality marks, as after the merge.")
@click.option("--orphans", default="keep", show_default=True, type=click.Choice(["keep", "forget"]))
@click.option("--announce", default="final", show_default=True, type=click.Choice(["final", "each", "silent"]))
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Default: a free one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the node listens.")
def node(
    *,
    rate: float,
    ahead: int,
    orphans: Orphans,
    announce: Announce,
    host: str,
    port: int,
    as_json: bool,
    **chain: int,
) -> None:
    """Run a development node (HTTP and WebSocket on one port) until Ctrl-C.

    The chain stops growing at its last block; the node goes on serving it.
    """
    from .node import DevNode  # noqa: PLC0415 - `--help` needs no extra

    made = DevNode(DevSettings(**chain), orphans=orphans, announce=announce)  # type: ignore[arg-type] # click knows the types
    made.step_to(ahead)
    asyncio.run(_serve(made, host, port, rate, as_json=as_json))


async def _serve(chain: DevNode, host: str, port: int, rate: float, *, as_json: bool) -> None:
    from cardinal.testing.node import JsonRpcNode  # noqa: PLC0415 - `--help` needs no extra

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with JsonRpcNode(chain, host=host, port=port) as served:
        if as_json:
            line = json.dumps(
                {"http": served.url, "ws": served.ws_url, "chain_id": chain.chain_id(), "pid": os.getpid()}
            )
        else:
            line = f"development chain {chain.chain_id()} at {served.url} and {served.ws_url}; Ctrl-C ends it"
        click.echo(line)
        playing = asyncio.create_task(chain.play(rate))
        waiting = asyncio.create_task(stopped.wait())
        await asyncio.wait({waiting, playing}, return_when=asyncio.FIRST_COMPLETED)
        if playing.done():
            playing.result()
            if not as_json:
                click.echo(f"the script has ended at block {chain.head()}, {chain.hash_at(chain.head())}")
        await waiting
        playing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await playing
