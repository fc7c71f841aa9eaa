"""A lone `cardinal produce`, killed at every moment that matters, again and again: the stream is the node's chain.

Nobody stands in for it. It is killed by the request that it makes just then, a moment after it: in the backfill, at
the seam between backfill and head, while it walks a reorg, while it asks for state. What it left is read back and gone
on from by the next; in the end every block of the node's chain is there, whole, once in the consumer's chain, with
the values that the feed gives, and nothing that the node did not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anvil_node import anvil
from commands import COMMAND, DEADLINE, fresh_chain_id
from ethereum_blocks import Built, grow, replay
from feeding import asynchronous, connected, everything, hashes, serving
from recording_proxy import recording_proxy

from cardinal import Consumer, Payload

if TYPE_CHECKING:
    from cardinal.protocols.streams import BlockRef
    from cardinal_devkit.kafka import EmbeddedKafka
    from cardinal_devkit.testing.replay import ReplayChain

Before = Callable[[str, Sequence[Any]], None]
Arm = Callable[[Before | None], None]
"""What sets who is told of a node's requests."""

LONGEST = 0.08
"""Seconds between the request at which a producer is killed and its death: some of what it had is published by then."""


class Mortal:
    """A producer that is killed and begun again.

    Arguments:
        log: where it says what it does.
        args: of the command.
        dice: moments.

    """

    def __init__(self, log: Path, args: Sequence[str], dice: random.Random) -> None:
        self.kills = 0
        self._log = log
        self._args = args
        self._dice = dice

    async def dies(self, arm: Arm, at: Callable[[str, Sequence[Any]], bool]) -> None:
        """Let it run until a request that is meant, and kill it a moment later."""
        dying = asyncio.Event()

        def before(method: str, params: Sequence[Any]) -> None:
            if at(method, params):
                dying.set()

        process = await self._begun()
        arm(before)
        try:
            await self._or_ended(process, dying)
            await asyncio.sleep(self._dice.uniform(0, LONGEST))
            assert process.returncode is None, self._log.read_text()
        finally:
            arm(None)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        self.kills += 1

    async def _or_ended(self, process: asyncio.subprocess.Process, dying: asyncio.Event) -> None:
        both = {asyncio.create_task(process.wait()), asyncio.create_task(dying.wait())}
        await asyncio.wait(both, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        assert dying.is_set(), f"it came to no such moment: {self._log.read_text()}"

    async def ends(self) -> None:
        """Let it come to its end."""
        process = await self._begun()
        try:
            async with asyncio.timeout(DEADLINE):
                assert await process.wait() == 0, self._log.read_text()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _begun(self) -> asyncio.subprocess.Process:
        with self._log.open("a") as said:
            return await asyncio.create_subprocess_exec(*COMMAND, *self._args, stderr=said)


BLOCKS = ("eth_getBlockByNumber", "eth_getBlockByHash")
"""Whatever a producer does, it asks for these, if only for the head."""


class Nth:
    """A request for a block (or of another kind), so-manieth at random; ``then`` is called with each one."""

    def __init__(self, dice: random.Random, most: int, *methods: str, then: Callable[[], None] = lambda: None) -> None:
        self._left = dice.randint(1, most)
        self._methods = methods or BLOCKS
        self._then = then

    def __call__(self, method: str, params: Sequence[Any]) -> bool:
        del params
        self._then()
        self._left -= method in self._methods
        return not self._left


def consumed(stream: str, chain_id: int) -> tuple[list[Payload], set[bytes]]:
    """The chain that a consumer's updates build, each step checked, and every block that it was ever given."""
    chain: list[Payload] = []
    ever: set[bytes] = set()
    with Consumer(stream, chain_id=chain_id, idle_timeout=3.0) as consumer:
        for update in consumer:
            for one in update.removed:
                assert chain.pop().hash == one.hash
            for one in update.added:
                assert isinstance(one, Payload)
                assert not chain or one.parent == chain[-1].hash, "a gap"
                assert one.hash not in {block.hash for block in chain}, "a double"
                chain.append(one)
                ever.add(one.hash)
    return chain, ever


def lasting(payload: Payload) -> dict[str, bytes]:
    """What of a block does not depend on when it was asked for."""
    return {path: value for path, value in payload.updates.items() if not path.endswith(("/n/safe", "/n/finalized"))}


async def assert_equal_to_the_feeds(chain: list[Payload], url: str, published: Sequence[BlockRef] = ()) -> None:
    async with connected(url) as feed:
        blocks = await everything(feed.follow(published, start=chain[0].number, until=chain[-1].number))
    assert [one.hash for one in chain] == [one.hash for one in blocks]
    for one, block in zip(chain, blocks, strict=True):
        assert lasting(one) == {**lasting(block), **_parts(block)}


def _parts(payload: Payload) -> dict[str, bytes]:
    """What the sub batches of a block hold, which is among a consumer's updates."""
    return {path: value for batch in payload.sub_batches.values() if batch for path, value in batch.updates.items()}


class Scripted:
    """A scripted chain of 260 blocks with 40 more to come, whose producer is killed. It ends at block 420."""

    def __init__(self, served: ReplayChain, chain: list[Built], mortal: Mortal, arm: Arm, dice: random.Random) -> None:
        self.ever = set(hashes(chain))
        self._served = served
        self._chain = chain
        self._mortal = mortal
        self._arm = arm
        self._dice = dice

    async def in_the_backfill(self, kills: int) -> None:
        for _ in range(kills):
            await self._mortal.dies(self._arm, Nth(self._dice, 150))

    async def at_the_seam(self, kills: int) -> None:
        """The head moves with every request, while the backfill ends and just after."""
        heads = iter(range(260, 300))

        def moves() -> None:
            self._served.set_head(self._chain[next(heads, 299)].name, announce="final")

        for _ in range(kills):
            await self._mortal.dies(self._arm, Nth(self._dice, 40, then=moves))
        self._served.set_head(self._chain[299].name, announce="silent")

    async def in_reorgs(self, kills: int) -> None:
        """While it walks down a new branch, or publishes it; then the branch may be gone for good."""
        for branch in "bcdefghijkl"[:kills]:
            depth = self._dice.randint(2, 30)
            new = self.branch(299 - depth, depth + self._dice.randint(1, 4), branch)
            head = partial(self._served.set_head, new[-1].name, announce="final")
            await self._mortal.dies(self._arm, Nth(self._dice, depth, then=head))
            if self._dice.random() < 0.5:
                for one in new:
                    self._served.forget(one.name)
            self._served.set_head(self._chain[299].name, announce="silent")

    def branch(self, number: int, count: int, name: str) -> list[Built]:
        """Blocks above one of the chain."""
        new = grow(self._chain[number], count, name)
        for one in new:
            self._served.add(one.block, one.receipts, one.uncles)
        self.ever |= set(hashes(new))
        return new


async def killed_everywhere(stream: str, folder: Path, kills: int, seed: int) -> None:
    dice, chain_id = random.Random(seed), fresh_chain_id()
    chain = grow(None, 300)
    served = replay(chain, chain_id=chain_id)
    served.set_head(chain[259].name, announce="silent")
    async with serving(served) as node:
        args = (
            "produce",
            "--from",
            f"{node.url}#batch=20&workers=0&poll=0.05",
            "--to",
            stream,
            "--start",
            "0",
            "--stop",
            "420",
        )
        mortal = Mortal(folder / "said", args, dice)
        script = Scripted(served, chain, mortal, partial(setattr, node, "before"), dice)
        await script.in_the_backfill(kills)
        await script.at_the_seam(kills)
        await script.in_reorgs(kills)
        last = script.branch(290, 130, "z")
        served.set_head(last[-1].name, announce="silent")
        await mortal.ends()
        assert mortal.kills == 3 * kills
        found, given = await asyncio.to_thread(consumed, stream, chain_id)
        assert [one.hash for one in found] == hashes([*chain[:291], *last])
        assert given <= script.ever, "a block that the node did not have"
        await assert_equal_to_the_feeds(found, node.url)


@pytest.mark.process
@asynchronous
async def test_a_file_equals_the_nodes_chain_after_kills_everywhere(tmp_path: Path) -> None:
    await killed_everywhere(f"file://{tmp_path}/log", tmp_path, 2, 1)


@pytest.mark.slow
@pytest.mark.broker
@asynchronous
async def test_topics_equal_the_nodes_chain_after_kills_everywhere(
    cardinal_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    await killed_everywhere(f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2", tmp_path, 3, 2)


LAST = "60"
"""The number of the last block of the real node's chain."""


async def killed_with_state(stream: str, folder: Path, kills: int, seed: int) -> None:
    """Kills of a producer with state deltas on a real node, in a backfill and in reorgs."""
    dice, chain_id = random.Random(seed), fresh_chain_id()
    async with anvil("--chain-id", str(chain_id)) as node, recording_proxy(node.url) as proxy:
        await node.mine(30, 2)
        source = f"{proxy.url}#batch=40&poll=0.05"
        args = ("produce", "--from", source, "--to", stream, "--state", "--start", "2", "--stop", LAST)
        mortal = Mortal(folder / "said", args, dice)
        arm: Arm = partial(setattr, proxy, "before")
        for method in ("debug_traceBlockByHash", "eth_getProof", *BLOCKS) * kills:
            await node.mine(2, 1)  # there is always something to do
            await mortal.dies(arm, Nth(dice, 5 if method in BLOCKS else 1, method))
        ever = {block["hash"] for block in await node.chain()}
        for _ in range(kills):
            await node.ask("anvil_reorg", dice.randint(4, 8), [])
            await node.mine(2, 2)
            ever |= {block["hash"] for block in await node.chain()}
            await mortal.dies(arm, Nth(dice, 6, "debug_traceBlockByHash"))
        height = int(await node.ask("eth_blockNumber"), 16)
        await node.mine(int(LAST) - height, 1)
        await mortal.ends()
        chain = await node.chain()
        ever |= {block["hash"] for block in chain}
        found, given = await asyncio.to_thread(consumed, stream, chain_id)
        assert [f"0x{one.hash.hex()}" for one in found] == [block["hash"] for block in chain[2:]]
        assert {f"0x{one.hex()}" for one in given} <= ever
        assert all(any("/a/" in path for path in one.updates) for one in found)
        await assert_equal_to_the_feeds(found, f"{node.url}#state=yes")
    assert mortal.kills == 5 * kills


@pytest.mark.slow
@pytest.mark.node
@asynchronous
async def test_a_file_has_the_state_of_every_block_after_kills(tmp_path: Path) -> None:
    await killed_with_state(f"file://{tmp_path}/log", tmp_path, 1, 3)


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.broker
@asynchronous
async def test_topics_have_the_state_of_every_block_after_kills(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    await killed_with_state(f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2", tmp_path, 2, 4)
