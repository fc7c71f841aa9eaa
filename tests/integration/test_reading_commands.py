"""`cardinal tail`, `cardinal status` and `cardinal topics` on streams with reorgs, gaps and several chains."""

from __future__ import annotations

import json
import time
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from commands import fresh_chain_id

from blocks import DEADLINE, hash_of
from cardinal import apps
from cardinal.apps.blob import Blob, payload
from cardinal.cli.main import cardinal
from cardinal.errors import CardinalError
from cardinal.producer import Producer
from cardinal.protocols.streams import split
from cardinal.protocols.streams.publishing.splitter import reorg_topic
from cardinal.transports import list_topics
from cardinal_devkit.testing.memory import MemoryBroker
from cardinal_ingest.cluster.topics import claims_topic, promoted_topic
from clocks import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams.payload import Payload
    from cardinal_devkit.kafka.broker import EmbeddedKafka

LAST = 160
APP = apps.get("blob", chain_id=7)


def branch(below: str, *names: str, more: int = 0) -> list[Payload]:
    """Blocks of two keys each."""
    return [
        payload(Blob(int(name[:-1]), hash_of(name), hash_of(parent), {"a": b"1", "b": b"2"}, int(name[:-1]) + more))
        for parent, name in pairwise((below, *names))
    ]


def publish(url: str, *payloads: Payload, app: apps.Application = APP, producer_id: str = "one") -> None:
    with Producer(url, app, producer_id=producer_id) as producer:
        for each in payloads:
            producer.add(each)
        producer.flush(DEADLINE)


@pytest.fixture
def clock() -> Clock:
    return Clock(time.time())


@pytest.fixture
def broker(clock: Clock) -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2, clock=clock) as broker:
        yield broker


@pytest.fixture
def gap(broker: MemoryBroker) -> str:
    """The blocks 1 to LAST, of which 5 lacks a message: more than the reorg threshold follows."""
    publish(broker.url, *branch("0a", "1a", "2a", "3a", "4a"))
    *rest, _, batch = split(branch("4a", "5a")[0], APP.topics, APP.default_topic)
    broker.sink(APP, producer_id="one").send([*rest, batch], None).result(DEADLINE)
    publish(broker.url, *branch("5a", *(f"{number}a" for number in range(6, LAST + 1))))
    return broker.url


def run(*args: str) -> Result:
    done = CliRunner().invoke(cardinal, args)
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"
    return done


def refusal(*args: str) -> str:
    done = CliRunner().invoke(cardinal, args)
    assert isinstance(done.exception, CardinalError | SystemExit), done.output
    return str(done.exception) if isinstance(done.exception, CardinalError) else done.output


def rows(text: str) -> list[list[str]]:
    """The words of each line below the header."""
    assert all(len(line) <= 90 for line in text.splitlines())
    return [line.split() for line in text.splitlines()[2:]]


# --- tail ----------------------------------------------------------------------------------------------------


def test_a_table_has_a_header_and_a_line_for_each_block(broker: MemoryBroker) -> None:
    publish(broker.url, *branch("0a", "1a", "2a", "3a"))
    shown = run("tail", broker.url, "--app", "blob", "--exit-at-end").stdout
    title, columns, *_ = shown.splitlines()
    assert title == f"blob:7 on {broker.url}"
    assert columns.split() == ["block", "hash", "time", "(UTC)", "age", "messages"]
    short = [f"0x{hash_of(name).hex()[:10]}…" for name in ("1a", "2a", "3a")]
    assert rows(shown) == [["+", str(n), short[n - 1], "-", "-", "2"] for n in (1, 2, 3)]


def test_a_reorg_has_a_line_and_its_removed_blocks_stand_before_the_added_ones(broker: MemoryBroker) -> None:
    publish(broker.url, *branch("0a", "1a", "2a", "3a"))
    publish(broker.url, *branch("1a", "2b", "3b", "4b", more=1))
    shown = rows(run("tail", broker.url, "--app", "blob", "--start", "1", "--exit-at-end").stdout)
    assert [row[:2] for row in shown] == [
        *(["+", "1"], ["+", "2"], ["+", "3"]),
        *(["!", "reorg"], ["-", "3"], ["-", "2"]),
        *(["+", "2"], ["+", "3"], ["+", "4"]),
    ]
    assert " ".join(shown[3]).startswith("! reorg of 2 blocks: from 3 0x")


def test_it_ends_after_so_many_blocks_or_at_a_number(broker: MemoryBroker) -> None:
    publish(broker.url, *branch("0a", *(f"{number}a" for number in range(1, 21))))
    for option, last in (("-n", 7), ("--stop", 9)):
        shown = run("tail", broker.url, "--app", "blob", option, str(last)).stdout
        assert [int(row[1]) for row in rows(shown)] == list(range(1, last + 1))


def test_lost_content_reads_missing_and_the_log_says_why(gap: str) -> None:
    done = run("tail", gap, "--app", "blob", "--start", "1", "--exit-at-end")
    contents = {int(row[1]): row[-1] for row in rows(done.stdout)}
    assert contents == {number: "missing" if number == 5 else "2" for number in range(1, LAST + 1)}
    assert "block 5 0x" in done.stderr
    assert "is incomplete: it lacks 1 message" in done.stderr


def test_a_json_line_has_what_its_help_says(gap: str) -> None:
    text = run("tail", gap, "--app", "blob", "--start", "1", "--exit-at-end", "--format", "json").stdout
    added: list[dict[str, Any]] = [block for line in text.splitlines() for block in json.loads(line)["added"]]
    assert {block["number"]: block["messages"] for block in added} == {
        n: None if n == 5 else 2 for n in range(1, LAST + 1)
    }
    assert added[0] == {
        "number": 1,
        "hash": f"0x{hash_of('1a').hex()}",
        "time": None,
        "messages": 2,
    }
    cursor = json.loads(text.splitlines()[-1])["cursor"]
    rest = run("tail", gap, "--app", "blob", "--start", cursor, "--exit-at-end", "--format", "json").stdout
    assert not rest


# --- status --------------------------------------------------------------------------------------------------


def test_status_names_head_producers_and_the_gap(gap: str, clock: Clock) -> None:
    clock.now += 3
    publish(gap, *branch(f"{LAST - 1}a", f"{LAST}a"), producer_id="two")
    (text,) = run("status", gap, "--blocks", "200", "--json").stdout.splitlines()
    state = json.loads(text)
    assert (state["chain"], state["head"]["number"], state["head"]["hash"]) == (
        "blob:7",
        LAST,
        f"0x{hash_of(f'{LAST}a').hex()}",
    )
    assert [(one["number"], one["missing_messages"]) for one in state["missing"]] == [
        (5, {f"k/{hash_of('5a').hex()}/": 1})
    ]
    one, two = state["producers"]
    assert (one["name"], one["blocks"], one["first"], one["ended"]) == ("one", LAST, LAST, True)
    assert (two["name"], two["blocks"], two["first"], two["newest"]) == ("two", 1, 0, LAST)
    assert (one["lag"], two["lag"]) == (0, 3)
    shown = run("status", gap, "--blocks", "200").stdout
    assert f"  head       {LAST}  0x" in shown
    assert "  missing    5 0x" in shown
    assert all(len(line) <= 90 for line in shown.splitlines())


@pytest.mark.slow
def test_status_says_what_a_stream_waits_for(broker: MemoryBroker) -> None:
    *rest, _, batch = split(branch("4a", "5a")[0], APP.topics, APP.default_topic)
    publish(broker.url, *branch("0a", "1a", "2a", "3a", "4a"))
    broker.sink(APP, producer_id="one").send([*rest, batch], None).result(DEADLINE)
    publish(broker.url, *branch("5a", "6a", "7a"))
    state = json.loads(run("status", broker.url, "--json").stdout)
    assert (state["head"]["number"], state["highest"]) == (4, 7)
    assert [one["number"] for one in state["incomplete"]] == [5]
    assert "waiting    up to block 7" in run("status", broker.url).stdout


def test_status_leaves_out_blocks_below_those_that_it_checks(broker: MemoryBroker) -> None:
    """The parent of the orphan lies below them, and was not read."""
    publish(broker.url, *branch("0a", *(f"{number}a" for number in range(1, 21))))
    publish(broker.url, *branch("20a", *(f"{number}a" for number in range(21, 41))), *branch("19c", "20c"))
    state = json.loads(run("status", broker.url, "--blocks", "5", "--json").stdout)
    assert (state["head"]["number"], state["highest"], state["checked"]["first"]) == (40, 40, 36)
    assert state["incomplete"] == []


@pytest.mark.slow
def test_status_of_one_block_says_what_it_lacks(gap: str) -> None:
    shown = run("status", gap, "--hash", f"0x{hash_of('5a').hex()}").stdout
    assert shown.startswith("block 5 of blob:7 is ")
    assert "  it lacks 1 message" in shown
    assert "never published" in refusal("status", gap, "--hash", "11" * 32)
    assert json.loads(run("status", gap, "--hash", "11" * 32, "--json").stdout)["state"] == "unknown"
    assert "write a block's whole hash" in refusal("status", gap, "--hash", "0x12")


def test_a_stream_without_blocks_has_a_status(broker: MemoryBroker) -> None:
    publish(broker.url)
    assert "head       none" in run("status", broker.url).stdout
    assert json.loads(run("status", broker.url, "--json").stdout)["head"] is None


# --- topics --------------------------------------------------------------------------------------------------


def test_topics_of_all_streams_are_listed_by_chain(broker: MemoryBroker) -> None:
    publish(broker.url, *branch("0a", "1a"))
    publish(broker.url, app=apps.get("evm", chain_id=5))
    listed = {}
    for line in run("topics", broker.url, "--json").stdout.splitlines():
        stream = json.loads(line)
        listed[stream["chain"]] = {one["name"]: (one["partitions"], one["retention_ms"]) for one in stream["topics"]}
    assert listed["blob:7"] == {"blob-7": (2, None), "blob-7-keys": (2, None)}
    assert "cardinal-5-tx" in listed["evm:5"]
    assert "name the one to delete by --chain-id" in refusal("topics", broker.url, "--delete")
    assert "deleted on Kafka only" in refusal("topics", broker.url, "--app", "blob", "--delete", "--yes")


@pytest.mark.broker
def test_the_topics_of_one_stream_are_deleted_and_no_others(cardinal_broker: EmbeddedKafka) -> None:
    url, (first, second) = f"kafka://{cardinal_broker.bootstrap}", sorted(fresh_chain_id() for _ in range(2))
    mine, other = apps.get("blob", chain_id=first), apps.get("blob", chain_id=second)
    for app in (mine, other):
        publish(url, *branch("0a", "1a"), app=app)
    args = ("topics", url, "--app", "blob", "--chain-id", str(first), "--delete")
    asked = CliRunner().invoke(cardinal, args, input="n\n")
    assert asked.exit_code == 1
    assert set(mine.all_topics) <= list_topics(url)
    assert "7 d" in asked.stdout
    assert "add --yes where no terminal can answer" in asked.stderr
    run(*args, "--yes")
    assert set(mine.all_topics).isdisjoint(list_topics(url))
    assert set(other.all_topics) <= list_topics(url)
    assert f"no topic of any blob stream of chain {first} on" in refusal(*args, "--yes")


def test_all_topics_of_a_stream_are_listed_whatever_is_left_of_it(broker: MemoryBroker) -> None:
    """A deletion that was interrupted may leave any of them."""
    app = apps.get("blob", chain_id=9)
    channel = reorg_topic(app.default_topic, hash_of("4a"))
    left = [
        *app.all_topics[1:],
        claims_topic("blob-9", 0),
        claims_topic("blob-9", 12),
        promoted_topic("blob-9"),
        channel,
    ]
    others = ["blob-9-notes", "blob-9-claims-x", "blob-9-re-notes", "blob-90-keys", "my-blob-9-promoted"]
    for name in (*left, *others):
        broker.create(name)
    listed = json.loads(run("topics", broker.url, "--json", "--chain-id", "9").stdout)
    assert listed["chain"] == "blob:9"
    assert sorted(one["name"] for one in listed["topics"]) == sorted(left)
    assert "no topic of any evm stream of chain 9" in refusal("topics", broker.url, "--app", "evm", "--chain-id", "9")
    custom = json.loads(run("topics", broker.url, "--json", "--chain-id", "9", "--topic", "my-blob-9").stdout)
    assert [one["name"] for one in custom["topics"]] == ["my-blob-9-promoted"]
