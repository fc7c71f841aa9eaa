"""End to end by the commands: node → `cardinal produce` → Kafka → `cardinal tail`, on real parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import confluent_kafka
import pytest
from anvil_node import Anvil, anvil
from commands import DEADLINE, Processes, command, fresh_chain_id, replayed
from feeding import asynchronous

from cardinal.protocols.streams import Cursor, decode
from cardinal.protocols.streams.wire.messages import Batch
from cardinal_devkit.testing.node import JsonRpcNode
from evm_values import messages_of
from recorded_blocks import RecordedBlock, chains, mainnet, messages, node_of

if TYPE_CHECKING:
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.broker

PARTS = ("", "-block", "-tx", "-receipt", "-logs", "-state", "-code")
BATCH, SUB_BATCH_HEADER, PING = 0, 1, 255
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


def read_topics(bootstrap: str, base: str) -> dict[str, list[Raw]]:
    """Every record of a chain's topics, by a plain client."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    there = consumer.list_topics(timeout=DEADLINE).topics
    topics = {name: topic for name, topic in there.items() if name == base or name.startswith(f"{base}-")}
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


@pytest.mark.parametrize("recording", chains())
@asynchronous
async def test_a_replayed_chain_lies_on_the_topics_as_the_reference_puts_it(
    request: pytest.FixtureRequest, tmp_path: Path, recording: Callable[[], list[RecordedBlock]]
) -> None:
    chain, recorded = recording()[0].chain, recording()
    own = "cardinal_killable_broker" if chain.chain_id == 1 else "cardinal_broker"  # others publish on mainnet's topics
    bootstrap = request.getfixturevalue(own).bootstrap
    described = tmp_path / "chain.toml"
    total = chain.final_total_difficulty
    described.write_text(
        f'chain_id = {chain.chain_id}\nname = "{chain.name}"\nstatus_from = {chain.status_from}\n'
        f'final_total_difficulty = "{total}"\n'
    )
    where = ("--to", f"kafka://{bootstrap}", "--start", str(recorded[0].number), "--stop", str(recorded[-1].number))
    async with JsonRpcNode(node_of(recorded)) as node:
        with Processes(tmp_path) as processes:
            source = ("--from", f"{node.ws_url}#chain={described}", "--producer-id", "one")
            status, _, said = await asyncio.to_thread(processes.run, "produce", *source, *where)
    assert status == 0, said
    topics = read_topics(bootstrap, f"cardinal-{chain.chain_id}")
    assert set(topics) == {f"cardinal-{chain.chain_id}{part}" for part in PARTS}
    records = [record for topic in topics.values() for record in topic]
    assert {record.headers.get("cardinal-producer") for record in records} == {b"one"}
    assert all(("cardinal-sealed" in record.headers) == (record.key[:1] == b"\x00") for record in records)
    for one in recorded:
        assert_block_lies_there(topics, one)
    known = {one.ref.hash for one in recorded}
    others = [record for record in records if record.key[1:HASH_END] not in known]
    assert all(not record.key or record.key[0] == PING for record in others), "a message of another block"


def assert_block_lies_there(topics: dict[str, list[Raw]], recorded: RecordedBlock) -> None:
    """One block's records are the reference's messages: each key once, on its topic, with its value.

    The reference's producer sits inside the node and announces a sub batch of state, empty here; JSON-RPC has no
    state, so nothing is announced. All else must be equal, decoded (the order of a Batch's map is free).
    """
    ours = [(topic, one) for topic, read in topics.items() for one in read if one.key[1:HASH_END] == recorded.ref.hash]
    found = {(topic, one.key): decode(one.key, one.value) for topic, one in ours}
    assert len(found) == len(ours)
    assert found == expected(recorded)
    ((_, sealed),) = ((topic, one) for topic, one in ours if one.key[0] == BATCH)
    assert sealed.time == max(one.time for _, one in ours), "the Batch was handed over last"


def expected(recorded: RecordedBlock) -> dict[tuple[str, bytes], object]:
    """The reference's messages, or those that the tests compute."""
    chain_id = recorded.chain.chain_id
    if recorded not in mainnet():
        return {**messages_of(recorded.block, recorded.values, recorded.weight, chain_id)}
    theirs: dict[tuple[str, bytes], object] = {}
    for one in messages(recorded.number)["messages"]:
        key = bytes.fromhex(one["key"])
        message = decode(key, bytes.fromhex(one["value"]))
        if isinstance(message, Batch):
            updates = {path: update for path, update in message.updates.items() if not any(update.sub_batch)}
            message = replace(message, updates=updates)
        if key[0] != SUB_BATCH_HEADER:
            theirs[one["topic"], key] = message
    return theirs
