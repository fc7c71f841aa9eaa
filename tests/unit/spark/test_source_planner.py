"""The source without Spark: a development chain on a broker in memory, planned batch by batch and read again."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal import apps
from cardinal.errors import (
    ConfigurationError,
    CursorExpiredError,
    CursorInvalidError,
    CursorMismatchError,
    MissingPayloadError,
    UnreachableError,
)
from cardinal.producer import Producer
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.protocols.streams.types import Routed
from cardinal_devkit.devchain import DevChain, DevSettings
from cardinal_devkit.testing.memory import MemoryBroker
from cardinal_ethereum import payload_from_rpc
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.rows import AppSpec, RawRow, encode_content, weight_bytes
from cardinal_spark.source.feed import UpdateFeed
from cardinal_spark.source.final import PackedChain, final_chain
from cardinal_spark.source.offsets import PlannedRow
from cardinal_spark.source.options import SourceOptions, StreamSpec
from cardinal_spark.source.planner import Limit, Planner
from cardinal_spark.source.tables import KeyRow, TableSettings, block_batches
from cardinal_spark.source.tasks import grouped, read_blocks
from cardinal_spark.testing import commit_batch
from examples import few
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from cardinal.protocols.streams import Payload

CHAIN_ID = 7
THRESHOLD = 8
SPEC = {"chain_id": CHAIN_ID, "reorg_threshold": THRESHOLD}
NAMES = count()
UNLIMITED = Limit()


class Topics:
    """A broker, two producers, and a development chain to publish step by step."""

    def __init__(self, *, blocks: int = 30, seed: int = 3, merged: bool = False) -> None:
        seconds = count(1_600_000_000)  # no two records at the same time: their order is known
        self.broker = MemoryBroker(f"source-{next(NAMES)}", clock=lambda: float(next(seconds)))
        self.app = apps.get("evm", **SPEC)
        self.stream = StreamSpec(self.broker.url, AppSpec("evm", SPEC).text(), 0.0)
        self.producers = [Producer(self.broker.url, self.app, producer_id=name) for name in ("a", "b")]
        self.steps = DevChain(
            DevSettings(seed=seed, blocks=blocks, reorg_rate=0.4, chain_id=CHAIN_ID, transactions=2, merged=merged)
        )
        self.names: dict[str, Payload] = {}
        self.payloads: dict[bytes, Payload] = {}
        self.chain: list[bytes] = []
        self.planners: list[Planner] = []

    def publish(self, steps: int = 10_000) -> int:
        """Publish so many steps of the chain, and return how many there were."""
        done = 0
        for step in islice(self.steps, steps):
            done += 1
            for block in step.mined:
                payload = payload_from_rpc(
                    block.block, block.receipts, chain_id=CHAIN_ID, finality=self.steps.finality(step.head)
                )
                self.names[block.plan.name] = payload
                self.payloads[payload.hash] = payload
                for producer in self.producers:
                    producer.add(payload)
            if step.move.removed:
                del self.chain[-len(step.move.removed) :]
            self.chain += [self.names[name].hash for name in step.move.added]
        for producer in self.producers:
            producer.flush()
        return done

    def publish_unfinished(self) -> int:
        """Publish a block above the head without its last message but the Batch; returns its number."""
        head = self.payloads[self.chain[-1]]
        above = replace(head, number=head.number + 1, hash=bytes(32), parent=head.hash, weight=head.weight + 1)
        *messages, _, batch = split(above, self.app.topics, self.app.default_topic)
        for message in (*messages, batch):
            self.broker.take(message, ())
        return above.number

    def planner(self, stream: StreamSpec | None = None, **options: str) -> Planner:
        given = SourceOptions.of({"url": self.broker.url, "topicsTimeout": "0", **options})
        made = Planner(replace(stream or self.stream, consuming=given.consuming), given)
        self.planners.append(made)
        return made

    def close(self) -> None:
        for planner in self.planners:
            planner.close()
        for producer in self.producers:
            producer.close()
        self.broker.close()


@pytest.fixture
def topics() -> Iterator[Topics]:
    made = Topics()
    yield made
    made.close()


def batches(
    planner: Planner, start: dict[str, Any] | None = None, limit: Limit = UNLIMITED
) -> Iterator[dict[str, Any]]:
    """The ends of the batches that AvailableNow would run."""
    planner.freeze()
    start = planner.first() if start is None else start
    while (end := planner.next_offset(start, limit)) != start:
        yield end
        start = end


def report_of(planner: Planner) -> dict[str, Any]:
    report = planner.report()
    assert report is not None
    return report


def rows_of(planner: Planner, start: dict[str, Any] | None = None) -> list[PlannedRow]:
    return [row for end in batches(planner, start) for row in planner.plan({}, end)]


def planned_from_ends(made: Callable[[], Planner], start: dict[str, Any]) -> list[PlannedRow]:
    """The same from the ends of the batches alone, by a planner for each that has read nothing before."""
    return [row for end in batches(made(), start) for row in made().plan({}, end)]


def whole_chain(stream: StreamSpec, *ends: str) -> list[PlannedRow]:
    return [planned for rows in final_chain(stream, *(ends or ("earliest",))) for planned in rows]


def newest(topics: Topics) -> dict[str, Any]:
    """The offset at which everything is read."""
    *_, end = batches(topics.planner())
    return end


def replayed(rows: Sequence[PlannedRow]) -> list[bytes]:
    chain: list[bytes] = []
    for seq, (row, *_) in enumerate(rows, 1):
        assert row.seq == seq
        if row.change == 1:
            chain.append(row.hash)
        else:
            assert chain.pop() == row.hash
    return chain


def need_whole(topics: Topics, rows: Sequence[PlannedRow]) -> None:
    for key, payload in read_blocks(topics.stream, rows):
        published = topics.payloads[key.hash]
        assert payload is not None
        assert (payload.number, payload.parent, payload.weight) == (key.number, key.parent, key.weight)
        assert (dict(payload.updates), payload.deletes) == (dict(published.updates), published.deletes)


@pytest.mark.parametrize("limit", [UNLIMITED, Limit(blocks=3), Limit(bytes=10_000)], ids=["none", "blocks", "bytes"])
def test_a_batch_is_found_again_by_its_end_alone_and_its_blocks_are_read_whole(topics: Topics, limit: Limit) -> None:
    topics.publish()
    planner = topics.planner()
    rows: list[PlannedRow] = []
    sizes = []
    for end in batches(planner, limit=limit):
        planned = planner.plan({}, end)
        assert topics.planner().plan({}, json.loads(json.dumps(end))) == planned
        rows += planned
        sizes.append(Counter(row.update_id for row, *_ in planned))
        for group in grouped(planned, 50_000):
            need_whole(topics, group)
    assert replayed(rows) == topics.chain
    if limit.blocks is not None:
        # exceeded by one update at most
        assert all(size.total() <= limit.blocks or len(size) == 1 for size in sizes)
    if limit != UNLIMITED:
        assert len(sizes) > 4


def test_a_stream_that_is_cut_anywhere_continues_to_the_same_chain(topics: Topics) -> None:
    """Every run is a new process that knows the last offset only; reorgs cross the cuts."""
    stored = None
    rows: list[PlannedRow] = []
    while topics.publish(3):
        planner = topics.planner()
        for end in batches(planner, stored):
            planned = planner.plan({}, end)
            need_whole(topics, planned)
            rows += planned
            stored = end
    assert replayed(rows) == topics.chain
    assert any(row.change == -1 for row, *_ in rows)


def test_nothing_ready_is_no_new_offset(topics: Topics) -> None:
    """Pings, and a block whose last message is missing, wake nobody."""
    topics.publish(4)
    start = newest(topics)
    planner = topics.planner()
    topics.publish_unfinished()
    topics.broker.take(Routed(topics.app.default_topic, b"\xff" + bytes(32), b""), ())
    assert planner.next_offset(start, UNLIMITED) == start
    until(lambda: report_of(planner)["lag_records"] == 0)
    assert planner.next_offset(start, UNLIMITED) == start


def test_what_the_chain_waits_for_is_a_warning_after_a_minute(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    topics.publish(4)
    now = [0.0]
    start = newest(topics)
    planner = Planner(topics.stream, SourceOptions.of({"url": topics.broker.url}), clock=lambda: now[0])
    topics.planners.append(planner)
    assert planner.report() is None
    number = topics.publish_unfinished()
    assert planner.next_offset(start, UNLIMITED) == start
    until(lambda: report_of(planner)["lag_records"] == 0)
    for seconds, warned in ((30.0, 0), (61.0, 1), (90.0, 1), (122.0, 2)):
        now[0] = seconds
        assert planner.next_offset(start, UNLIMITED) == start
        assert len(caplog.records) == warned
    assert f"the chain waits for block {number} (0x" in caplog.text
    report = report_of(planner)
    assert report["number"] == number - 1
    (waits,) = report["waits_for"]
    assert waits.startswith(f"block {number} (0x")


def test_records_that_are_gone_are_an_error(topics: Topics) -> None:
    topics.publish()
    end = newest(topics)
    for topic in topics.app.all_topics:
        for number in range(topics.broker.partitions):
            topics.broker.trim(topic, number, 100_000)
    with pytest.raises(CursorExpiredError):
        topics.planner().plan({}, end)


def test_topics_that_were_recreated_are_noticed(topics: Topics) -> None:
    topics.publish(8)
    end = newest(topics)
    other = Topics(seed=99)
    other.publish(40)
    with pytest.raises(MissingPayloadError, match="was complete when it was planned"):
        other.planner().plan({}, end)
    other.close()


def test_an_option_that_changes_the_chain_is_refused(topics: Topics) -> None:
    topics.publish(8)
    end = newest(topics)
    other = StreamSpec(topics.broker.url, AppSpec("evm", {"chain_id": CHAIN_ID, "reorg_threshold": 64}).text(), 0.0)
    with pytest.raises(CursorMismatchError, match="threshold"):
        topics.planner(other).next_offset(end, UNLIMITED)


@pytest.mark.parametrize("offset", [{"v": 1}, {"v": 2, "cursor": "c1:nonsense", "batch": ""}])
def test_an_offset_that_is_none_is_refused(topics: Topics, offset: dict[str, Any]) -> None:
    topics.publish(2)
    with pytest.raises(CursorInvalidError):
        topics.planner().next_offset(offset, UNLIMITED)
    with pytest.raises(CursorInvalidError):
        topics.planner().plan({}, offset)


def test_an_offset_whose_batch_was_cut_is_refused(topics: Topics) -> None:
    topics.publish(8)
    end = newest(topics)
    with pytest.raises(CursorInvalidError, match="batch is malformed"):
        topics.planner().plan({}, {**end, "batch": end["batch"][:8]})


def test_a_batch_that_ends_where_it_begins_has_no_rows(topics: Topics) -> None:
    """Spark runs one at the first offset of a stream that is still empty."""
    topics.publish(8)
    end = newest(topics)
    planner = topics.planner()
    assert planner.plan(end, end) == planner.plan(planner.first(), planner.first()) == []


@pytest.mark.slow
def test_a_stream_begins_at_a_number_a_time_or_a_cursor() -> None:
    topics = Topics(blocks=60)
    topics.publish()
    rows = rows_of(topics.planner(startingOffsets="40"))
    assert replayed(rows) == topics.chain[40:]
    assert rows[0].row.number == 40
    with pytest.raises(ConfigurationError, match="does not hold block 61 yet"):
        rows_of(topics.planner(startingOffsets="61"))
    moment = datetime.fromtimestamp(rows[5].row.published_ms / 1000, UTC).isoformat()
    from_moment = [row.hash for row, *_ in rows_of(topics.planner(startingOffsets=moment))]
    assert rows[5].row.hash in from_moment
    assert rows[0].row.hash not in from_moment
    end = next(batches(topics.planner(startingOffsets="40"), limit=Limit(blocks=3)))
    assert topics.planner(startingOffsets=end["cursor"]).first()["seq"] == end["seq"]
    topics.close()


def test_a_lost_checkpoint_continues_behind_the_lake(topics: Topics, tmp_path: Path) -> None:
    """What the first stream delivered and what the second one delivers are one gapless ledger."""
    topics.publish(25)
    rows = rows_of(topics.planner())
    kept = [row for row in rows if row.row.update_id < rows[-4].row.update_id]
    to_lake(kept, tmp_path)
    topics.publish()
    more = rows_of(topics.planner(restartFrom="sink", sinkPath=str(tmp_path)))
    assert replayed([*kept, *more]) == topics.chain
    assert {row.lineage for row, *_ in more} == {row.lineage for row, *_ in kept}


def to_lake(rows: Sequence[PlannedRow], path: Path) -> None:
    spec = AppSpec("evm", SPEC).text()
    rest = [(row.key(None), row.lineage, spec, row.parent, weight_bytes(row.weight)) for row, *_ in rows]
    commit_batch(LakeLocation.of(str(path)), [[RawRow(*key, *others, encode_content([], {})) for key, *others in rest]])


def test_a_lake_that_the_topics_do_not_hold_is_refused(topics: Topics, tmp_path: Path) -> None:
    topics.publish(10)
    to_lake(rows_of(topics.planner()), tmp_path)
    other = Topics(seed=99)
    other.publish(3)
    with pytest.raises(CursorExpiredError):
        rows_of(other.planner(restartFrom="sink", sinkPath=str(tmp_path)))
    other.close()
    spec = AppSpec("evm", {"chain_id": CHAIN_ID, "reorg_threshold": 64}).text()
    options = SourceOptions.of({"url": topics.broker.url, "restartFrom": "sink", "sinkPath": str(tmp_path)})
    with pytest.raises(CursorMismatchError, match="another chain or with other options"):
        Planner(replace(topics.stream, spec=spec), options).first()


def test_a_batch_read_is_the_current_chain_up_to_its_end_option(topics: Topics) -> None:
    topics.publish()
    rows = whole_chain(topics.stream)
    assert [row.hash for row, *_ in rows] == topics.chain
    assert [(row.seq, row.change) for row, *_ in rows] == [(seq, 1) for seq in range(1, len(rows) + 1)]
    assert whole_chain(topics.stream, "latest") == []
    number = rows[-5].row.number
    assert whole_chain(topics.stream, "earliest", str(number)) == rows[:-4]
    assert whole_chain(topics.stream, str(number - 2), str(number))[-1].row.hash == rows[-5].row.hash
    assert len(whole_chain(topics.stream, str(number - 2), str(number))) == 3
    assert whole_chain(topics.stream, "earliest", "1000000") == rows
    moment = datetime.fromtimestamp(rows[-5].row.published_ms / 1000, UTC)
    assert [planned.row.published_ms <= rows[-5].row.published_ms for planned in rows].index(False, 1) == len(
        whole_chain(topics.stream, "earliest", moment.isoformat())
    )
    assert whole_chain(topics.stream, "earliest", "2001-01-01T00:00:00Z") == []


@pytest.mark.parametrize(("start", "end"), [("7", "6"), ("2026-02-01T00:00:00Z", "2026-01-31T23:59:59+00:00")])
def test_an_end_before_the_start_is_refused(topics: Topics, start: str, end: str) -> None:
    with pytest.raises(ConfigurationError, match=f"startingOffsets {start} and endingOffsets") as refused:
        whole_chain(topics.stream, start, end)
    assert refused.value.setting == "endingOffsets"


@pytest.mark.parametrize("seed", few(1, [5, 3, 7]))
def test_a_batch_read_begins_at_any_number_though_forks_begin_below_it(seed: int) -> None:
    topics = Topics(seed=seed)
    topics.publish()
    for number in range(len(topics.chain)):
        assert [planned.row.hash for planned in whole_chain(topics.stream, str(number))] == topics.chain[number:]
    topics.close()


@pytest.mark.slow
def test_a_stream_of_final_blocks_has_no_reorgs_and_continues_from_every_offset(tmp_path: Path) -> None:
    """Every batch is planned by a new process; a lake takes the place of the last checkpoint."""
    topics = Topics(blocks=60, merged=True)
    stored = None
    rows: list[PlannedRow] = []
    while topics.publish(3):
        for end in batches(topics.planner(finality="finalized"), stored):
            rows += topics.planner().plan({}, end)
            stored = end
    finalized = whole_chain(topics.stream, "earliest", "latest", "finalized")
    assert replayed(rows) == [planned.row.hash for planned in finalized]
    assert {planned.row.change for planned in rows} == {1}
    assert len(topics.names) > len(topics.chain)  # there were others
    to_lake(rows, tmp_path)
    lost = topics.planner(restartFrom="sink", sinkPath=str(tmp_path), finality="finalized")
    assert rows_of(lost) == []
    assert report_of(lost)["withheld"] == len(topics.chain) - len(rows)
    # Withheld blocks come when they are requested.
    more = rows_of(topics.planner(finality="latest"), stored)
    assert replayed([*rows, *more]) == topics.chain
    topics.close()


def test_a_batch_read_ends_with_the_last_final_block() -> None:
    topics = Topics(blocks=60, merged=True)
    topics.publish()
    whole = whole_chain(topics.stream)
    safe, finalized = (whole_chain(topics.stream, "earliest", "latest", level) for level in ("safe", "finalized"))
    assert finalized == whole[: len(finalized)]
    assert safe == whole[: len(safe)]
    assert 0 < len(finalized) < len(safe) < len(whole)
    topics.publish_unfinished()  # above what is final: nobody waits for it
    assert whole_chain(topics.stream, "earliest", "latest", "finalized") == finalized
    assert whole_chain(topics.stream, "earliest", "3", "finalized") == whole[:4]
    topics.close()


@pytest.mark.slow
def test_final_blocks_of_a_stream_without_marks_are_requested_in_vain(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topics.publish(8)
    with pytest.raises(ConfigurationError, match="no block of this stream carries the mark safe"):
        whole_chain(topics.stream, "earliest", "latest", "safe")
    assert rows_of(topics.planner(finality="safe")) == []
    now = [0.0]
    given = SourceOptions.of({"url": topics.broker.url, "finality": "safe"})
    planner = Planner(topics.stream, given, clock=lambda: now[0])
    topics.planners.append(planner)
    start = planner.first()
    assert planner.next_offset(start, UNLIMITED) == start
    until(lambda: report_of(planner)["withheld"] == len(topics.chain))
    now[0] = 61
    planner.next_offset(start, UNLIMITED)
    assert f"{len(topics.chain)} blocks are not safe yet, no block carries the mark safe" in caplog.text


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=60))
def test_a_chain_that_is_held_packed_is_the_chain(changes: list[tuple[int, int]]) -> None:
    chain, due, names = PackedChain(run=3), list[bytes](), count()
    for removed, added in changes:
        kept = len(due) - min(removed, len(due))
        new = [b"%d" % next(names) for _ in range(added)]
        rows = [PlannedRow(KeyRow(0, 1, 0, 5, name, 1, "aa", b"", 1), {("a", 0): (1, 2)}, 9) for name in new]
        chain.change(len(due) - kept, rows)
        due = due[:kept] + new
    rows = [planned for run in chain.runs() for planned in run]
    assert [planned.row.hash for planned in rows] == due
    assert [planned.row.seq for planned in rows] == list(range(1, len(due) + 1))


def test_a_batch_read_refuses_a_block_that_is_not_whole(topics: Topics) -> None:
    topics.publish(8)
    number = topics.publish_unfinished()
    with pytest.raises(MissingPayloadError, match=f"block {number} .0x00000000"):
        whole_chain(topics.stream)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "url"),
        ({"url": "kafka://h", "tabel": "logs"}, "tabel.*did you mean table"),
        ({"url": "kafka://h", "table": "nope"}, "table"),
        ({"url": "kafka://h", "startingOffsets": "-1"}, "startingOffsets"),
        ({"url": "kafka://h", "endingOffsets": "earliest"}, "endingOffsets must be latest"),
        ({"url": "kafka://h", "startingOffsets": "2026-01-31T12:00:00"}, "time with its zone"),
        ({"url": "kafka://h", "maxBlocksPerTrigger": "0"}, "maxBlocksPerTrigger"),
        ({"url": "kafka://h", "maxBlocksPerTrigger": "20001"}, "20,000 or fewer"),
        ({"url": "kafka://h", "failOnDataLoss": "false"}, "failOnDataLoss"),
        ({"url": "kafka://h", "restartFrom": "sink"}, "sinkPath"),
        ({"url": "kafka://h", "blacklist": "0x12"}, "blacklist"),
        ({"url": "kafka://h", "whitelist": "x=0x12"}, "whitelist"),
        ({"url": "kafka://h", "skip": "topic/1"}, "skip"),
        ({"url": "kafka://h", "onIncomplete": "wait"}, "on_incomplete"),
        ({"url": "kafka://h", "finality": "final"}, "finality must be one of latest, safe, finalized"),
        ({"url": "kafka://h", "table": "decoded_logs"}, "set table=decoded_logs and abi together"),
        ({"url": "kafka://h", "app": "blob"}, "blocks is of evm streams: of blob read payload, events, raw"),
        ({"url": "kafka://h", "abi": "event A()"}, "set table=decoded_logs and abi together"),
        ({"url": "kafka://h", "table": "decoded_logs", "abi": "nowhere.json"}, "the path of its file.*nowhere.json"),
        ({"url": "kafka://h", "table": "decoded_logs", "abi": "[{"}, "abi is not JSON"),
        ({"url": "kafka://h", "table": "decoded_logs", "abi": "pay(address)"}, "abi must hold an event"),
        ({"url": "kafka://h", "table": "decoded_logs", "abi": "event A(; b("}, "A"),
    ],
)
def test_an_option_that_cannot_work_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        SourceOptions.of(options)


def test_options_that_a_consumer_has_too_reach_it(topics: Topics) -> None:
    """A hash that is pinned or refused, records that are skipped: the chain ends below."""
    topics.publish(12)
    refused = topics.payloads[topics.chain[5]]
    (batch,) = {
        (record.topic, record.partition, record.offset)
        for record in topics.broker.records(topics.app.default_topic)
        if record.key == b"\x00" + refused.hash and record.headers[0][1] == b"a"
    }
    pinned = {"whitelist": f"{refused.number}=0x{bytes(32).hex()}"}
    for options in (pinned, {"blacklist": refused.hash.hex()}):
        assert refused.hash not in {row.hash for row, *_ in rows_of(topics.planner(**options))}
    planner = topics.planner(skip="/".join(map(str, batch)))
    assert replayed(rows_of(planner)) == topics.chain  # the other producer's copy is there
    assert report_of(planner)["reports"]["Rejected"] == 1


def test_no_option_is_shown_that_may_hold_a_password() -> None:
    options = SourceOptions.of({"url": "kafka://user:s3cr3t@h", "storage.key": "s3cr3t", "chainId": "5"})
    assert "s3cr3t" not in repr(options) + repr(StreamSpec.find(options))


def test_without_a_chain_id_the_only_stream_is_taken(topics: Topics) -> None:
    found = StreamSpec.find(SourceOptions.of({"url": topics.broker.url, "topicsTimeout": "0"}))
    assert AppSpec.parse(found.spec) == AppSpec("evm", {"chain_id": CHAIN_ID})
    assert found.app.chain == topics.app.chain


def test_tasks_receive_what_is_planned(topics: Topics) -> None:
    """Plain pickle, as Spark uses it, also after the driver's side has been at work."""
    topics.publish(12)
    rows = rows_of(topics.planner())
    stream, first = pickle.loads(pickle.dumps((topics.stream, rows[0])))  # noqa: S301 - our own bytes
    ((key, payload),) = read_blocks(stream, [first])
    assert payload is not None
    assert (key.seq, payload.hash) == (1, topics.chain[0])


def forked(payload: Payload, name: int, parent: bytes) -> Payload:
    """A block like this one on another branch, and heavier."""
    renamed = bytes([name]) * 32
    updates = {path.replace(payload.hash.hex(), renamed.hex()): value for path, value in payload.updates.items()}
    return replace(payload, hash=renamed, parent=parent, weight=payload.weight + 1_000_000_000, updates=updates)


def test_a_reorg_deeper_than_the_threshold_is_followed_through_its_channel(topics: Topics) -> None:
    topics.publish()
    base = 10
    start = newest(topics)
    head = topics.payloads[topics.chain[-1]].number
    branch: list[Payload] = []
    for number in range(base + 1, head + 2):
        like = topics.payloads[topics.chain[min(number, head)]]
        parent = branch[-1].hash if branch else topics.chain[base]
        branch.append(forked(replace(like, number=number), 100 + number, parent))
    assert head - base > 2 * THRESHOLD
    topics.producers[0].reorg(topics.payloads[topics.chain[base]].ref, branch).result(60)
    planner = topics.planner()
    rows = rows_of(planner, start)
    assert [row.hash for row, *_ in rows if row.change == 1] == [block.hash for block in branch]
    assert sum(row.change == -1 for row, *_ in rows) == head - base
    assert {topic for topic, _ in rows[-1].ranges}.isdisjoint(topics.app.all_topics)
    added = [row for row in rows if row.row.change == 1]
    for (_, payload), block in zip(read_blocks(topics.stream, added), branch, strict=True):
        assert payload is not None
        assert dict(payload.updates) == dict(block.updates)
    assert planned_from_ends(topics.planner, start) == rows


def test_a_block_whose_message_is_lost_is_a_row_without_content(topics: Topics) -> None:
    topics.publish()
    start = newest(topics)
    lost = topics.publish_unfinished()
    like = topics.payloads[topics.chain[-1]]
    parent = bytes(32)
    for number in range(lost + 1, lost + 4 * THRESHOLD):
        block = forked(replace(like, number=number, weight=like.weight + number), number, parent)
        topics.producers[0].add(block)
        parent = block.hash
    topics.producers[0].flush()
    with pytest.raises(MissingPayloadError, match=f"block {lost} "):
        whole_chain(replace(topics.stream, consuming={"on_incomplete": "halt"}))
    planner = topics.planner()
    rows = rows_of(planner, start)
    first, *others = rows
    assert (first.row.number, first.row.hash, first.row.parent) == (lost, bytes(32), b"")
    assert (first.ranges, first.size) == ({}, 0)
    assert all(row.ranges for row in others)
    assert [row.number for row, *_ in rows] == list(range(lost, lost + 4 * THRESHOLD))
    assert report_of(planner)["reports"]["Incomplete"] == 1
    assert planned_from_ends(topics.planner, start) == rows
    ((_, payload),) = read_blocks(topics.stream, [first])
    assert payload is None
    raw = TableSettings("raw", topics.stream.spec)
    (batch,) = block_batches([(first.row, None)], raw)
    assert (batch["content"][0].as_py(), batch["parent"][0].as_py()) == (None, None)
    assert not list(block_batches([(first.row, None)], replace(raw, table="payload")))


def test_partitions_that_are_added_are_read(topics: Topics) -> None:
    topics.publish(10)
    planner = topics.planner()
    start, rows = planner.first(), []
    for number in range(2):
        if number:
            for topic in topics.app.all_topics:
                topics.broker.widen(topic, 2 * topics.broker.partitions)
            topics.publish()
        while not rows or rows[-1].row.hash != topics.chain[-1]:
            end = planner.next_offset(start, UNLIMITED)
            rows += planner.plan(start, end)
            start = end
    assert replayed(rows) == topics.chain


def test_a_record_that_is_skipped_is_no_part_of_a_block(topics: Topics) -> None:
    """A bad copy before every good one: all of them are named."""
    topics.publish(10)
    start = newest(topics)
    head = topics.payloads[topics.chain[-1]]
    block = forked(replace(head, number=head.number + 1), 77, head.hash)
    bad: list[str] = []
    for message in split(block, topics.app.topics, topics.app.default_topic):
        for copy in (message._replace(value=b"BAD"), message):
            topics.broker.take(copy, ())
            if copy.value == b"BAD":
                newest_record = max(
                    (record for record in topics.broker.records(message.topic) if record.key == message.key),
                    key=lambda record: record.offset,
                )
                bad.append("/".join(map(str, newest_record[:3])))
    planner = topics.planner(skip=",".join(bad))
    (row,) = rows_of(planner, start)
    ((_, payload),) = read_blocks(planner.stream, [row])
    assert payload is not None
    assert dict(payload.updates) == dict(block.updates)
    assert planned_from_ends(partial(topics.planner, skip=",".join(bad)), start) == [row]


def test_latest_is_where_the_first_run_stood(topics: Topics) -> None:
    topics.publish(10)
    start = topics.planner(startingOffsets="latest").first()
    before = set(topics.payloads)
    assert rows_of(topics.planner(startingOffsets="latest"), start) == []
    topics.publish(10)
    rows = rows_of(topics.planner(startingOffsets="latest"), start)
    assert rows
    assert not before & {row.hash for row, *_ in rows}


def test_what_is_there_at_opening_is_waited_for(topics: Topics) -> None:
    """With Trigger.Once nobody asks a second time."""
    topics.publish()
    planner = topics.planner()
    start = planner.first()
    assert planner.next_offset(start, UNLIMITED) != start


def test_available_now_ends_with_an_error_while_nobody_answers(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot tell what is there, and a stop of the query would wait for it."""
    topics.publish(4)
    start = newest(topics)
    monkeypatch.setattr("cardinal_spark.source.planner._WAITED_SECONDS", 0.2)
    monkeypatch.setattr(UpdateFeed, "connected", property(lambda _: False))
    monkeypatch.setattr(UpdateFeed, "ended", property(lambda _: False))
    planner = topics.planner()
    planner.freeze()
    with pytest.raises(UnreachableError, match="resumes from its checkpoint"):
        planner.next_offset(start, UNLIMITED)


def test_an_answer_about_a_stream_that_is_not_read_yet_does_not_take_forever(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.publish(4)
    start = newest(topics)
    monkeypatch.setattr("cardinal_spark.source.planner._OPENING_SECONDS", 0.2)
    monkeypatch.setattr(UpdateFeed, "is_behind", property(lambda _: True))
    assert topics.planner().next_offset(start, UNLIMITED) == start
