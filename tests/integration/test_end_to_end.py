"""End to end by the commands: node → `cardinal produce` → Kafka → `cardinal tail`, on real parts."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import confluent_kafka
import pytest
from anvil_node import Anvil, anvil
from commands import DEADLINE, Processes, command, fresh_chain_id, replayed
from feeding import asynchronous

from cardinal.protocols.streams import Cursor, decode
from cardinal.protocols.streams.wire.messages import Batch
from cardinal.testing.node import JsonRpcNode
from cardinal.testing.replay import ReplayChain, read_recorded

if TYPE_CHECKING:
    from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker

FIXTURES = Path(__file__).parents[2].parent / "shared" / "fixtures" / "mainnet"
FIRST, LAST = 14_000_000, 14_000_010
BATCH, SUB_BATCH_HEADER, BATCH_MSG, PING = 0, 1, 3, 255
HASH_END = 33


class Raw(NamedTuple):
    """A record as the broker gives it."""

    key: bytes
    value: bytes
    headers: dict[str, bytes]
    time: int


def raw(record: confluent_kafka.Message) -> Raw:
    headers = {name: bytes(value) for name, value in dict(record.headers() or []).items() if isinstance(value, bytes)}
    return Raw(record.key() or b"", record.value() or b"", headers, record.timestamp()[1])


def read_topics(bootstrap: str) -> dict[str, list[Raw]]:
    """Every record of every topic of ours, by a plain client."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    there = consumer.list_topics(timeout=DEADLINE).topics
    topics = {name: topic for name, topic in there.items() if not name.startswith("__")}  # those are the broker's own
    partitions = [(name, number) for name, topic in topics.items() for number in topic.partitions]
    consumer.assign([confluent_kafka.TopicPartition(*where, confluent_kafka.OFFSET_BEGINNING) for where in partitions])
    records: dict[str, list[Raw]] = {name: [] for name in topics}
    unread = len(partitions)
    while unread:
        record = consumer.poll(DEADLINE)
        assert record is not None, "the records do not come"
        if (error := record.error()) is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF  # public code, private name
            unread -= 1
        else:
            records[str(record.topic())].append(raw(record))
    consumer.close()
    return records


async def tailed(tail: asyncio.subprocess.Process, number: int) -> list[dict[str, Any]]:
    """The lines of `tail` up to the one that adds this block."""
    assert tail.stdout is not None
    lines: list[dict[str, Any]] = []
    async with asyncio.timeout(DEADLINE):
        while not lines or lines[-1]["added"][-1]["number"] < number:
            line = await tail.stdout.readline()
            assert line, "tail ended"
            lines.append(json.loads(line))
    return lines


async def keys_of(node: Anvil, block: dict[str, Any]) -> int:
    """How many keys the block calls for, counted from the node's own answers."""
    receipts = await node.ask("eth_getBlockReceipts", block["hash"])
    header_difficulty_number, marks = 3, 2
    transactions_and_receipts = 2 * len(block["transactions"])
    return header_difficulty_number + marks + transactions_and_receipts + sum(len(one["logs"]) for one in receipts)


def number_of(block: dict[str, Any]) -> int:
    return int(block["number"], 16)


@pytest.mark.node
@pytest.mark.parametrize("scheme", ["http", "ws"])
@asynchronous
async def test_reorg_of_a_real_node_is_one_line_and_the_lines_end_in_its_chain(
    cardinal_broker: EmbeddedKafka, tmp_path: Path, scheme: str
) -> None:
    chain_id, stream = str(fresh_chain_id()), f"kafka://{cardinal_broker.bootstrap}"
    tail_args = ("tail", stream, "--format", "json", "--chain-id", chain_id, "--stop", "11")
    async with anvil("--chain-id", chain_id) as node:
        source = node.url if scheme == "http" else node.ws_url
        produce_args = ("produce", "--from", source, "--to", stream, "--start", "earliest", "--stop", "11")
        async with command(tmp_path / "p", *produce_args) as producer, command(tmp_path / "t", *tail_args) as tail:
            await node.mine(6)
            lines = await tailed(tail, 6)
            await node.mine(2)
            lines += await tailed(tail, 8)
            blocks = {block["hash"]: block for block in await node.chain()}
            keys = {block_hash: await keys_of(node, block) for block_hash, block in blocks.items()}
            cut = [block_hash for block_hash, block in blocks.items() if number_of(block) > 5]
            before = len(lines)
            await node.ask("anvil_reorg", 3, [])
            await node.mine(3)
            lines += await tailed(tail, 11)
            async with asyncio.timeout(DEADLINE):
                assert (await producer.wait(), await tail.wait()) == (0, 0)
        chain = await node.chain()
        keys |= {block["hash"]: await keys_of(node, block) for block in chain}
        final = [block["hash"] for block in chain]
        assert replayed(lines) == final
        reorgs = [line for line in lines if line["removed"]]
        assert [[block["hash"] for block in line["removed"]] for line in reorgs] == [cut[::-1]]
        assert [block["number"] for block in reorgs[0]["removed"]] == [8, 7, 6]
        assert lines[-1]["seq"] == len(final) + 2 * len(cut), "each block added or removed took one number, from 1 on"
        shown = [block for line in lines for block in line["added"]]
        assert {block["hash"]: block["messages"] for block in shown} == keys
        for line in lines:
            cursor = Cursor.parse(line["cursor"])
            assert cursor.head is not None
            assert (cursor.seq, f"0x{cursor.head.hash.hex()}") == (line["seq"], line["added"][-1]["hash"])
        async with command(tmp_path / "r", *tail_args, "--start", lines[before - 1]["cursor"]) as resumed:
            assert replayed(lines[:before] + await tailed(resumed, 11)) == final


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="recorded mainnet blocks are not at ../shared/fixtures")
@asynchronous
async def test_replayed_mainnet_blocks_lie_on_the_topics_as_the_reference_puts_them(
    cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    bootstrap = cardinal_killable_broker.bootstrap
    where = ("--to", f"kafka://{bootstrap}", "--start", str(FIRST), "--stop", str(LAST), "--producer-id", "one")
    async with JsonRpcNode(ReplayChain(read_recorded(FIXTURES), chain_id=1)) as node:
        with Processes(tmp_path) as processes:
            status, _, said = await asyncio.to_thread(processes.run, "produce", "--from", node.ws_url, *where)
    assert status == 0, said
    topics = read_topics(bootstrap)
    fixtures = [(read_fixture(f"{number}"), read_fixture(f"{number}.messages")) for number in range(FIRST, LAST + 1)]
    assert set(topics) == {"cardinal-1", *fixtures[0][1]["schema"].values()}
    records = [record for topic in topics.values() for record in topic]
    assert {record.headers.get("cardinal-producer") for record in records} == {b"one"}
    assert all(("cardinal-sealed" in record.headers) == (record.key[:1] == b"\x00") for record in records)
    for values, messages in fixtures:
        assert_block_lies_there(topics, values, messages)
    known = {bytes.fromhex(values["hash"]) for values, _ in fixtures}
    others = [record for record in records if record.key[1:HASH_END] not in known]
    assert all(not record.key or record.key[0] == PING for record in others), "a message of another block"


def read_fixture(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))
    return read


def assert_block_lies_there(topics: dict[str, list[Raw]], values: dict[str, Any], messages: dict[str, Any]) -> None:
    """One block's records are the reference's messages: each key once, on its topic, with its value.

    The reference's producer sits inside the node and announces a sub batch of state, empty here; JSON-RPC has no
    state, so nothing is announced. All else must be equal, a Batch decoded (the order of its map is free).
    """
    block_hash = bytes.fromhex(values["hash"])
    ours = [
        (topic, record) for topic, read in topics.items() for record in read if record.key[1:HASH_END] == block_hash
    ]
    theirs = [(one["topic"], bytes.fromhex(one["key"]), bytes.fromhex(one["value"])) for one in messages["messages"]]
    plain = Counter(message for message in theirs if message[1][0] not in {BATCH, SUB_BATCH_HEADER})
    assert Counter((topic, one.key, one.value) for topic, one in ours if one.key[0] != BATCH) == plain
    found = {one.key[HASH_END:].decode(): one.value.hex() for _, one in ours if one.key[0] == BATCH_MSG}
    assert found == values["values"]
    ((topic, sealed),) = ((topic, one) for topic, one in ours if one.key[0] == BATCH)
    ((default, *record),) = (message for message in theirs if message[1][0] == BATCH)
    batch, expected = decode(sealed.key, sealed.value), decode(*record)
    assert isinstance(batch, Batch)
    assert isinstance(expected, Batch)
    assert topic == default
    assert (batch.number, batch.parent, batch.weight) == (expected.number, expected.parent, expected.weight)
    assert batch.updates == {path: one for path, one in expected.updates.items() if not any(one.sub_batch)}
    assert sealed.time == max(one.time for _, one in ours), "the Batch was handed over last"
