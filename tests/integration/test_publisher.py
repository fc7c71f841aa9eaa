"""The publisher on real ingest nodes: acknowledgements, reorgs, nodes that are behind, TLS, errors, feeds."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import DEADLINE, Processes, fresh_chain_id, run_here
from long_runs import CheckedChain, reading_of

import waiting
from cardinal import BlockRef, Consumer, Payload
from cardinal.apps import get
from cardinal.apps.blob import Blob, payload
from cardinal.config.url import parse_url
from cardinal.errors import (
    ApplicationError,
    CardinalError,
    ConfigurationError,
    LocalProtocolError,
    NodeBehindError,
    OrphanedError,
    OversizeError,
    RefusedError,
    TransportError,
    UnreachableError,
)
from cardinal.feeds import open_feed
from cardinal_devkit.kafka import free_port
from cardinal_ingest import Publisher, items
from cardinal_ingest.node.store import BodyStore
from cardinal_ingest.publisher.nodes import IngestNodes
from certificates import Authority
from ingesting import header, node, proof

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen

    from cardinal_devkit.kafka import EmbeddedKafka

APP = get("blob", chain_id=1, reorg_threshold=16)


def hash_of(name: str) -> bytes:
    """Of a block such as ``12b``."""
    return bytes([int(name[:-1]) + 1, ord(name[-1])]) + bytes(30)


def block(name: str, parent: str | None = None) -> Payload:
    number = int(name[:-1])
    below = parent or f"{number - 1}{name[-1]}"
    return payload(Blob(number, hash_of(name), hash_of(below), {"key": name.encode()}))


def line(first: int, last: int, branch: str = "a") -> list[Payload]:
    return [block(f"{number}{branch}") for number in range(first, last + 1)]


def dev_blocks(chain_id: int, last: int) -> list[Payload]:
    """A development chain's blocks up to a number, without reorgs."""

    async def read() -> list[Payload]:
        node = f"dev://?blocks={last}&reorg-rate=0&chain-id={chain_id}"
        return [one async for one in open_feed(node).follow()]

    return asyncio.run(read())


def publish(publisher: Publisher, blocks: list[Payload]) -> None:
    futures = [publisher.add(one) for one in blocks]
    for future in futures:
        future.result(DEADLINE)


def fresh(
    tmp_path: Path, *options: str, app: str = "blob"
) -> AbstractContextManager[tuple[subprocess.Popen[str], int]]:
    return node("null://", "any", tmp_path / "data", *options, app=app)


@pytest.mark.process
def test_blocks_are_acknowledged_and_counted(tmp_path: Path) -> None:
    with fresh(tmp_path) as (_, port), Publisher(f"ingest://127.0.0.1:{port}", APP, publisher_id="one") as publisher:
        assert publisher.status() == (None, None)
        publish(publisher, line(0, 99))
        publisher.flush()
        assert (publisher.stats.blocks, publisher.stats.in_flight, publisher.stats.queued_bytes) == (100, 0, 0)
        assert publisher.status() == (0, 99)
        assert (publisher.node, publisher.failure) == (f"127.0.0.1:{port}", "")
    with pytest.raises(TransportError, match="closed"):
        publisher.add(block("100a"))


@pytest.mark.process
def test_a_branch_takes_the_place_of_blocks_whose_futures_report_it(tmp_path: Path) -> None:
    url = f"ingest://127.0.0.1:{free_port()}"
    with fresh(tmp_path, "--listen", url.removeprefix("ingest://")) as (process, _):
        publisher = Publisher(url, APP, publisher_id="one")
        publish(publisher, line(0, 9))
        process.kill()  # nothing is acknowledged any more
        process.wait()
        left = [publisher.add(one) for one in line(10, 12)]
        branch = [block("10b", "9a"), *line(11, 13, "b")]
        future = publisher.reorg(BlockRef(9, hash_of("9a")), branch)
        for number, orphan in enumerate(left, 10):
            error = orphan.exception(DEADLINE)
            assert isinstance(error, OrphanedError)
            assert (error.number, error.hash) == (number, hash_of(f"{number}a"))
        with pytest.raises(LocalProtocolError, match="in flight already"):
            publisher.add(branch[-1])
        with pytest.raises(LocalProtocolError, match="is not a child of block 12"):
            publisher.add(block("13c"))
        turned = publisher.add(block("13d", "12b"))
        assert isinstance(future.exception(DEADLINE), OrphanedError)
    with fresh(tmp_path, "--listen", url.removeprefix("ingest://")):
        turned.result(DEADLINE)
        publisher.flush()
        assert publisher.status() == (0, 13)
        publisher.close()


@pytest.mark.process
def test_a_node_that_is_behind_gets_what_its_publisher_adds_again(tmp_path: Path) -> None:
    with fresh(tmp_path) as (_, port):
        url = f"ingest://127.0.0.1:{port}"
        with Publisher(url, APP, publisher_id="one") as one:
            publish(one, line(0, 9))
        with Publisher(url, APP, publisher_id="two") as two:
            waiting = two.add(block("20a"))
            error = waiting.exception(DEADLINE)
            assert isinstance(error, NodeBehindError)
            assert error.number == 10
            with pytest.raises(NodeBehindError) as again:
                two.add(block("21a"))
            assert again.value.number == 10
            publish(two, line(10, 21))
            assert two.status() == (0, 21)


@pytest.mark.process
def test_a_node_that_is_ahead_names_the_block_to_publish_from(tmp_path: Path) -> None:
    with fresh(tmp_path) as (_, port):
        url = f"ingest://127.0.0.1:{port}"
        with Publisher(url, APP, publisher_id="one") as one:
            publish(one, line(0, 199))
        with Publisher(url, APP, publisher_id="two") as two:
            error = two.add(block("0a")).exception(DEADLINE)
            assert isinstance(error, NodeBehindError)
            assert f"accepts no block below {error.number}" in str(error)
            with pytest.raises(NodeBehindError, match=f"needs block {error.number}"):
                two.add(block("1a"))
            publish(two, line(error.number, 210))
            assert two.status() == (0, 210)


@pytest.mark.process
def test_a_node_on_another_branch_gets_ours_from_below_the_fork(tmp_path: Path) -> None:
    with fresh(tmp_path) as (_, port):
        url = f"ingest://127.0.0.1:{port}"
        with Publisher(url, APP, publisher_id="one") as one:
            publish(one, line(0, 20))
        ours = [*line(0, 14), block("15b", "14a"), *line(16, 22, "b")]
        with Publisher(url, APP, publisher_id="two") as two:
            error = two.add(ours[21]).exception(DEADLINE)
            assert isinstance(error, NodeBehindError)
            assert 4 <= error.number <= 15
            publish(two, ours[error.number :])
            assert two.status() == (0, 22)


@pytest.mark.process
def test_a_node_forgets_what_is_on_the_topics_and_below_every_fork_and_continues_where_it_was(tmp_path: Path) -> None:
    app = get("items", chain_id=1)
    chain = [items.payload(items.Block(number, (header(number), proof(number)))) for number in range(1_500)]
    for first, last in ((0, 1_400), (1_400, 1_500)):
        with fresh(tmp_path, app="items") as (process, port):
            with Publisher(f"ingest://127.0.0.1:{port}", app, publisher_id="one") as publisher:
                publish(publisher, chain[first:last])
                assert publisher.status() == (0, last - 1)
            process.terminate()
            assert process.wait(DEADLINE) == 0
    with closing(BodyStore(tmp_path / "data", app.chain)) as store:
        assert len(store.blocks()) < 1_000


@pytest.mark.process
def test_a_block_that_every_node_refuses_fails_by_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with fresh(tmp_path, "--chain-id", "1", app="evm") as (_, port):
        url = f"ingest://127.0.0.1:{port}"
        with Publisher(url, get("evm", chain_id=1), publisher_id="one") as publisher:
            publish(publisher, dev_blocks(1, 2))
        # of another chain, in a program and on the command line
        with Publisher(url, get("evm", chain_id=2), publisher_id="two") as stranger:
            genesis, first, second, _ = dev_blocks(2, 3)
            stranger.add(genesis).result(DEADLINE)  # both chains have it
            said = f"the ingest node 127.0.0.1:{port} refuses block 1 0x"
            for one in (first, first):
                with pytest.raises(RefusedError, match=said):
                    stranger.add(one).result(DEADLINE)
            with pytest.raises(RefusedError, match=said):
                stranger.add(second)
        status, _, said = run_here(capfd, "produce", "--from", "dev://?blocks=5&chain-id=2", "--to", url)
        assert status == 1
        assert f"the ingest node 127.0.0.1:{port} refuses block " in said
        assert "such as another chain id" in said


@pytest.mark.process
def test_what_cannot_be_published_is_refused_when_it_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal_ingest.publisher.publisher.BLOCK_BYTES", 1_000_000)
    whole = block("0a")
    announced = Payload(0, whole.hash, whole.parent, 0, {}, frozenset(), {bytes(31) + b"\x01": None})
    with fresh(tmp_path) as (_, port), Publisher(f"ingest://127.0.0.1:{port}", APP, publisher_id="one") as publisher:
        with pytest.raises(ApplicationError, match="without its content: publish it whole"):
            publisher.add(announced)
        large = payload(Blob(0, whole.hash, whole.parent, {"key": bytes(1_000_000)}))
        with pytest.raises(OversizeError, match=r"has 1000\d+ bytes: ingest nodes accept 1000000"):
            publisher.add(large)
        publisher.add(whole).result(DEADLINE)


@pytest.mark.process
def test_publishers_with_certificates_reach_a_node_that_requires_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    authority, other = Authority(tmp_path, "authority"), Authority(tmp_path, "other")
    server, client = authority.sign("server", hosts=["127.0.0.1"]), authority.sign("client")
    files = ("--cert-file", str(server.certificate), "--key-file", str(server.key), "--ca-file")
    with fresh(tmp_path, *files, str(authority.certificate)) as (_, port):
        base = f"ingest://127.0.0.1:{port}"
        ca = f"tls=1&ssl.ca.location={authority.certificate}"
        mine = f"&ssl.certificate.location={client.certificate}&ssl.key.location={client.key}"
        with Publisher(f"{base}?{ca}{mine}", APP, publisher_id="one") as publisher:
            publish(publisher, line(0, 3))
        with pytest.raises(UnreachableError, match=r"no encrypted connection|cannot be reached"):
            Publisher(f"{base}?{ca}", APP, publisher_id="one")
        for query in (f"tls=1&ssl.ca.location={other.certificate}{mine}", f"tls=1{mine}"):
            with pytest.raises(RefusedError, match=r"is not accepted: name its authority by ssl\.ca\.location"):
                Publisher(f"{base}?{query}", APP, publisher_id="one")
        with pytest.raises(RefusedError, match="speaks TLS only"):
            Publisher(base, APP, publisher_id="one")
    secret = client.key.read_text().splitlines()[1]
    assert secret not in caplog.text


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ingest://", "names no host: write ingest://host:port"),
        ("ingest://host:0", "with a port from 1"),
        ("ingest://user:sesame@host", "no use for a user and a password"),
        ("ingest://host?ssl.ca.location=ca.pem", "ssl.ca.location is for TLS, and this is not encrypted: add tls=1"),
        ("ingest://host?tls=1&ssl.key.location=key.pem", "is of no use without ssl.certificate.location"),
        ("ingest://host?tls=1&ssl.ca.location=/absent", "ssl.ca.location cannot be used: No such file"),
        ("ingest://host?ssl.ca.locaton=a", "did you mean ssl.ca.location?"),
        ("kafka://host", "a publisher needs ingest nodes, not kafka://"),
    ],
)
def test_a_mistake_in_a_url_is_named(url: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Publisher(url, APP, publisher_id="one")
    assert sentence in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_a_node_that_is_unreachable_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(CardinalError, match=f"the ingest node {address} cannot be reached") as refused:
        Publisher(f"ingest://{address}", APP, publisher_id="one")
    assert refused.value.retriable


# --- feeds ----------------------------------------------------------------------------------------------------------


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
    checked = CheckedChain()
    with Consumer(url, chain_id=chain_id, until="end") as consumer:
        for update in consumer:
            checked.apply(update)
    return checked.chain


def until(condition: Callable[[], bool], *running: Popen[str]) -> None:
    waiting.until(lambda: condition() or any(process.poll() is not None for process in running))
    assert condition(), [process.poll() for process in running]


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
    feed = f"dev://?blocks=200&seed=5&reorg-rate=0.25&rate=20&chain-id={chain_id}"
    listen, topic = f"127.0.0.1:{port}", f"cardinal-{chain_id}"
    more = ("--chain-id", str(chain_id))

    with Processes(tmp_path) as processes:

        def produce() -> Popen[str]:
            return processes.start("produce", "--from", feed, "--to", f"ingest://{listen}", "--producer-id", "one")

        with node(url, topic, tmp_path / "data", *more, app="evm", listen=listen):
            publisher = produce()
            reading = reading_of(url, chain_id)
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
def test_the_next_node_of_the_url_gets_the_blocks_while_one_is_unreachable(
    cardinal_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    url, chain_id, port = f"kafka://{cardinal_broker.bootstrap}", fresh_chain_id(), free_port()
    feed = f"dev://?blocks=100&seed=5&reorg-rate=0&rate=15&chain-id={chain_id}"
    first, topic, more = f"127.0.0.1:{port}", f"cardinal-{chain_id}", ("--chain-id", str(chain_id))
    with (
        Processes(tmp_path) as processes,
        node(url, topic, tmp_path / "b", *more, "--node-id", "b", app="evm") as (_, other),
    ):
        to = f"ingest://{first},127.0.0.1:{other}"
        with node(url, topic, tmp_path / "a", *more, app="evm", listen=first):
            publisher = processes.start("produce", "--from", feed, "--to", to)
            reading = reading_of(url, chain_id)
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
    feed = f"dev://?blocks=150&seed=5&reorg-rate=0&rate=20&chain-id={chain_id}"
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
