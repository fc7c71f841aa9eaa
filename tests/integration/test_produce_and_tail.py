"""`cardinal produce` and `cardinal tail` as processes, on a real broker, killed where it hurts."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from commands import DEADLINE, Processes, fresh_chain_id, replayed, run_here
from kafka_streams import everything_on

from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.feeds import open_feed
from cardinal.protocols.streams import Completed, Divergence, Reassembler
from cardinal.protocols.streams.wire.codec import decode
from cardinal.transports import open_source
from serving import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cardinal.protocols.streams import Record
    from cardinal.protocols.streams.events import BlockHeader
    from cardinal.protocols.streams.payload import Payload
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.broker

KILLED_AT = (0.01, 0.1, 0.2)
"""Parts of a chain's messages that are on the topics when its producer is killed."""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as processes:
        yield processes


@pytest.fixture
def chain_id() -> int:
    return fresh_chain_id()


def _node(chain_id: int, **options: object) -> str:
    given = {"seed": 5, "chain-id": chain_id, **{name.replace("_", "-"): value for name, value in options.items()}}
    return "dev://?" + "&".join(f"{name}={value}" for name, value in given.items())


async def _blocks(url: str) -> list[Payload]:
    feed = open_feed(url)
    return [payload async for payload in feed.follow()]


def _written(stream: str, chain_id: int) -> int:
    """How many records are on the stream's topics."""
    source = open_source(stream, apps.get("evm", chain_id=chain_id), wait=DEADLINE)
    try:
        return sum(high for _, high in source.watermarks().values())
    finally:
        source.close()


@dataclass(frozen=True)
class Found:
    """What a reader of all records finds: complete blocks, all that have a Batch, all that have none, divergences."""

    whole: dict[bytes, BlockHeader]
    batches: set[bytes]
    headless: set[bytes]
    divergences: int


def _everything(stream: str, chain_id: int) -> Found:
    reassembler = Reassembler()
    records = everything_on(stream, apps.get("evm", chain_id=chain_id))
    batches = {decode(record.key, record.value).hash for record in _batches(records)}  # type: ignore[union-attr]
    events = list(reassembler.receive(records))
    whole = {event.payload.hash: event.payload for event in events if isinstance(event, Completed)}
    divergences = sum(isinstance(event, Divergence) for event in events)
    return Found(whole, batches, set(reassembler.open_blocks()) - batches, divergences)


def _batches(records: list[Record]) -> list[Record]:
    return [record for record in records if record.key[:1] == b"\0"]


def _canonical(blocks: list[Payload]) -> list[str]:
    """The chain to the heaviest block, as tail prints it."""
    by_hash = {block.hash: block for block in blocks}
    at: Payload | None = max(blocks, key=lambda block: block.weight)
    chain = []
    while at is not None:
        chain.append(f"0x{at.hash.hex()}")
        at = by_hash.get(at.parent)
    return chain[::-1]


@pytest.mark.parametrize(("length", "rate"), [(240, 10), pytest.param(3000, 0, marks=pytest.mark.slow)])
def test_a_producer_killed_anywhere_leaves_no_block_missing_or_incomplete(
    cardinal_broker: EmbeddedKafka,
    processes: Processes,
    chain_id: int,
    capfd: pytest.CaptureFixture[str],
    *,
    length: int,
    rate: int,
) -> None:
    """At a node's pace, where the rest of the chain takes 20 s, and in a backfill, which has blocks in flight."""
    stream, node = f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2", _node(chain_id, blocks=length)
    args = ("produce", "--from", node, "--to", stream, "--producer-id", "one")
    paced = ("produce", "--from", f"{node}&rate={rate}", "--to", stream, "--producer-id", "one")
    blocks = asyncio.run(_blocks(node))
    total = sum(len(block.updates) + 1 for block in blocks)
    for part in KILLED_AT:
        producer = processes.start(*paced)
        until(lambda part=part: _written(stream, chain_id) > part * total)  # type: ignore[misc] # bound above
        producer.kill()
        assert producer.wait(DEADLINE) == -signal.SIGKILL, "the producer was done before it could be killed"
    status, _, said = run_here(capfd, *args)
    assert status == 0, said
    assert "continues after block" in said
    found = _everything(stream, chain_id)
    assert (found.headless, found.divergences) == (set(), 0)
    assert found.batches <= {block.hash for block in blocks}, "a block that the node did not have"
    # What is promised is the node's chain, and that nothing is half there: a side branch that the node left before
    # anything of it was sent is not asked for again.
    missing = [block for block in blocks if block.hash not in found.batches]
    assert len(missing) <= len(KILLED_AT)
    assert not {f"0x{block.hash.hex()}" for block in missing} & set(_canonical(blocks)), "a block of the chain"
    for block in blocks:
        if block not in missing:
            assert dict(found.whole[block.hash].updates) == dict(block.updates)
    status, _, said = run_here(capfd, *args)
    assert (status, "0 blocks, 0 messages" in said) == (0, True), "nothing was left to do"


@pytest.mark.parametrize("reorg_rate", [pytest.param(0, marks=pytest.mark.slow), 0.2])
def test_tail_killed_and_resumed_equals_an_uninterrupted_run(
    cardinal_broker: EmbeddedKafka,
    processes: Processes,
    chain_id: int,
    reorg_rate: float,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stream = f"kafka://{cardinal_broker.bootstrap}"
    node = _node(chain_id, blocks=240, reorg_rate=reorg_rate, rate=120)
    tail = ("tail", stream, "--format", "json", "--chain-id", str(chain_id))
    producer = processes.start("produce", "--from", node, "--to", stream)
    whole = processes.start(*tail, "--stop", "240")
    lines: list[dict[str, Any]] = []
    while not lines or lines[-1]["added"][-1]["number"] < 200:
        part = processes.start(*tail, "--start", lines[-1]["cursor"] if lines else "earliest")
        assert part.stdout is not None
        for _ in range(15):
            if not lines or lines[-1]["added"][-1]["number"] < 200:
                lines.append(json.loads(part.stdout.readline()))
        part.kill()
        # what it had printed beyond these lines was never stored: the cursor of the last stored line counts
    status, out, said = run_here(capfd, *tail, "--start", lines[-1]["cursor"], "--stop", "240")
    assert status == 0, said
    lines += [json.loads(line) for line in out.splitlines()]
    expected = [json.loads(line) for line in whole.communicate(timeout=DEADLINE)[0].splitlines()]
    assert (producer.wait(DEADLINE), whole.returncode) == (0, 0)
    blocks = asyncio.run(_blocks(_node(chain_id, blocks=240, reorg_rate=reorg_rate)))
    assert replayed(lines) == replayed(expected) == _canonical(blocks)
    if not reorg_rate:
        assert lines[-1]["seq"] == expected[-1]["seq"] == 241
    keys = {f"0x{block.hash.hex()}": len(block.updates) for block in blocks}
    assert all(block["messages"] == keys[block["hash"]] for line in lines for block in line["added"])
    assert {tuple(line) for line in lines} == {("seq", "removed", "added", "cursor")}


def test_two_producers_at_once_give_the_same_chain_as_one(
    cardinal_broker: EmbeddedKafka, processes: Processes, chain_id: int, capfd: pytest.CaptureFixture[str]
) -> None:
    stream, node = f"kafka://{cardinal_broker.bootstrap}", _node(chain_id, blocks=150, reorg_rate=0.2, rate=20)
    args = ("produce", "--from", node, "--to", stream, "--producer-id")
    producers = [processes.start(*args, name) for name in ("one", "two")]
    status, out, said = run_here(
        capfd, "tail", stream, "--format", "json", "--chain-id", str(chain_id), "--stop", "150"
    )
    assert status == 0, said
    assert [producer.wait(DEADLINE) for producer in producers] == [0, 0]
    blocks = asyncio.run(_blocks(_node(chain_id, blocks=150, reorg_rate=0.2)))
    lines = [json.loads(line) for line in out.splitlines()]
    assert replayed(lines) == _canonical(blocks)
    found = _everything(stream, chain_id)
    assert set(found.whole) == {block.hash for block in blocks}
    assert found.divergences == 0
    batches = _batches(everything_on(stream, apps.get("evm", chain_id=chain_id)))
    headers = Counter(dict(record.headers)["cardinal-producer"] for record in batches)
    # The first sent every block once; the other went on where it was, and sent again what was half there.
    assert len(blocks) in headers.values()
    assert min(headers[b"one"], headers[b"two"]) > len(blocks) // 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_producer_seals_its_pending_blocks_and_exits_with_0(
    cardinal_broker: EmbeddedKafka, processes: Processes, chain_id: int, number: signal.Signals
) -> None:
    stream, node = f"kafka://{cardinal_broker.bootstrap}", _node(chain_id, blocks=1000, rate=200)
    producer = processes.start("produce", "--from", node, "--to", stream)
    until(lambda: _written(stream, chain_id) > 500)
    producer.send_signal(number)
    assert producer.wait(DEADLINE) == 0
    found = _everything(stream, chain_id)
    assert set(found.whole) == found.batches
    assert 10 < len(found.whole) < 1000


def test_stop_ends_produce_and_tail(
    cardinal_broker: EmbeddedKafka, chain_id: int, capfd: pytest.CaptureFixture[str]
) -> None:
    stream, node = f"kafka://{cardinal_broker.bootstrap}", _node(chain_id, blocks=1000)
    status, _, said = run_here(capfd, "produce", "--from", node, "--to", stream, "--start", "3", "--stop", "20")
    assert status == 0, said
    assert "begins with block 3" in said
    status, out, said = run_here(capfd, "tail", stream, "--chain-id", str(chain_id), "--stop", "20")
    assert status == 0, said
    numbers = [int(line.split()[1]) for line in out.splitlines()[2:]]
    assert numbers == list(range(3, 21))
    with Consumer(stream, "evm", chain_id=chain_id, idle_timeout=DEADLINE) as consumer:
        assert sum(len(update.added) for _, update in zip(range(1), consumer, strict=False)) <= 18


def test_a_cursor_of_another_stream_is_refused_in_one_sentence(
    cardinal_broker: EmbeddedKafka, chain_id: int, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = f"kafka://{cardinal_broker.bootstrap}"
    for other in (chain_id, chain_id + 1):
        assert run_here(capfd, "produce", "--from", _node(other, blocks=5), "--to", stream)[0] == 0
    _, out, _ = run_here(capfd, "tail", stream, "--chain-id", str(chain_id), "--stop", "5", "--format", "json")
    cursor = json.loads(out.splitlines()[-1])["cursor"]
    for start, chain, ends, says in (
        (cursor, chain_id + 1, 1, "belongs to"),
        ("c1:abc", chain_id, 2, "cursor"),
        ("x", 1, 2, "cursor"),  # of the command line
    ):
        status, _, said = run_here(capfd, "tail", stream, "--chain-id", str(chain), "--start", start)
        assert (status, said.startswith("error: ")) == (ends, True), said
        assert says in said
