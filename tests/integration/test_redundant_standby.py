"""Several producers of one stream, each killed and restarted at random: the chain is the node's, and not sent twice."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import DEADLINE, Processes, fresh_chain_id
from kafka_streams import everything_on

from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.feeds import open_feed
from cardinal.protocols.streams import Completed, Divergence, Payload, Reassembler, split
from cardinal.protocols.streams.wire.messages import PING
from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as processes:
        yield processes


async def _given(url: str) -> list[Payload]:
    feed = open_feed(url)
    return [payload async for payload in feed.follow()]


def _node(chain_id: int, blocks: int, rate: float = 0) -> str:
    return f"dev://?seed=7&blocks={blocks}&reorg-rate=0.1&max-depth=4&chain-id={chain_id}&rate={rate}"


def _heaviest(blocks: list[Payload]) -> list[bytes]:
    by_hash = {block.hash: block for block in blocks}
    at: Payload | None = max(blocks, key=lambda block: block.weight)
    chain = []
    while at is not None:
        chain.append(at.hash)
        at = by_hash.get(at.parent)
    return chain[::-1]


class Crowd:
    """Producers of one stream, killed and restarted by a seed."""

    def __init__(self, processes: Processes, names: list[str], args: tuple[str, ...], seed: int) -> None:
        self._processes = processes
        self._args = args
        self._rng = random.Random(seed)
        self.running = {name: self._start(name) for name in names}
        self.kills = 0

    def _start(self, name: str) -> subprocess.Popen[str]:
        return self._processes.start("produce", "--producer-id", name, *self._args)

    def hurt(self, seconds: float) -> None:
        """For so long, kill one at random, and start it again a moment later; one is always left."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self._rng.uniform(0.3, 0.9))  # when, is part of the script
            name = self._rng.choice(sorted(self.running))
            process = self.running[name]
            if process.poll() is None:
                process.kill()
                process.wait(DEADLINE)
                self.kills += 1
            time.sleep(self._rng.uniform(0, 0.5))
            self.running[name] = self._start(name)

    def end(self) -> None:
        for process in self.running.values():
            status, _, said = self._processes.end(process)
            assert status == 0, said


def _published(stream: str, chain_id: int) -> tuple[set[bytes], set[bytes], int, int]:
    """What a reader of all records has: complete blocks, divergent ones, bytes of content, bytes of pings."""
    reassembler = Reassembler()
    records = everything_on(stream, apps.get("evm", chain_id=chain_id))
    events = list(reassembler.receive(sorted(records, key=lambda record: record.timestamp_ms)))
    whole = {event.payload.hash for event in events if isinstance(event, Completed)}
    divergent = {event.block_hash for event in events if isinstance(event, Divergence)}
    content = sum(len(r.key) + len(r.value) for r in records if r.key[0] != PING)
    pings = sum(len(r.key) + len(r.value) for r in records if r.key[0] == PING)
    return whole, divergent, content, pings


def _run(stream: str, processes: Processes, names: list[str], blocks: int, *, redundancy: str, seed: int) -> None:
    chain_id = fresh_chain_id()
    seconds = max(5.0, blocks / 60 - 2)
    args = ("--from", _node(chain_id, blocks, rate=60), "--to", stream, "--redundancy", redundancy)
    crowd = Crowd(processes, names, args, seed)
    crowd.hurt(seconds)
    crowd.end()
    assert crowd.kills >= 3
    given = asyncio.run(_given(_node(chain_id, blocks)))
    app = apps.get("evm", chain_id=chain_id)
    one = sum(len(m.key) + len(m.value) for p in given for m in split(p, app.topics, app.default_topic))
    whole, divergent, content, pings = _published(stream, chain_id)
    on_chain = _heaviest(given)
    assert set(on_chain) <= whole, "a block of the node's chain is not complete"
    assert whole <= {payload.hash for payload in given}
    assert not divergent
    chain: list[bytes] = []
    with Consumer(stream, app, idle_timeout=DEADLINE) as consumer:
        for update in consumer:
            for block in update.removed:
                assert chain.pop() == block.hash
            chain += [block.hash for block in update.added]
            if chain[-1] == on_chain[-1]:
                break
    assert chain == on_chain
    if redundancy == "standby":
        assert content + pings < 1.3 * one, (content / one, pings / one)
    else:
        assert content > 1.3 * one


def test_standby_producers_killed_at_random_publish_the_nodes_chain_hardly_more_than_once(
    cardinal_broker: EmbeddedKafka, processes: Processes
) -> None:
    stream = f"kafka://{cardinal_broker.bootstrap}"
    _run(stream, processes, ["one", "three", "two"], 420, redundancy="standby", seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redundancy", "options", "producers"),
    [("all", "", 2), ("standby", "", 5), ("standby", "?transactional=update", 2)],
)
def test_some_producers_killed_at_random(
    cardinal_broker: EmbeddedKafka, processes: Processes, redundancy: str, options: str, producers: int
) -> None:
    names = [f"producer-{number}" for number in range(producers)]
    stream = f"kafka://{cardinal_broker.bootstrap}{options}"
    _run(stream, processes, names, 420, redundancy=redundancy, seed=producers)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("redundancy", "options"), [("standby", ""), ("standby", "?transactional=update"), ("all", "")]
)
def test_two_to_five_producers_killed_at_random(
    cardinal_broker: EmbeddedKafka, processes: Processes, redundancy: str, options: str, seed: int
) -> None:
    names = [f"producer-{number}" for number in range(2 + seed % 4)]
    stream = f"kafka://{cardinal_broker.bootstrap}{options}"
    _run(stream, processes, names, 1500, redundancy=redundancy, seed=seed)
