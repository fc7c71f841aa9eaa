"""Recording a stream and playing it again: the same chain, the same cursors, the same producers."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import Processes, fresh_chain_id, replayed

from blocks import DEADLINE, Blocks, block, hash_of, line, publish, steps, until
from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.copying.recording import Recorder
from cardinal.copying.replaying import Player
from cardinal.errors import CursorExpiredError, LogInUseError, TransportError
from cardinal.producer import Producer
from cardinal.protocols.streams import BlockRef, Record
from cardinal.protocols.streams.payload import Payload
from cardinal.testing.memory import MemoryBroker
from cardinal.transports import open_sink, open_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.apps import Application
    from cardinal.embedded import EmbeddedKafka
    from cardinal.transports import Sink


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"here-{uuid.uuid4().hex}", partitions=3) as broker:
        yield broker


@pytest.fixture
def other() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"there-{uuid.uuid4().hex}", partitions=3) as broker:
        yield broker


def record_all(url: str, folder: Path, app: Application | None = None, **options: str) -> Recorder:
    """Record to the end of what is there."""
    recorder = Recorder(url, f"file://{folder}", app or Blocks(), **options)
    deadline = time.monotonic() + DEADLINE
    while not recorder.at_end:
        assert time.monotonic() < deadline, recorder.progress
        recorder.step(0.05)
    recorder.close()
    return recorder


class Plain:
    """A sink that only has what every sink has."""

    def __init__(self, sink: Sink) -> None:
        self.check, self.send, self.recent, self.flush, self.close = (
            sink.check,
            sink.send,
            sink.recent,
            sink.flush,
            sink.close,
        )


BOTH_WAYS = pytest.mark.parametrize("as_they_are", [True, False])


def play_all(folder: Path, url: str, topics: list[str] | None = None, *, as_they_are: bool = True) -> Player:
    """Play to the end."""
    app = Blocks()
    source = open_source(f"file://{folder}", app, topics=topics)
    sink = open_sink(url, app, producer_id="replay")
    try:
        player = Player(source, sink if as_they_are else Plain(sink), app)
        while player.step():
            pass
    finally:
        sink.close()
        source.close()
    return player


def records_of(url: str, app: Application | None = None, topics: list[str] | None = None) -> list[Record]:
    """Everything, in the order of reading."""
    source = open_source(url, app or Blocks(), topics=topics)
    marks = source.watermarks()
    source.assign({where: low for where, (low, _) in marks.items()})
    found: list[Record] = []
    while any(at < marks[where][1] for where, at in source.positions().items()):
        found += source.poll(1_000, 0.1)
    source.close()
    return found


def fork() -> list[Payload]:
    """Two reorgs and a fork that loses."""
    return [
        *line(1, 6),
        *line(5, 8, "b", below="4a", weight=1),
        block("8a", "7b", weight=7),
        *line(8, 10, "c", below="7b", weight=2),
    ]


def test_a_recording_holds_every_record_with_its_position_and_gives_the_same_chain(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    publish(broker, fork(), "one")
    publish(broker, fork(), "two")
    recorder = record_all(broker.url, tmp_path)
    recorded = records_of(f"file://{tmp_path}")
    assert sorted(recorded) == broker.records()
    assert recorder.progress.records == len(recorded)
    with Consumer(broker.url, Blocks()) as live, Consumer(f"file://{tmp_path}", Blocks()) as kept:
        assert steps(until(kept, "10c"))[-1] == steps(until(live, "10c"))[-1] == "+10c"


def test_in_a_recording_every_seal_comes_after_its_block(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, fork(), "one")
    publish(broker, fork(), "two")
    record_all(broker.url, tmp_path)
    seen: set[tuple[bytes, bytes, bytes]] = set()
    for record in records_of(f"file://{tmp_path}"):
        producer = dict(record.headers)["cardinal-producer"]
        if "cardinal-sealed" in dict(record.headers):
            mine = {one for one in seen if one[1:] == (record.key[1:33], producer)}
            assert len(mine) == 3
        elif record.key[:1] == b"\x03":
            seen.add((record.key, record.key[1:33], producer))


def test_a_cursor_of_the_stream_goes_on_with_its_recording_and_back(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 4))
    with Consumer(broker.url, Blocks()) as consumer:
        updates = until(consumer, "4a")
    publish(broker, line(5, 8))
    record_all(broker.url, tmp_path)
    with Consumer(f"file://{tmp_path}", Blocks(), start=updates[-1].cursor) as consumer:
        more = until(consumer, "8a")
    assert steps(more) == ["+5a", "+6a", "+7a", "+8a"]
    assert more[0].first_seq == updates[-1].seq + 1
    publish(broker, line(9, 9))
    with Consumer(broker.url, Blocks(), start=more[-1].cursor) as consumer:
        assert steps(until(consumer, "9a")) == ["+9a"]


def test_a_recording_from_a_cursor_holds_what_resuming_it_needs(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 30))
    with Consumer(broker.url, Blocks()) as consumer:
        cursor = until(consumer, "30a")[-1].cursor
    publish(broker, line(29, 33, "b", below="28a", weight=1))
    record_all(broker.url, tmp_path, start=str(cursor))
    assert len(records_of(f"file://{tmp_path}")) < len(broker.records())
    with Consumer(f"file://{tmp_path}", Blocks(), start=cursor) as consumer:
        found = steps(until(consumer, "33b"))
    assert found[:2] == ["-30a", "-29a"]


def test_a_recording_takes_a_switched_off_clusters_place_in_a_mux(
    broker: MemoryBroker, other: MemoryBroker, tmp_path: Path
) -> None:
    publish(broker, line(1, 5))
    publish(other, line(4, 8))
    with Consumer(f"mux:{broker.url},{other.url}", Blocks()) as consumer:
        cursor = until(consumer, "8a")[-1].cursor
    record_all(broker.url, tmp_path)
    broker.close()
    publish(other, line(9, 9))
    with Consumer(f"mux:file://{tmp_path},{other.url}", Blocks(), start=cursor) as consumer:
        assert steps(until(consumer, "9a")) == ["+9a"]


@pytest.mark.parametrize("every", [1, 3])
def test_a_recording_that_was_stopped_goes_on_where_it_ended(broker: MemoryBroker, tmp_path: Path, every: int) -> None:
    payloads = fork()
    resumed = []
    for index, payload in enumerate(payloads):
        publish(broker, [payload])
        if index % every == 0:
            recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
            resumed.append(recorder.resumed)
            for _ in range(index % 4):
                recorder.step(0.01)  # stopped anywhere: what was read and not yet recorded is read again
            recorder.close()
    record_all(broker.url, tmp_path)
    assert resumed == [False] + [True] * (len(resumed) - 1)
    assert sorted(records_of(f"file://{tmp_path}")) == broker.records()


def test_a_full_disk_ends_the_recording_and_the_next_one_lacks_nothing(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 3))
    record_all(broker.url, tmp_path)
    publish(broker, line(4, 9))
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
    out, into = os.pipe()  # takes no write at a position
    os.dup2(into, recorder._writer._fd)
    with pytest.raises(TransportError, match="start again"):
        step_until_told(recorder)
    recorder.close()
    os.close(out)
    os.close(into)
    record_all(broker.url, tmp_path)
    assert sorted(records_of(f"file://{tmp_path}")) == broker.records()


def step_until_told(recorder: Recorder) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        recorder.step(0.05)


def test_what_waits_in_memory_is_bounded(tmp_path: Path) -> None:
    ticks = itertools.count(1_700_000_000)
    with MemoryBroker(uuid.uuid4().hex, clock=lambda: float(next(ticks))) as broker:
        publish(broker, line(1, 2_000))
        total = sum(len(record.key) + len(record.value) for record in broker.records())
        recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks(), waiting_bytes=20_000)
        peak = 0
        deadline = time.monotonic() + DEADLINE
        while not recorder.at_end:
            assert time.monotonic() < deadline
            recorder.step(0.01)
            peak = max(peak, recorder._merge.size)
        recorder.close()
        # Beyond the bound, one read of 500 records for every partition that was not ahead when it was asked: four with
        # messages of 40 bytes, two with Batches of 200.
        assert peak < 20_000 + 4 * 500 * 40 + 2 * 500 * 200 < total / 2
        assert sorted(records_of(f"file://{tmp_path}")) == broker.records()


def test_from_the_tail_only_what_comes_is_recorded(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 5))
    before = len(broker.records())
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks(), start="tail")
    publish(broker, line(6, 7))
    deadline = time.monotonic() + DEADLINE
    while recorder.progress.records < len(broker.records()) - before:
        assert time.monotonic() < deadline
        recorder.step(0.05)
    recorder.close()
    blocks = {record.key[1:33] for record in records_of(f"file://{tmp_path}") if record.key}
    assert blocks >= {hash_of("6a"), hash_of("7a")}
    assert hash_of("5a") not in blocks


def test_what_retention_took_before_it_was_recorded_is_named(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 5))
    record_all(broker.url, tmp_path)
    publish(broker, line(6, 9))
    ends: dict[tuple[str, int], int] = {}
    for record in broker.records():
        ends[record.topic, record.partition] = record.offset + 1
    for where, end in ends.items():
        broker.trim(*where, end)
    with pytest.raises(CursorExpiredError):
        Recorder(broker.url, f"file://{tmp_path}", Blocks())
    with pytest.raises(CursorExpiredError):  # and the folder was given free again
        Recorder(broker.url, f"file://{tmp_path}", Blocks())


def test_two_recorders_of_one_folder_are_one_too_many(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 2))
    first = Recorder(broker.url, f"file://{tmp_path}", Blocks())
    with pytest.raises(LogInUseError):
        Recorder(broker.url, f"file://{tmp_path}", Blocks())
    first.close()


def test_partitions_and_channels_that_come_while_recording_are_recorded(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 30))
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
    recorder.step(0.0)
    broker.widen("a", 5)
    with Producer(broker.url, Blocks(), producer_id="one") as producer:
        producer.reorg(BlockRef(5, hash_of("5a")), line(6, 32, "b", below="5a", weight=3)).result(DEADLINE)
    channel = next(topic for topic in broker.topics() if "-re-" in topic)
    deadline = time.monotonic() + DEADLINE
    while recorder.progress.records < len(broker.records()):
        assert time.monotonic() < deadline
        recorder.step(0.05)
    recorder.close()
    topics = ["block", "a", "b", channel]
    assert sorted(records_of(f"file://{tmp_path}", topics=topics)) == broker.records()


# --- playing -------------------------------------------------------------------------------------------------


def test_what_is_played_is_what_was_recorded_with_producers_and_headers(
    broker: MemoryBroker, other: MemoryBroker, tmp_path: Path
) -> None:
    publish(broker, fork(), "one")
    publish(broker, fork(), "two")
    record_all(broker.url, tmp_path)
    played = play_all(tmp_path, other.url).played
    for topic in Blocks().all_topics:
        for number in range(3):
            kept, found = (
                [(r.key, r.value, r.headers) for r in one.records(topic) if r.partition == number and r.key]
                for one in (broker, other)
            )
            assert sorted(kept) == sorted(found)
    count = sum(bool(record.key) for record in broker.records())
    assert (played.records, played.seals) == (count, 2 * len(fork()))
    with Consumer(other.url, Blocks()) as consumer:
        assert steps(until(consumer, "10c"))[-1] == "+10c"


def test_the_order_of_each_topic_is_the_recorded_one(tmp_path: Path) -> None:
    source = f"file://{tmp_path}/one"
    with Producer(f"{source}?cardinal.partitions=1", Blocks(), producer_id="one") as producer:
        for payload in fork():
            producer.add(payload)
        producer.flush(DEADLINE)
    play_all(tmp_path / "one", f"file://{tmp_path}/two?cardinal.partitions=1")
    for topic in Blocks().all_topics:
        kept, found = (
            [(record.key, record.headers) for record in records_of(url) if record.topic == topic and record.key]
            for url in (source, f"file://{tmp_path}/two")
        )
        assert kept == found


def test_times_are_kept_where_the_transport_keeps_times(tmp_path: Path) -> None:
    with Producer(f"file://{tmp_path}/one", Blocks(), producer_id="one") as producer:
        producer.add(line(1, 1)[0]).result(DEADLINE)
    play_all(tmp_path / "one", f"file://{tmp_path}/two")
    times = [
        {r.key: r.timestamp_ms for r in records_of(f"file://{tmp_path}/{name}") if r.key} for name in ("one", "two")
    ]
    assert times[0] == times[1]


@BOTH_WAYS
def test_a_seal_is_not_handed_over_before_what_it_seals_is_acknowledged(
    broker: MemoryBroker, other: MemoryBroker, tmp_path: Path, *, as_they_are: bool
) -> None:
    publish(broker, line(1, 3))
    record_all(broker.url, tmp_path)
    app = Blocks()
    source = open_source(f"file://{tmp_path}", app)
    sink = open_sink(other.url, app, producer_id="replay")
    other.hold()
    player = Player(source, sink if as_they_are else Plain(sink), app)

    def sealed() -> int:
        return sum("cardinal-sealed" in dict(record.headers) for record in other.records())

    def play() -> None:
        while player.step():
            pass

    playing = threading.Thread(target=play)
    playing.start()
    content = sum(record.key[:1] == b"\x03" for record in broker.records())
    deadline = time.monotonic() + DEADLINE
    while sum(record.key[:1] == b"\x03" for record in other.records()) < content:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert sealed() == 0  # all content is there, none of it acknowledged
    other.release()
    playing.join(DEADLINE)
    assert not playing.is_alive()
    assert sealed() == 3
    sink.close()
    source.close()


def test_a_channel_is_played_too(broker: MemoryBroker, other: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 40))
    with Producer(broker.url, Blocks(), producer_id="one") as producer:
        producer.reorg(BlockRef(10, hash_of("10a")), line(11, 42, "b", below="10a", weight=3)).result(DEADLINE)
    channel = next(topic for topic in broker.topics() if "-re-" in topic)
    record_all(broker.url, tmp_path)
    play_all(tmp_path, other.url, topics=[*Blocks().all_topics, channel])
    kept, found = ([(r.key, r.value) for r in one.records(channel) if r.key] for one in (broker, other))
    assert kept == found
    with Consumer(other.url, Blocks()) as consumer:
        assert steps(until(consumer, "42b"))[-1] == "+42b"


@BOTH_WAYS
def test_a_sink_that_fails_is_reported_and_playing_again_completes_it(
    broker: MemoryBroker, other: MemoryBroker, tmp_path: Path, *, as_they_are: bool
) -> None:
    publish(broker, line(1, 5))
    record_all(broker.url, tmp_path)
    other.fail(lambda message: message.key[1:33] == hash_of("3a") and message.topic == "b")
    with pytest.raises(TransportError):
        play_all(tmp_path, other.url, as_they_are=as_they_are)
    assert not any(r.key == b"\0" + hash_of("3a") for r in other.records())
    other.fail(None)
    play_all(tmp_path, other.url, as_they_are=as_they_are)
    with Consumer(other.url, Blocks()) as consumer:
        assert steps(until(consumer, "5a")) == [f"+{number}a" for number in range(1, 6)]


@pytest.mark.parametrize("speed", [1.0, 4.0, 0.5])
def test_at_a_speed_the_recorded_times_set_the_pace(tmp_path: Path, speed: float) -> None:
    app = Blocks()
    sink = open_sink(f"file://{tmp_path}", app, producer_id="one")
    assert hasattr(sink, "replay")
    moments = [1_000, 1_000, 1_250, 1_200, 3_000, 7_000]
    for index, moment in enumerate(moments):
        sink.replay([Record("a", 0, 0, b"\x03" + bytes(32) + b"%d" % index, b"", moment)]).result(DEADLINE)
    sink.close()
    now = [50.0]
    handed: list[float] = []

    def wait(seconds: float) -> None:
        now[0] += seconds

    source = open_source(f"file://{tmp_path}", app)
    null = open_sink("null://", app, producer_id="x")
    player = Player(source, null, app, speed=speed, wait=wait, clock=lambda: now[0])
    while player.step():
        handed.append(now[0])
    assert now[0] == pytest.approx(50 + 6 / speed)
    assert player.played.records == len(moments)
    source.close()


# --- the commands --------------------------------------------------------------------------------------------


def evm_blocks(chain_id: int, first: int, last: int, tag: str = "a", below: str = "") -> list[Payload]:
    stem = f"c/{chain_id:x}/b"
    found, parent = [], hash_of(below or f"{first - 1}{tag}")
    for number in range(first, last + 1):
        block_hash = hash_of(f"{number}{tag}")
        updates = {f"{stem}/{number}{tag}/{kind}": b"%d" % number for kind in ("h", "t/0", "t/1", "r/0", "l/0/0")}
        found.append(Payload(number, block_hash, parent, number, updates))
        parent = block_hash
    return found


def publish_to(url: str, chain_id: int, payloads: list[Payload]) -> None:
    with Producer(url, apps.get("evm", chain_id=chain_id), producer_id="one") as producer:
        for payload in payloads:
            producer.add(payload)
        producer.flush(60)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "err").mkdir()
    with Processes(tmp_path / "err") as processes:
        yield processes


def chain_of(processes: Processes, url: str, until_block: int) -> list[str]:
    status, out, said = processes.run("tail", url, "--format", "json", "--until", str(until_block))
    assert status == 0, said
    return replayed(json.loads(line) for line in out.splitlines())


def test_the_commands_copy_a_folder_and_print_it(processes: Processes, tmp_path: Path) -> None:
    publish_to(f"file://{tmp_path}/one", 5, evm_blocks(5, 1, 20))
    status, out, said = processes.run("record", f"file://{tmp_path}/one", f"file://{tmp_path}/two", "--until", "end")
    assert (status, out) == (0, ""), said
    assert "begins the recording" in said
    status, _, said = processes.run("record", f"file://{tmp_path}/one", f"file://{tmp_path}/two", "--until", "end")
    assert status == 0
    assert "goes on with the recording" in said
    assert "\n0 records" in said
    status, out, said = processes.run("replay", f"file://{tmp_path}/two", "--to", f"file://{tmp_path}/three")
    assert (status, out) == (0, ""), said
    assert "20 blocks sealed" in said
    chains = [chain_of(processes, f"file://{tmp_path}/{name}", 20) for name in ("one", "two", "three")]
    assert chains[0] == chains[1] == chains[2]
    assert len(chains[0]) == 20
    status, out, said = processes.run("replay", f"file://{tmp_path}/two")
    assert status == 0, said
    assert sum("  Batch  " in line for line in out.splitlines()) == 20
    assert len(out.splitlines()) == len(records_of(f"file://{tmp_path}/two", apps.get("evm", chain_id=5)))


def test_the_commands_take_names_from_a_settings_file(processes: Processes, tmp_path: Path) -> None:
    publish_to(f"file://{tmp_path}/one", 5, evm_blocks(5, 1, 3))
    config = tmp_path / "cardinal.toml"
    config.write_text(f'[streams.here]\nurl = "file://{tmp_path}/one"\n[streams.copy]\nurl = "file://{tmp_path}/two"\n')
    status, _, said = processes.run(
        "record", "here", "copy", "--until", "idle", "--idle", "0.5", "--config", str(config)
    )
    assert status == 0, said
    status, out, said = processes.run("replay", "copy", "--config", str(config))
    assert status == 0, said
    assert "Batch" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("record", "kafka://u:s3cr3t@h", "kafka://u:s3cr3t@h"), "write file://DIR"),
        (("replay", "kafka://u:s3cr3t@h"), "write file://DIR"),
        (("replay", "file:///nowhere/at/all"), "there is no evm stream"),
        (("replay", "file:///nowhere/at/all", "--speed", "-1"), "write max"),
        (("replay", "file:///nowhere/at/all", "--speed", "nan"), "write max"),
        (("record", "memory://none", "file:///tmp/x", "--chain-id", "1"), "there is no memory broker"),
    ],
)
def test_what_cannot_work_is_one_sentence(processes: Processes, args: tuple[str, ...], says: str) -> None:
    status, out, said = processes.run(*args)
    assert status != 0
    assert out == ""
    assert says in said
    assert said.count("\n") == 1
    assert "s3cr3t" not in said


@pytest.mark.broker
@pytest.mark.parametrize("options", ["", "?transactional=update"])
def test_kafka_is_recorded_killed_recorded_on_and_played_again(
    processes: Processes, tmp_path: Path, cardinal_broker: EmbeddedKafka, options: str
) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only this case needs it

    chain_id = fresh_chain_id()
    app = apps.get("evm", chain_id=chain_id)
    url = f"kafka://{cardinal_broker.bootstrap}{options}"
    folder = f"file://{tmp_path}/log"
    publish_to(url, chain_id, evm_blocks(chain_id, 1, 20))
    killed = processes.start("record", url, folder, "--chain-id", str(chain_id))
    deadline = time.monotonic() + 60
    while not any((tmp_path / "log").glob("*.avro")) or not records_of(folder, app):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with Consumer(url, app, start="start") as consumer:
        for update in consumer:
            if update.added and update.added[-1].number == 20:
                break
    publish_to(url, chain_id, evm_blocks(chain_id, 21, 30))
    args = ("record", url, folder, "--chain-id", str(chain_id), "--until", "end")
    status, _, said = processes.run(*args)
    assert status == 0, said
    assert "goes on with" in said
    kept = [record for record in records_of(folder, app) if record.key]
    live = [record for record in records_of(url, app) if record.key]
    assert sorted(kept) == sorted(live)
    # A cursor of the live stream goes on with the recording, control records of transactions or not.
    with Consumer(url, app, start="start") as consumer:
        cursor = next(u.cursor for u in consumer if u.added and u.added[-1].number == 30)
    with Consumer(folder, app, start=cursor, idle_timeout=1.0) as consumer:
        assert list(consumer) == []
    # Played again where the topics are gone: producers and headers as they were.
    admin = AdminClient({"bootstrap.servers": cardinal_broker.bootstrap})
    for done in admin.delete_topics(list(app.all_topics)).values():
        done.result(30)
    status, _, said = processes.run("replay", folder, "--to", f"kafka://{cardinal_broker.bootstrap}")
    assert status == 0, said
    # Both as one: the recording has every block, and so has Kafka; what is delivered is the chain, once.
    numbers: list[int] = []
    with Consumer(f"mux:{folder},kafka://{cardinal_broker.bootstrap}", app) as consumer:
        for update in consumer:
            numbers += [one.number for one in update.added]
            if numbers[-1] == 30:
                break
    assert numbers == list(range(1, 31))
    again = [record for record in records_of(f"kafka://{cardinal_broker.bootstrap}", app) if record.key]
    assert sorted((r.topic, r.key, r.value, r.headers) for r in again) == sorted(
        (r.topic, r.key, r.value, r.headers) for r in live
    )
