"""Playing a recording: the same records, producers, order and pace."""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import run_here

from blocks import DEADLINE, Blocks, hash_of, line, publish, steps, updates_until
from cardinal import apps
from cardinal.cli.replay import _print
from cardinal.consumer import Consumer
from cardinal.copying.replaying import Player
from cardinal.errors import LogDamagedError, TransportError
from cardinal.producer import Producer
from cardinal.protocols.streams import BlockRef, Record
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import SEALED_HEADER
from cardinal.transports import open_sink, open_source
from cardinal.transports.file.folders import numbers_of, path_of
from cardinal_devkit.testing.memory import MemoryBroker
from damaged_logs import COUNT, LATER, header, middle, newest, read_before, recording, torn
from recordings import Plain, fork, play_all, record_all, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"here-{uuid.uuid4().hex}", partitions=3) as broker:
        yield broker


@pytest.fixture
def other() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"there-{uuid.uuid4().hex}", partitions=3) as broker:
        yield broker


NOW = 1_700_000_000_000
BOTH_WAYS = pytest.mark.parametrize("as_they_are", [True, False])


def test_a_replay_equals_the_recording_with_producers_and_headers(
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
        assert steps(updates_until(consumer, "10c"))[-1] == "+10c"


def test_a_replay_keeps_the_order_of_each_topic(tmp_path: Path) -> None:
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


def test_a_replay_keeps_timestamps_where_the_transport_can(tmp_path: Path) -> None:
    with Producer(f"file://{tmp_path}/one", Blocks(), producer_id="one") as producer:
        producer.add(line(1, 1)[0]).result(DEADLINE)
    play_all(tmp_path / "one", f"file://{tmp_path}/two")
    times = [
        {r.key: r.timestamp_ms for r in records_of(f"file://{tmp_path}/{name}") if r.key} for name in ("one", "two")
    ]
    assert times[0] == times[1]


@BOTH_WAYS
def test_a_batch_is_sent_after_its_block_is_acknowledged(
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


def test_a_channel_is_replayed_too(broker: MemoryBroker, other: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 40))
    with Producer(broker.url, Blocks(), producer_id="one") as producer:
        producer.reorg(BlockRef(10, hash_of("10a")), line(11, 42, "b", below="10a", weight=3)).result(DEADLINE)
    channel = next(topic for topic in broker.topics() if "-re-" in topic)
    record_all(broker.url, tmp_path)
    play_all(tmp_path, other.url, topics=[*Blocks().all_topics, channel])
    kept, found = ([(r.key, r.value) for r in one.records(channel) if r.key] for one in (broker, other))
    assert kept == found
    with Consumer(other.url, Blocks()) as consumer:
        assert steps(updates_until(consumer, "42b"))[-1] == "+42b"


@BOTH_WAYS
def test_a_failing_sink_is_reported_and_a_second_replay_completes_it(
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
        assert steps(updates_until(consumer, "5a")) == [f"+{number}a" for number in range(1, 6)]


def write_at(folder: Path, moments: list[int]) -> None:
    """A recording with a record at each of these times, in this order."""
    sink = open_sink(f"file://{folder}", Blocks(), producer_id="one")
    for index, moment in enumerate(moments):
        sink.replay([Record("a", 0, 0, b"\x03" + bytes(32) + b"%d" % index, b"", moment)]).result(DEADLINE)
    sink.close()


def seconds_to_play(folder: Path, speed: float, count: int) -> float:
    """By the clock that the waiting moves on."""
    now = [50.0]
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    app = Blocks()
    source = open_source(f"file://{folder}", app)
    player = Player(
        source, open_sink("null://", app, producer_id="x"), app, speed=speed, wait=wait, clock=lambda: now[0]
    )
    while player.step():
        pass
    source.close()
    assert player.played.records == count
    assert max(waits, default=0.0) <= 60  # what a sleep takes
    return now[0] - 50


@pytest.mark.parametrize("speed", [1.0, 4.0, 0.5, 0.01])
def test_with_a_speed_the_recorded_times_set_the_pace(tmp_path: Path, speed: float) -> None:
    moments = [1_000, 1_000, 1_250, 1_200, 3_000, 7_000]
    write_at(tmp_path, moments)
    assert seconds_to_play(tmp_path, speed, len(moments)) == pytest.approx(6 / speed)


@pytest.mark.parametrize("odd", [-1, 0, NOW + 365 * 86_400_000, 1 << 60, -(1 << 62)])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_record_with_an_invalid_time_does_not_stop_a_replay(tmp_path: Path, odd: int, at: int) -> None:
    moments = [NOW, NOW + 1_000, NOW + 2_000, NOW + 3_000]
    write_at(tmp_path, [*moments[:at], odd, *moments[at:]])
    assert seconds_to_play(tmp_path, 1.0, 5) == pytest.approx(3.0 if at != 2 else 2.0)


def test_a_time_outside_the_calendar_is_printed_as_a_number(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    write_at(tmp_path, [1 << 60, -(1 << 62), NOW])
    with closing(open_source(f"file://{tmp_path}", Blocks(), topics=["a"])) as source:
        _print(source)
    printed = [line.split(b"  ")[0] for line in capsysbinary.readouterr().out.splitlines() if b"BatchMsg" in line]
    assert printed == [b"1152921504606846976 ms", b"-4611686018427387904 ms", b"2023-11-14T22:13:20.000+00:00"]


# --- a damaged recording: everything before the damage arrives, and then the damage is reported ----------------


DAMAGES = pytest.mark.parametrize("damaged", [middle, header, torn, newest])


def _sealed(records: list[Record]) -> set[bytes]:
    return {record.key for record in records if SEALED_HEADER in dict(record.headers)}


@pytest.mark.slow
@DAMAGES
@pytest.mark.parametrize("as_they_are", [True, False])
def test_records_before_a_damage_are_replayed_before_it_is_reported(
    other: MemoryBroker, tmp_path: Path, damaged: Callable[[Path], Path], *, as_they_are: bool
) -> None:
    url = recording(tmp_path, Blocks(), line(1, 2 * COUNT))
    path = damaged(tmp_path)
    before = read_before(url, Blocks())
    assert len(_sealed(before)) > LATER
    with pytest.raises(LogDamagedError, match=str(path)):
        play_all(tmp_path, other.url, as_they_are=as_they_are)
    played = [record for record in other.records() if record.key]
    assert sorted(record.key for record in played) == sorted(record.key for record in before)
    assert _sealed(played) == _sealed(before)


@pytest.mark.slow
@DAMAGES
def test_replay_prints_its_records_and_the_damage(
    tmp_path: Path, damaged: Callable[[Path], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    app = apps.get("evm", chain_id=7)
    stem = "c/7/b"
    payloads = [
        Payload(
            number,
            hash_of(f"{number}a"),
            hash_of(f"{number - 1}a"),
            number,
            {f"{stem}/{number}a/{kind}": b"%d" % number for kind in ("h", "t/0", "t/1", "r/0", "l/0/0")},
        )
        for number in range(1, 2 * COUNT)
    ]
    url, target = recording(tmp_path / "one", app, payloads), f"file://{tmp_path}/two"
    path = damaged(tmp_path / "one")
    before = read_before(url, app)
    status, _, said = run_here(capfd, "replay", "--from", url, "--to", target)
    assert status == 1, said
    assert f", {len(_sealed(before))} blocks sealed, " in said
    assert said.splitlines()[-1].startswith(f"error: {path} is damaged at byte ")
    status, lines, said = run_here(capfd, "replay", "--from", url)
    assert status == 1, said
    assert f"error: {path} is damaged at byte " in said
    assert _sealed(records_of(target, app)) == _sealed(before)
    assert sum("cardinal-sealed" in printed for printed in lines.splitlines()) == len(_sealed(before))


def test_a_torn_record_at_the_end_counts_as_the_end(other: MemoryBroker, tmp_path: Path) -> None:
    url = recording(tmp_path, Blocks(), line(1, 2 * COUNT))
    segment = path_of(tmp_path, numbers_of(tmp_path)[-1])
    os.truncate(segment, segment.stat().st_size - 9)
    before = [record for record in records_of(url) if record.key]
    play_all(tmp_path, other.url)
    played = [record for record in other.records() if record.key]
    assert sorted(record.key for record in played) == sorted(record.key for record in before)
    assert _sealed(played) == _sealed(before)
