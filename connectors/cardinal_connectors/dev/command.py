"""`cardinal node`: a development chain behind JSON-RPC. Arguments and printing only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from dataclasses import dataclass

import click

from cardinal.testing.node import JsonRpcNode

from .chain import CHAIN_ID, DevChain, DevSettings
from .script import ScriptSettings


@click.command()
@click.option("--seed", default=1, show_default=True, help="Everything random comes from it.")
@click.option("--blocks", default=48, show_default=True, help="The number of the last block.")
@click.option("--reorg-rate", default=0.15, show_default=True, help="The chance that a step is a reorg, 0 to 0.5.")
@click.option("--rate", default=4.0, show_default=True, type=click.FloatRange(0.01, 1000), help="Steps a second.")
@click.option("--transactions", default=6, show_default=True, type=click.IntRange(1), help="The most in a block.")
@click.option("--chain-id", default=CHAIN_ID, show_default=True, type=click.IntRange(1))
@click.option("--wait", default=0, type=click.IntRange(0), help="Stay at the genesis block until so many subscribe.")
@click.option("--hold", type=click.IntRange(0), help="Stop growing at this block until SIGUSR1 comes.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Default: a free one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the node listens.")
def node(
    *,
    seed: int,
    blocks: int,
    reorg_rate: float,
    rate: float,
    transactions: int,
    chain_id: int,
    wait: int,
    hold: int | None,
    port: int,
    as_json: bool,
) -> None:
    """Run a development node (HTTP and WebSocket on one port) until Ctrl-C.

    The chain stops growing at its last block; the node goes on serving it.
    """
    script = ScriptSettings(seed=seed, blocks=blocks, reorg_rate=reorg_rate)
    chain = DevChain(DevSettings(script, chain_id, transactions))
    asyncio.run(_serve(chain, port, _Pace(rate, wait, hold), as_json=as_json))


@dataclass(frozen=True, slots=True)
class _Pace:
    """Steps a second, subscribers to wait for, and the height to hold at."""

    rate: float
    wait: int
    hold: int | None

    def may_step(self, chain: DevChain, *, released: bool) -> bool:
        held = self.hold is not None and chain.head() >= self.hold and not released
        return not (held or chain.finished or (chain.head() == 0 and chain.subscribers < self.wait))


async def _serve(chain: DevChain, port: int, pace: _Pace, *, as_json: bool) -> None:
    stopped, released = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGUSR1, released.set)
    async with JsonRpcNode(chain, port=port) as served:
        if as_json:
            click.echo(json.dumps({"http": served.url, "ws": served.ws_url, "pid": os.getpid()}))
        else:
            click.echo(f"development chain {chain.chain_id()} at {served.url} and {served.ws_url}; Ctrl-C ends it")
        while not stopped.is_set():
            if pace.may_step(chain, released=released.is_set()):
                chain.step()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), 1 / pace.rate)
