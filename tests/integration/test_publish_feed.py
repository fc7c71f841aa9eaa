"""`cardinal produce --to ingest://` on real nodes and a real broker, and processes that are killed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import DEADLINE, Processes, fresh_chain_id, run_here
from long_runs import Reading

from cardinal import Consumer, Payload
from cardinal.config.url import parse_url
from cardinal.embedded import free_port
from cardinal.errors import UnreachableError
from cardinal.feeds import open_feed
from cardinal.publishing.nodes import IngestNodes
from ingesting import node

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen

    from cardinal.embedded import EmbeddedKafka


def chain_of(feed: str) -> list[Payload]:
    """The chain on which a development feed ends."""

    async def read() -> dict[bytes, Payload]:
        return {payload.hash: payload async for payload in open_feed(feed).follow()}

    seen = asyncio.run(read())
    chain = [next(reversed(seen.values()))]
    while chain[-1].number:
        chain.append(seen[chain[-1].parent])
    return chain[::-1]


def read_again(url: str, chain_id: int) -> list[Payload]:
    """The chain that a consumer of everything on the topics has."""
    chain: list[Payload] = []
    with Consumer(url, chain_id=chain_id, until="end") as consumer:
        for update in consumer:
            for removed in update.removed:
                assert chain.pop().hash == removed.hash
            chain += [added for added in update.added if isinstance(added, Payload)]
    return chain


def until(condition: Callable[[], bool], *running: Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in running)
        time.sleep(0.02)


def last_of(address: str) -> int:
    """The last block that a node acknowledged; -1 before the first."""
    try:
        last = asyncio.run(IngestNodes(parse_url(f"ingest://{address}"), "test").status()).last
    except UnreachableError:
        last = None
    return -1 if last is None else last


@pytest.mark.slow
@pytest.mark.broker
def test_a_feed_with_reorgs_reaches_a_consumer_though_node_and_publisher_are_killed(
    cardinal_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    url, chain_id, port = f"kafka://{cardinal_broker.bootstrap}", fresh_chain_id(), free_port()
    feed = f"dev://?blocks=200&seed=5&reorg-rate=0.25&rate=40&chain-id={chain_id}"
    listen, topic = f"127.0.0.1:{port}", f"cardinal-{chain_id}"
    more = ("--chain-id", str(chain_id))

    with Processes(tmp_path) as processes:

        def produce() -> Popen[str]:
            return processes.start("produce", "--from", feed, "--to", f"ingest://{listen}", "--producer-id", "one")

        with node(url, topic, tmp_path / "data", *more, app="evm", listen=listen):
            publisher = produce()
            reading = Reading(url, chain_id)
            until(lambda: last_of(listen) > 50, publisher)
        with node(url, topic, tmp_path / "data", *more, app="evm", listen=listen):  # the first was killed
            until(lambda: last_of(listen) > 100, publisher)
            publisher.send_signal(signal.SIGKILL)
            publisher.wait(DEADLINE)
            code, _, log = processes.end(produce())
            assert code == 0, log
            expected = chain_of(feed)
            assert len(expected) == 201
            asyncio.run(reading.reaches(expected[-1].hash))
            reading.close()
            assert read_again(url, chain_id) == expected
    assert reading.chain == expected, f"it began at block {reading.chain[0].number}"
    assert reading.reorgs


@pytest.mark.broker
def test_the_next_node_of_the_url_gets_the_blocks_while_one_is_away(
    cardinal_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    url, chain_id, port = f"kafka://{cardinal_broker.bootstrap}", fresh_chain_id(), free_port()
    feed = f"dev://?blocks=100&seed=5&reorg-rate=0&rate=30&chain-id={chain_id}"
    first, topic, more = f"127.0.0.1:{port}", f"cardinal-{chain_id}", ("--chain-id", str(chain_id))
    with (
        Processes(tmp_path) as processes,
        node(url, topic, tmp_path / "b", *more, "--node-id", "b", app="evm") as (_, other),
    ):
        to = f"ingest://{first},127.0.0.1:{other}"
        with node(url, topic, tmp_path / "a", *more, app="evm", listen=first):
            publisher = processes.start("produce", "--from", feed, "--to", to)
            reading = Reading(url, chain_id)
            until(lambda: last_of(first) > 20 and bool(reading.chain), publisher)  # the other begins above
        code, _, log = processes.end(publisher)
        assert code == 0, log
        assert f"blocks go to the ingest node 127.0.0.1:{other}" in log
        with node(url, topic, tmp_path / "a", *more, app="evm", listen=first):  # promotes what it acknowledged
            expected = chain_of(feed)
            asyncio.run(reading.reaches(expected[-1].hash))
            reading.close()
    assert reading.chain == expected


@pytest.mark.slow
def test_the_feed_is_read_again_for_a_node_that_has_lost_its_disk(tmp_path: Path) -> None:
    chain_id, port = fresh_chain_id(), free_port()
    listen, more = f"127.0.0.1:{port}", ("--chain-id", str(chain_id), "--first", "0")
    feed = f"dev://?blocks=150&seed=5&reorg-rate=0&rate=50&chain-id={chain_id}"
    with Processes(tmp_path) as processes:
        with node("null://", "any", tmp_path / "data", *more, app="evm", listen=listen):
            publisher = processes.start("produce", "--from", feed, "--to", f"ingest://{listen}")
            until(lambda: last_of(listen) > 60, publisher)
        shutil.rmtree(tmp_path / "data")
        with node("null://", "any", tmp_path / "data", *more, app="evm", listen=listen):
            code, _, log = processes.end(publisher)
    assert code == 0, log
    assert "needs block 0: publish again from there: the feed is read again" in log


def test_options_of_topics_are_refused_with_ingest_nodes(capfd: pytest.CaptureFixture[str]) -> None:
    options = ("--redundancy", "standby", "--topic", "other")
    code, _, said = run_here(capfd, "produce", "--from", "dev://", "--to", "ingest://127.0.0.1", *options)
    assert code == 2
    assert "--topic, --redundancy standby is of no use with ingest://" in " ".join(said.split())
    code, _, said = run_here(capfd, "tail", "ingest://127.0.0.1:1")
    assert code != 0
    assert "on their Kafka topics" in " ".join(said.split())
