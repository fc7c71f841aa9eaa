"""`transactional=update`: readers of committed records see a complete update or nothing, with kills at any time."""

from __future__ import annotations

import signal
import time
from collections import Counter
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from commands import Processes, fresh_chain_id
from confluent_kafka import KafkaError
from kafka_streams import DEADLINE, a_block, a_chain, child, everything_on, named, small_stream

from cardinal.apps import Application, get
from cardinal.errors import ClientStoppedError, ConfigurationError, DeliveryError, FencedError
from cardinal.producer import Producer
from cardinal.protocols.streams import Completed, Payload, Reassembler, reorg_topic
from cardinal.protocols.streams.types import BlockRef, Partition, Record
from cardinal.protocols.streams.wire.messages import BATCH
from cardinal.transports import open_source
from cardinal.transports.kafka import TransactionalKafkaSink, transactions
from cardinal.transports.registry import list_topics
from cardinal_devkit.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.broker

BUSY = """
import sys
from kafka_streams import a_block, a_chain, small_stream, named
from cardinal.producer import Producer
from cardinal.protocols.streams.types import BlockRef
url, stem, first = sys.argv[1:]
first = int(first)
with Producer(url, small_stream(stem), producer_id="one") as producer:
    print("up", flush=True)
    for number in range(first, first + 100_000):
        producer.add(a_block(f"{number}a", f"{number - 1}a", values=30)).result()
        if number % 5 == 0:
            side = [a_block(f"{number - 1}b{first}", f"{number - 2}a"),
                    a_block(f"{number}b{first}", f"{number - 1}b{first}"),
                    a_block(f"{number + 1}b{first}", f"{number}b{first}")]
            producer.reorg(BlockRef(number - 2, named(f"{number - 2}a")), side).result()
        print(number, flush=True)
"""


HALF = """
import sys
from kafka_streams import a_block, small_stream
from cardinal.transports import open_sink
from cardinal.protocols.streams import split
url, stem = sys.argv[1:]
app = small_stream(stem)
sink = open_sink(url, app, producer_id="one")
*content, batch = split(a_block("2a", "1a"), app.topics, app.default_topic)
send = sink._send
def stage_and_say(stage):
    send(stage)
    print("half", flush=True)
    sys.stdin.readline()
sink._send = stage_and_say
future = sink.send(content, batch)
try:
    future.result()
    print("committed", flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""


def _url(broker: EmbeddedKafka, options: str = "") -> str:
    return f"kafka://{broker.bootstrap}?transactional=update{options}"


def _half_seen(records: list[Record], prefixes: tuple[str, ...] = ("a/",)) -> tuple[set[bytes], set[bytes]]:
    """Of what a reader of committed records has: hashes of all blocks spoken of, and of the complete ones."""
    reassembler = Reassembler(prefixes, prefixes=prefixes)
    whole = {event.payload.hash for event in reassembler.receive(records) if isinstance(event, Completed)}
    return {record.key[1:33] for record in records if record.key[0] in {0, 3}}, whole


def test_a_producer_killed_anywhere_leaves_nothing_half_for_readers_of_committed_records(
    cardinal_broker: EmbeddedKafka,
) -> None:
    app = small_stream()
    stem, url = app.default_topic.removesuffix("-block"), _url(cardinal_broker)
    first = 1
    for lasting in (0.05, 0.21, 0.4):
        with child(BUSY, url, stem, str(first)) as busy:
            assert busy.stdout is not None
            assert busy.stdout.readline() == "up\n"
            time.sleep(lasting)  # the kill is to hit anything, also what nobody thought of
            busy.kill()
            said = busy.stdout.read().split("\n")[:-1]
        first += len(said)
    Producer(url, app, producer_id="one").close()  # takes the id over, and what was open is aborted
    committed = everything_on(url, app)
    spoken, whole = _half_seen(committed)
    assert spoken == whole, "a block was half visible"
    assert {named(f"{number}a") for number in range(1, first)} <= whole, "what was acknowledged is there"
    branches = {block.lstrip(b"\0").split(b"b")[1] for block in whole if b"b" in block}
    for run in branches:
        at = sorted(int(b.lstrip(b"\0").split(b"b")[0]) for b in whole if b.endswith(b"b" + run))
        assert len(at) % 3 == 0, "a reorg was half visible"


def test_a_producer_killed_in_mid_transaction_shows_nothing_and_the_next_one_with_its_id_ends_it_at_once(
    cardinal_broker: EmbeddedKafka,
) -> None:
    app = small_stream()
    stem = app.default_topic.removesuffix("-block")
    url = _url(cardinal_broker, "&transaction.timeout.ms=600000")
    with Producer(url, app, producer_id="one") as producer:
        producer.add(a_block("1a", "0g")).result(DEADLINE)
    with child(HALF, url, stem) as half:
        assert half.stdout is not None
        assert half.stdout.readline() == "half\n"
        half.kill()
        half.wait(DEADLINE)
    with Producer(url, app, producer_id="one") as producer:
        producer.add(a_block("2a", "1a")).result(DEADLINE)
    spoken, whole = _half_seen(everything_on(url, app))
    assert spoken == whole == {named("1a"), named("2a")}


def test_a_hung_producer_holds_readers_no_longer_than_its_transaction_timeout_and_then_continues(
    cardinal_broker: EmbeddedKafka,
) -> None:
    app = small_stream()
    stem, url = app.default_topic.removesuffix("-block"), _url(cardinal_broker, "&transaction.timeout.ms=1500")
    with Producer(url, app, producer_id="other") as other, child(HALF, url, stem) as half:
        assert half.stdout is not None
        assert half.stdin is not None
        assert half.stdout.readline() == "half\n"
        half.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        other.add(a_block("1a", "0g", values=40)).result(DEADLINE)
        found = everything_on(url, app, list(app.all_topics))
        while not _half_seen(found)[1]:  # complete for a reader of committed records
            assert time.monotonic() - began < DEADLINE, "readers were held up"
            found = everything_on(url, app, list(app.all_topics))
        assert _half_seen(found) == ({named("1a")}, {named("1a")})
        half.send_signal(signal.SIGCONT)
        half.stdin.write("\n\n")
        half.stdin.flush()
        said = half.stdout.readline()
        assert said.startswith("ClientStoppedError"), said
        assert "transaction.timeout.ms" in said


def test_a_second_producer_with_the_same_id_ends_the_first_and_is_named_as_what_it_is(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the transaction in which the first one met it would be overdue."""
    app, other = small_stream(), small_stream()
    url = _url(cardinal_broker)
    with Producer(url, app, producer_id="one") as first, Producer(url, other, producer_id="one") as elsewhere:
        first.add(a_block("1a", "0g")).result(DEADLINE)
        with Producer(url, app, producer_id="one") as second:
            second.add(a_block("2a", "1a")).result(DEADLINE)
            with pytest.raises(FencedError, match="same id"):
                first.add(a_block("2a", "1a")).result(DEADLINE)
            monkeypatch.setattr(transactions, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 3600))
            with pytest.raises(FencedError, match="same id"):
                first.add(a_block("3a", "2a")).result(DEADLINE)
            monkeypatch.undo()
            second.add(a_block("3a", "2a")).result(DEADLINE)
        elsewhere.add(a_block("1a", "0g")).result(DEADLINE)  # the same id on another stream
    assert not FencedError.retriable
    spoken, whole = _half_seen(everything_on(url, app))
    assert spoken == whole == {named("1a"), named("2a"), named("3a")}


@pytest.mark.slow
@pytest.mark.parametrize("away", ["a moment", "longer than a transaction may be open"])
def test_a_killed_broker_holds_transactions_up_and_loses_nothing(
    cardinal_killable_broker: EmbeddedKafka, away: str
) -> None:
    app, url = small_stream(), _url(cardinal_killable_broker, "&transaction.timeout.ms=2000")
    payloads = a_chain(" ".join(f"{number}a" for number in range(1, 121)), values=20)
    failed: list[Payload] = []

    def ended(payload: Payload, done: Future[None]) -> None:
        if done.exception() is not None:
            failed.append(payload)

    producer = Producer(url, app, producer_id="one", max_blocks=200)
    for payload in payloads:
        producer.add(payload).add_done_callback(partial(ended, payload))
    while producer.stats.blocks < 20:
        time.sleep(0.001)
    cardinal_killable_broker.kill()
    assert producer.stats.in_flight > 0
    # A transaction whose messages were being sent fails within its two seconds; one that was being committed
    # does not: the commit is tried until the broker answers.
    back = time.monotonic() + (0.0 if away == "a moment" else 8.0)
    while not failed and time.monotonic() < back:
        time.sleep(0.01)
    cardinal_killable_broker.start()
    deadline = time.monotonic() + DEADLINE
    while producer.stats.in_flight:
        assert time.monotonic() < deadline
        try:
            while failed:  # aborted with the broker
                again = failed.pop()
                producer.add(again).add_done_callback(partial(ended, again))
        except ClientStoppedError:  # unreachable for longer than a transaction may be open: a new one sends the rest
            producer.close()
            left = sorted({one.hash: one for one in (again, *failed)}.values(), key=lambda payload: payload.number)
            failed.clear()
            producer = Producer(url, app, producer_id="one", max_blocks=200)
            for payload in left:
                producer.add(payload).add_done_callback(partial(ended, payload))
        time.sleep(0.01)
    producer.close()
    spoken, whole = _half_seen(everything_on(url, app))
    assert spoken == whole == {payload.hash for payload in payloads}


def test_a_timeout_that_the_broker_refuses_is_named(cardinal_broker: EmbeddedKafka) -> None:
    with pytest.raises(ConfigurationError, match=r"the broker refuses transaction\.timeout\.ms=99999999") as caught:
        Producer(_url(cardinal_broker, "&transaction.timeout.ms=99999999"), small_stream(), producer_id="one")
    assert caught.value.setting == "transaction.timeout.ms"


def test_a_produce_command_that_another_one_with_its_id_fenced_reports_it_and_exits(
    cardinal_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    chain_id = fresh_chain_id()
    node = f"dev://?seed=5&blocks=2000&rate=20&reorg-rate=0.1&chain-id={chain_id}"
    args = ("--from", node, "--to", _url(cardinal_broker), "--producer-id", f"p{chain_id}")
    app = get("evm", chain_id=chain_id)
    with Processes(tmp_path) as processes:
        first = processes.start("produce", *args)
        _until_written(_url(cardinal_broker), app, 5)
        second = processes.start("produce", *args)
        status, _, said = processes.end(first)
        assert status == 1
        assert "error: another producer with the same id took over" in said
        assert second.poll() is None
        second.kill()
    spoken, whole = _half_seen(everything_on(_url(cardinal_broker), app), tuple(app.prefixes))
    assert spoken == whole


def _until_written(url: str, app: Application, batches: int) -> None:
    source = open_source(url, app, topics=[app.default_topic], wait=DEADLINE)
    try:
        source.assign({where: low for where, (low, _) in source.watermarks().items()})
        found = 0
        deadline = time.monotonic() + DEADLINE
        while found < batches:
            assert time.monotonic() < deadline
            found += sum(record.key[:1] == b"\0" for record in source.poll(1000, 0.2))
    finally:
        source.close()


def test_an_idle_producer_leaves_a_heartbeat_behind_its_markers(
    cardinal_broker: EmbeddedKafka,
) -> None:
    """Consumers of the Go implementation are at a partition's end when they have read its last offset but one."""
    app = small_stream()
    with Producer(_url(cardinal_broker), app, producer_id="one") as producer:
        for payload in a_chain("1a 2a 3a"):
            producer.add(payload).result(DEADLINE)
        source = open_source(_url(cardinal_broker), app)
        deadline = time.monotonic() + DEADLINE
        last: dict[Partition, Record] = {}
        while True:
            marks = source.watermarks()
            source.assign({tp: max(low, high - 1) for tp, (low, high) in marks.items()})
            last = {(record.topic, record.partition): record for record in source.poll(1_000, 0.5)}
            if last.keys() == marks.keys():
                break
            assert time.monotonic() < deadline, "a marker is no record: nothing is read at its offset"
        assert not any(record.key for record in last.values())
        source.close()


# --- `transactional=update`: whatever one call publishes appears as a whole, seen from after each of its steps -------


def _block(producer: Producer) -> Future[None]:
    return producer.add(a_block("4a", "3a", values=20))


def _branch(producer: Producer) -> Future[None]:
    return producer.reorg(BlockRef(1, named("1a")), a_chain("2b 3b 4b", root="1a", values=20))


@pytest.mark.parametrize(
    ("publish", "names", "threshold"),
    [
        pytest.param(_block, "4a", 16, id="block"),
        pytest.param(_branch, "2b 3b 4b", 16, id="branch"),
        pytest.param(_branch, "1a 2b 3b 4b", 1, id="deep branch: its announcement and its end name the ancestor"),
    ],
)
def test_nothing_is_visible_before_everything_is(
    cardinal_broker: EmbeddedKafka,
    monkeypatch: pytest.MonkeyPatch,
    publish: Callable[[Producer], Future[None]],
    names: str,
    threshold: int,
) -> None:
    """A transaction is sent in steps, what carries the content first: after each, a reader looks what it can see."""
    app, url = small_stream(threshold=threshold), f"kafka://{cardinal_broker.bootstrap}?transactional=update"
    published = {named(name) for name in names.split()}
    views: list[Counter[bytes]] = []
    with Producer(url, app, producer_id=app.default_topic) as producer:
        for payload in a_chain("1a 2a 3a"):
            producer.add(payload).result(DEADLINE)
        before = _seen(url, app)
        sink = producer._sink
        assert isinstance(sink, TransactionalKafkaSink)
        send = sink._send

        def send_and_look(stage: object) -> None:
            send(stage)
            views.append(_seen(url, app))

        monkeypatch.setattr(sink, "_send", send_and_look)
        publish(producer).result(DEADLINE)
        monkeypatch.setattr(sink, "_send", send)  # the last ping comes after everything
    after = _seen(url, app)
    assert len(views) > 1, "it is sent in one step, and there is nothing to see here"
    assert all(after[block] > before[block] for block in published)
    for view in views:
        assert view == before, "it was visible in part"


def _seen(url: str, app: Application) -> Counter[bytes]:
    """How many records of each block a reader of committed records can see, the channel's included."""
    channel = reorg_topic(app.default_topic, named("1a"))
    topics = [*app.all_topics, *({channel} & list_topics(url))]
    return Counter(record.key[1:33] for record in everything_on(url, app, topics))


# --- transactions that were open for too long: the broker fences their producer, and a new one takes its place -------


def _hang_once(producer: Producer, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
    """Let the producer's next transaction be open for longer than it may be."""
    sink: Any = producer._sink
    send = sink._send

    def hang(*args: object) -> None:
        monkeypatch.setattr(sink, "_send", send)
        send(*args)
        time.sleep(2.5)  # longer than the timeout and the broker's interval: what this is about
        if error is not None:
            raise error

    monkeypatch.setattr(sink, "_send", hang)


@pytest.mark.parametrize("aborted", [False, True])
def test_a_producer_whose_transaction_was_overdue_stops_and_a_new_one_sends_again(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, *, aborted: bool
) -> None:
    """Whether the client hears of it at the commit, or finds out itself when it aborts."""
    url = f"kafka://{cardinal_broker.bootstrap}?transactional=update&transaction.timeout.ms=1000"
    app = small_stream()
    with Producer(url, app, producer_id="hung", ping_seconds=0.2) as producer:
        producer.add(a_block("1a", "0g")).result(DEADLINE)
        failure = transactions._UndeliveredError(KafkaError(KafkaError._MSG_TIMED_OUT)) if aborted else None
        _hang_once(producer, monkeypatch, failure)
        failed, waiting = producer.add(a_block("2a", "1a")), producer.add(a_block("3a", "2a"))
        with pytest.raises(ClientStoppedError, match="timeout"):
            failed.result(DEADLINE)
        with pytest.raises((ClientStoppedError, DeliveryError)):
            producer.add(a_block("4a", "3a")).result(DEADLINE)
        with pytest.raises((ClientStoppedError, DeliveryError)):
            producer.flush(DEADLINE)
        assert not waiting.done(), "its parent is to be sent again"
    with pytest.raises(DeliveryError, match="closed before block") as caught:
        waiting.result(0)
    assert caught.value.hash == named("3a")
    assert ClientStoppedError.retriable
    with Producer(url, app, producer_id="hung") as producer:
        for number in (2, 3):
            producer.add(a_block(f"{number}a", f"{number - 1}a")).result(DEADLINE)
    assert len([one for one in everything_on(url, app) if one.key[:1] == bytes((BATCH,))]) == 3
