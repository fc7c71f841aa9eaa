"""Half-published blocks: completed by a restart near the topics' ends, by `cardinal repair` anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Processes, fresh_chain_id, run_here
from kafka_streams import DEADLINE, everything_on

from cardinal import apps
from cardinal.errors import TopicError
from cardinal.feeds import open_feed
from cardinal.protocols.streams import Completed, Payload, Reassembler, Routed, decode, split
from cardinal.transports import open_sink
from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.broker
BLOCKS = 60


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as processes:
        yield processes


class Wounded:
    """A stream on which some blocks were left as a killed producer leaves them."""

    def __init__(self, broker: EmbeddedKafka) -> None:
        self.chain_id = fresh_chain_id()
        self.app = apps.get("evm", chain_id=self.chain_id)
        self.stream = f"kafka://{broker.bootstrap}"
        self.node = f"dev://?seed=3&blocks={BLOCKS}&reorg-rate=0&chain-id={self.chain_id}"
        self.blocks = asyncio.run(self._given())

    async def _given(self) -> list[Payload]:
        return [payload async for payload in open_feed(self.node).follow()]

    def publish(self, *, without: set[int] = frozenset(), half: set[int] = frozenset()) -> None:  # type: ignore[assignment] # empty
        """Everything but these blocks; of those in ``half``, some of the content, and the Batch of every second."""
        rng = random.Random(1)
        sink = open_sink(self.stream, self.app, producer_id="killed")
        for payload in self.blocks:
            *content, batch = split(payload, self.app.topics, self.app.default_topic)
            if payload.number in half:
                some: list[Routed] = rng.sample(content, len(content) // 2)
                sink.send([*some, *([batch] if payload.number % 2 else [])], None)
            elif payload.number not in without:
                sink.send(content, batch)
        sink.flush(DEADLINE)
        sink.close()

    def publish_one(self, payload: Payload) -> None:
        """A block whole, whether the node has it or not."""
        sink = open_sink(self.stream, self.app, producer_id="other")
        *content, batch = split(payload, self.app.topics, self.app.default_topic)
        sink.send(content, batch)
        sink.flush(DEADLINE)
        sink.close()

    def leave(self, payload: Payload) -> None:
        """A block that the node does not have, without all of its content."""
        sink = open_sink(self.stream, self.app, producer_id="killed")
        sink.send(split(payload, self.app.topics, self.app.default_topic)[1:], None).result(DEADLINE)
        sink.close()

    def whole(self) -> set[int]:
        records = sorted(everything_on(self.stream, self.app), key=lambda record: record.timestamp_ms)
        return {e.payload.number for e in Reassembler().receive(records) if isinstance(e, Completed)}

    def written(self) -> int:
        return len(everything_on(self.stream, self.app))


@pytest.fixture
def wounded(cardinal_broker: EmbeddedKafka) -> Wounded:
    return Wounded(cardinal_broker)


def _stranger(of: Payload) -> Payload:
    """A sibling that no node has."""
    return Payload(of.number, bytes([9]) * 32, of.parent, of.weight, of.updates)


def test_repair_says_first_and_sends_then_what_is_missing_or_half_published(
    wounded: Wounded, capfd: pytest.CaptureFixture[str]
) -> None:
    wounded.publish(without={10, 11, 50}, half={20, 21})
    wounded.leave(_stranger(wounded.blocks[30]))
    args = ("repair", "--from", wounded.node, "--to", wounded.stream, "--start", "5", "--stop", "40")
    before = wounded.written()
    status, out, said = run_here(capfd, *args, "--dry-run")
    assert status == 0, said
    assert [int(line.split()[3]) for line in out.splitlines()] == [10, 11, 20, 21]
    assert out.startswith("would send block 10 0x")
    assert (
        "32 complete, 3 missing, 1 partially published, 0 sent" in said
    )  # without its Batch, 20 is as good as missing
    assert f"left partially published, because the node does not have them: 30 (0x{'09' * 32})" in said
    assert wounded.written() == before, "a dry run writes nothing"
    status, out, said = run_here(capfd, *args)
    assert status == 0, said
    assert "4 sent" in said
    assert wounded.whole() == set(range(BLOCKS + 1)) - {50}
    status, out, said = run_here(capfd, *args)
    assert (status, out) == (0, ""), said
    assert "36 complete, 0 missing, 0 partially published, 0 sent" in said


def test_a_node_of_another_chain_is_refused_and_nothing_is_written(
    wounded: Wounded, capfd: pytest.CaptureFixture[str]
) -> None:
    wounded.publish(without={35})
    before = wounded.written()
    other = wounded.node.replace("seed=3", "seed=99")
    status, out, said = run_here(
        capfd, "repair", "--from", other, "--to", wounded.stream, "--start", "30", "--stop", "38"
    )
    assert (status, out) == (1, "")
    assert "the node has none of the blocks that are published from " in said
    assert "it is the node of another chain" in said
    assert wounded.written() == before


@pytest.mark.parametrize("below", ["another", "half"])
def test_a_block_is_not_sent_above_a_parent_that_is_not_whole_on_the_stream(
    wounded: Wounded, capfd: pytest.CaptureFixture[str], below: str
) -> None:
    wounded.publish(without={29, 30, 31} if below == "another" else {30, 31}, half={29} if below == "half" else set())
    if below == "another":
        wounded.publish_one(_stranger(wounded.blocks[29]))
    before = wounded.written()
    args = ("repair", "--from", wounded.node, "--to", wounded.stream, "--stop", "38")
    for dry in ([], ["--dry-run"]):
        status, out, said = run_here(capfd, *args, "--start", "30", *dry)
        assert (status, out) == (2, "")
        parent = f"0x{wounded.blocks[29].hash[:5].hex()}…"
        assert f"block 30 of the node continues block 29 {parent}, which is not complete on the topics" in said
        assert "start at 29" in said
    assert wounded.written() == before
    status, out, said = run_here(capfd, *args, "--start", "29")
    assert status == 0, said
    assert [int(line.split()[2]) for line in out.splitlines()] == [29, 30, 31]
    assert {29, 30, 31} <= wounded.whole()


def test_a_repair_ends_no_producer_of_the_same_host(
    wounded: Wounded, processes: Processes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both have the names that they take by themselves, and with transactions the last of a name ends the others."""
    stream = f"{wounded.stream}?transactional=update"
    node = wounded.node.replace(f"blocks={BLOCKS}", "blocks=5000")
    producer = processes.start("produce", "--from", f"{node}&rate=20", "--to", stream, "--start", "10")
    topic = wounded.app.default_topic

    def sealed() -> set[int]:
        """What is there, read as long as it takes the topics to be there."""
        with contextlib.suppress(TopicError):
            found = everything_on(wounded.stream, wounded.app, [topic])
            return {decode(r.key, r.value).number for r in found if r.key[:1] == b"\0"}  # type: ignore[union-attr] # a Batch
        return set()

    async def reaches(number: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while number not in await asyncio.to_thread(sealed):
                assert producer.poll() is None

    asyncio.run(reaches(12))
    status, _, said = run_here(capfd, "repair", "--from", node, "--to", stream, "--start", "5", "--stop", "12")
    assert status == 0, said
    assert "5 sent" in said
    asyncio.run(reaches(max(sealed()) + 20))
    assert producer.poll() is None


@pytest.mark.slow
def test_a_restart_completes_what_is_half_published_near_the_end_and_names_the_rest(
    wounded: Wounded, capfd: pytest.CaptureFixture[str]
) -> None:
    wounded.publish(without={57}, half={52, 55})
    wounded.leave(_stranger(wounded.blocks[58]))
    args = ("produce", "--from", wounded.node, "--to", wounded.stream, "--producer-id", "one")
    status, _, said = run_here(capfd, *args)
    assert status == 0, said
    assert "continues after block 51" in said
    assert "3 blocks partially published where the topics end" in said
    assert (
        "1 block left partially published, because the node does not have them (consumers abandon them): "
        f"58 (0x{'09' * 5}…)" in said
    )
    assert wounded.whole() == set(range(BLOCKS + 1))


@pytest.mark.slow
def test_what_is_half_published_above_what_is_followed_is_not_reported_as_missing_at_the_node(
    wounded: Wounded, capfd: pytest.CaptureFixture[str]
) -> None:
    wounded.publish(half={55})
    args = ("produce", "--from", wounded.node, "--to", wounded.stream, "--producer-id", "one", "--stop", "52")
    status, _, said = run_here(capfd, *args)
    assert status == 0, said
    assert "1 block left partially published, because they are above what was followed" in said
    assert f"(see --lag, --finality, --stop): 55 (0x{wounded.blocks[55].hash.hex()[:10]}…)" in said
    assert "did not give" not in said


@pytest.mark.slow
def test_a_restart_names_the_tip_of_a_side_branch_that_was_left_below_what_was_sealed_since(
    wounded: Wounded, capfd: pytest.CaptureFixture[str]
) -> None:
    """Killed while the tip was on its way: some content, no Batch; blocks above its number are sealed."""
    tip = _stranger(wounded.blocks[40])
    wounded.publish()
    sink = open_sink(wounded.stream, wounded.app, producer_id="killed")
    sink.send(split(tip, wounded.app.topics, wounded.app.default_topic)[:-1][::2], None).result(DEADLINE)
    sink.close()
    status, _, said = run_here(
        capfd, "produce", "--from", wounded.node, "--to", wounded.stream, "--producer-id", "killed"
    )
    assert status == 0, said
    assert f"continues after block {BLOCKS}" in said
    named = f"0x{tip.hash.hex()[:10]}…"
    assert f"1 block partially published where the topics end, completed from the node: {named}" in said
    assert (
        f"1 block left partially published, because the node does not have them (consumers abandon them): {named}"
        in said
    )
    assert wounded.whole() == set(range(BLOCKS + 1))


def test_repair_refuses_a_range_that_is_none_and_a_stream_that_is_not_there(
    wounded: Wounded, capfd: pytest.CaptureFixture[str]
) -> None:
    args = ("repair", "--from", wounded.node, "--to", wounded.stream, "--dry-run")
    for span, ends, says in ((("9", "3"), 2, "start with the lower number"), (("0", "3"), 1, "does not exist")):
        status, _, said = run_here(capfd, *args, "--start", span[0], "--stop", span[1])
        assert (status, "error: " in said) == (ends, True), said
        assert says in said


def test_a_producer_with_other_prefixes_than_the_recent_batches_refuses_to_start(
    wounded: Wounded, capfd: pytest.CaptureFixture[str]
) -> None:
    topics = {expression: topic for expression, topic in wounded.app.topics.items() if "/t/" not in expression}
    assert len(topics) < len(wounded.app.topics)
    other = wounded.app.model_copy(update={"topics": topics})
    sink = open_sink(wounded.stream, wounded.app, producer_id="other")
    for payload in wounded.blocks[:30]:
        *content, batch = split(payload, other.topics, other.default_topic)
        sink.send(content, batch)
    sink.flush(DEADLINE)
    sink.close()
    before = wounded.written()
    args = ("produce", "--from", wounded.node, "--to", wounded.stream, "--stop", "32")
    status, _, said = run_here(capfd, *args)
    assert status == 1, said
    assert "other entries" in said
    assert "--allow-coverage-change" in said
    assert "/t/" in said
    assert wounded.written() - before <= 2, "a ping, and the last one"
    status, _, said = run_here(capfd, *args, "--allow-coverage-change")
    assert status == 0, said
