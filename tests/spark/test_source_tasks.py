"""Tasks read the published blocks of a plan, on the fast path and on the other."""

from __future__ import annotations

import random
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from cardinal import apps
from cardinal.errors import ConfigurationError
from cardinal.producer import Producer
from cardinal.protocols.streams import Payload, SubBatch
from cardinal.transports.written import Written
from cardinal_devkit.devchain import DevChain, DevSettings
from cardinal_ethereum import frames, payload_from_rpc
from cardinal_spark.source.options import SourceOptions, StreamSpec
from cardinal_spark.source.planner import Limit, Planner
from cardinal_spark.source.reader import (
    BlockPartition,
    CardinalReader,
    CardinalStreamReader,
    read_partition,
    source_schema,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.apps import Application
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.broker

CHAIN_IDS = count(7_700_001)
ORDER = {"blocks": [], "transactions": ["transaction_index"], "receipts": ["transaction_index"], "logs": ["log_index"]}


def url_of(broker: EmbeddedKafka) -> str:
    return f"kafka://{broker.bootstrap}"


def read(options: dict[str, str]) -> tuple[list[dict[str, Any]], pa.Table, set[str]]:
    """The rows of a batch read, and the topics that its tasks read."""
    schema = source_schema(options)
    parts = [part for part in CardinalReader(options, schema).partitions() if isinstance(part, BlockPartition)]
    batches = [batch for part in parts for batch in read_partition(part, schema)]
    table = pa.Table.from_batches(batches)
    return table.to_pylist(), table, {topic for part in parts for row in part.rows for topic, _ in row.ranges}


def mixed_chain(chain_id: int, blocks: int) -> list[Payload]:
    """Blocks of all that a payload can hold: counted values, values and deletes inside the Batch, sub batches."""
    draw = random.Random(7)
    chain: list[Payload] = []
    root = f"c/{chain_id:x}"
    for number in range(blocks):
        block_hash, parent = draw.randbytes(32), chain[-1].hash if chain else bytes(32)
        here = f"{root}/b/{block_hash.hex()}"
        values = {f"{here}/l/{index:x}": draw.randbytes(draw.randrange(60)) for index in range(draw.randrange(40))}
        values |= {f"{here}/t/{index:x}": draw.randbytes(30) for index in range(draw.randrange(5))}
        if number % 3 == 0:
            values[f"{root}/inside"] = b"%d" % number
        deletes = frozenset({f"{root}/a/{draw.randbytes(20).hex()}"} if number % 4 == 0 else ())
        subs = {}
        if number % 5 == 0:
            keys = {f"{root}/s/{index}": draw.randbytes(9) for index in range(3)}
            subs[draw.randbytes(32)] = SubBatch(f"{root}/s", keys)
        chain.append(Payload(number, block_hash, parent, number, values, deletes, subs))
    return chain


def content(chain: Sequence[Payload]) -> list[tuple[int, str, bytes | None]]:
    rows: list[tuple[int, str, bytes | None]] = []
    for payload in chain:
        rows += [(payload.number, path, None) for path in payload.deletes]
        rows += [(payload.number, path, value) for path, value in payload.updates.items()]
        rows += [
            (payload.number, path, value)
            for sub in payload.sub_batches.values()
            if sub is not None
            for path, value in sub.updates.items()
        ]
    return sorted(rows, key=str)


def publish(url: str, app: Application, chain: Sequence[Payload], *producers: str) -> None:
    opened = [Producer(url, app, producer_id=name) for name in producers]
    for payload in chain:
        for producer in opened:
            producer.add(payload)
    for producer in opened:
        producer.close()


@pytest.mark.parametrize("producers", [("one",), ("one", "two")], ids=["one producer", "two producers"])
def test_payload_rows_are_what_was_published_with_ranges_and_without(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, producers: tuple[str, ...]
) -> None:
    url, chain_id = url_of(cardinal_broker), next(CHAIN_IDS)
    chain = mixed_chain(chain_id, 60)
    options = {"url": url, "chainId": str(chain_id), "table": "payload"}
    publish(url, apps.get("evm", chain_id=chain_id), chain, *producers)
    rows, _, _ = read(options)
    assert sorted(((row["_block_number"], row["path"], row["value"]) for row in rows), key=str) == content(chain)
    monkeypatch.setattr(Written, "header", lambda *_: None)
    other = f"other-{chain_id}"
    publish(url, apps.get("evm", chain_id=chain_id, topic=other), chain, *producers)
    again, _, _ = read({**options, "topic": other})

    def key(row: dict[str, Any]) -> tuple[int, str]:
        return row["_seq"], row["path"]

    told = [{**row, "_published_at": None} for row in sorted(rows, key=key)]
    assert told == [{**row, "_published_at": None} for row in sorted(again, key=key)]


def test_an_end_is_for_a_batch_read_alone() -> None:
    options = {"url": "kafka://127.0.0.1:1", "chainId": "1", "endingOffsets": "5"}
    CardinalReader(options, source_schema(options))
    with pytest.raises(ConfigurationError, match="endingOffsets is of a batch read"):
        CardinalStreamReader(options, source_schema(options))


def test_a_typed_table_is_read_from_its_own_topics(cardinal_broker: EmbeddedKafka) -> None:
    url, chain_id = url_of(cardinal_broker), next(CHAIN_IDS)
    steps = DevChain(DevSettings(seed=1, blocks=40, reorg_rate=0, transactions=20, chain_id=chain_id))
    chain = [payload_from_rpc(step.head.block, step.head.receipts, chain_id=chain_id) for step in islice(steps, 40)]
    publish(url, apps.get("evm", chain_id=chain_id), chain, "one")
    wanted = frames(chain)
    base = f"cardinal-{chain_id}"
    for table, order in ORDER.items():
        _, found, topics = read({"url": url, "chainId": str(chain_id), "table": table})
        keys = [("block_number", "ascending"), *((name, "ascending") for name in order)]
        due = wanted[table]
        assert found.select(due.schema.names).cast(due.schema).sort_by(keys).equals(due.sort_by(keys))
        assert f"{base}-state" not in topics
        assert (f"{base}-logs" in topics) == (table == "logs")
        assert (f"{base}-receipt" in topics) == (table == "receipts")


def test_a_batch_that_is_run_again_reads_the_ranges_that_were_planned(cardinal_broker: EmbeddedKafka) -> None:
    url, chain_id = url_of(cardinal_broker), next(CHAIN_IDS)
    publish(url, apps.get("evm", chain_id=chain_id), mixed_chain(chain_id, 40), "one", "two")
    options = SourceOptions.of({"url": url, "chainId": str(chain_id), "table": "payload"})
    stream = StreamSpec.find(options)
    planner = Planner(stream, options)
    start = planner.first()
    planner.freeze()
    seen = 0
    while (end := planner.next_offset(start, Limit(blocks=15))) != start:
        again = Planner(stream, options)
        assert again.plan(start, end) == planner.plan(start, end)
        again.close()
        seen += len(planner.plan(start, end))
        start = end
    planner.close()
    assert seen == 40
