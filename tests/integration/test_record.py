"""Recording a stream: the same records, the same chain, the same cursors."""

from __future__ import annotations

import itertools
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, hash_of, line, publish, steps, updates_until
from cardinal.consumer import Consumer
from cardinal.copying import recording
from cardinal.copying.recording import Recorder
from cardinal.errors import (
    CursorExpiredError,
    LogDamagedError,
    LogInUseError,
    TopicError,
    TransportError,
    UnreachableError,
)
from cardinal.producer import Producer
from cardinal.protocols.streams import BlockRef, Routed
from cardinal_devkit.testing._memory_source import MemorySource
from cardinal_devkit.testing.memory import MemoryBroker
from damaged_logs import COUNT, LATER, middle, read_before, torn
from damaged_logs import recording as recorded
from recordings import fork, record_all, records_of
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cardinal.protocols.streams.types import Partition


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"here-{uuid.uuid4().hex}", partitions=3) as broker:
        yield broker


@pytest.fixture
def other() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"there-{uuid.uuid4().hex}", partitions=3) as broker:
        yield broker


def test_a_recording_holds_every_record_with_its_position(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, fork(), "one")
    publish(broker, fork(), "two")
    recorder = record_all(broker.url, tmp_path)
    recorded = records_of(f"file://{tmp_path}")
    assert sorted(recorded) == broker.records()
    assert recorder.progress.records == len(recorded)
    with Consumer(broker.url, Blocks()) as live, Consumer(f"file://{tmp_path}", Blocks()) as kept:
        assert steps(updates_until(kept, "10c"))[-1] == steps(updates_until(live, "10c"))[-1] == "+10c"


def test_every_batch_is_recorded_after_its_block(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, fork(), "one")
    publish(broker, fork(), "two")
    record_all(broker.url, tmp_path)
    check_seals(f"file://{tmp_path}")


def check_seals(url: str) -> None:
    """Every sealed Batch comes after the rest of its block."""
    seen: set[tuple[bytes, bytes, bytes]] = set()
    for record in records_of(url):
        producer = dict(record.headers).get("cardinal-producer", b"")
        if "cardinal-sealed" in dict(record.headers):
            mine = {one for one in seen if one[1:] == (record.key[1:33], producer)}
            assert len(mine) == 3
        elif record.key[:1] == b"\x03":
            seen.add((record.key, record.key[1:33], producer))


def test_a_cursor_is_valid_for_the_stream_and_for_its_recording(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 4))
    with Consumer(broker.url, Blocks()) as consumer:
        updates = updates_until(consumer, "4a")
    publish(broker, line(5, 8))
    record_all(broker.url, tmp_path)
    with Consumer(f"file://{tmp_path}", Blocks(), start=updates[-1].cursor) as consumer:
        more = updates_until(consumer, "8a")
    assert steps(more) == ["+5a", "+6a", "+7a", "+8a"]
    assert more[0].first_seq == updates[-1].seq + 1
    publish(broker, line(9, 9))
    with Consumer(broker.url, Blocks(), start=more[-1].cursor) as consumer:
        assert steps(updates_until(consumer, "9a")) == ["+9a"]


def test_a_recording_from_a_cursor_can_be_resumed_from_it(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 30))
    with Consumer(broker.url, Blocks()) as consumer:
        cursor = updates_until(consumer, "30a")[-1].cursor
    publish(broker, line(29, 33, "b", below="28a", weight=1))
    record_all(broker.url, tmp_path, start=str(cursor))
    assert len(records_of(f"file://{tmp_path}")) < len(broker.records())
    with Consumer(f"file://{tmp_path}", Blocks(), start=cursor) as consumer:
        found = steps(updates_until(consumer, "33b"))
    assert found[:2] == ["-30a", "-29a"]


def test_a_recording_replaces_a_retired_cluster_in_a_mux(
    broker: MemoryBroker, other: MemoryBroker, tmp_path: Path
) -> None:
    publish(broker, line(1, 5))
    publish(other, line(4, 8))
    with Consumer(f"mux:{broker.url},{other.url}", Blocks()) as consumer:
        cursor = updates_until(consumer, "8a")[-1].cursor
    record_all(broker.url, tmp_path)
    broker.close()
    publish(other, line(9, 9))
    with Consumer(f"mux:file://{tmp_path},{other.url}", Blocks(), start=cursor) as consumer:
        assert steps(updates_until(consumer, "9a")) == ["+9a"]


@pytest.mark.parametrize("every", [1, 3])
def test_a_stopped_recording_resumes_where_it_ended(broker: MemoryBroker, tmp_path: Path, every: int) -> None:
    publish(broker, line(0, 0))
    resumed, waiting = [], 0
    for index, payload in enumerate(fork()):
        if index % every == 0:
            recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
            resumed.append(recorder.resumed)
            publish(broker, [payload])  # read, and not recorded before the ends were looked at twice
            for _ in range(index % 4):
                recorder.step(0.01)  # stopped anywhere: what was read and not yet recorded is read again
            waiting += bool(recorder._merge.waiting)
            recorder.close()
        else:
            publish(broker, [payload])
    assert waiting > len(resumed) // 2
    record_all(broker.url, tmp_path)
    assert resumed == [False] + [True] * (len(resumed) - 1)
    assert sorted(records_of(f"file://{tmp_path}")) == broker.records()


def test_a_full_disk_ends_a_recording_and_the_next_run_completes_it(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 3))
    record_all(broker.url, tmp_path)
    publish(broker, line(4, 9))
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
    out, into = os.pipe()  # takes no write at a position
    os.dup2(into, recorder._writer._fd)
    with pytest.raises(TransportError, match="it resumes where it ended"):
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


def test_memory_of_a_recorder_is_bounded(tmp_path: Path) -> None:
    ticks = itertools.count(1_700_000_000)
    with MemoryBroker(uuid.uuid4().hex, clock=lambda: float(next(ticks))) as broker:
        publish(broker, line(1, 2_000))
        total = sum(len(record.key) + len(record.value) + 500 for record in broker.records())
        recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks(), waiting_bytes=100_000)
        peak = 0
        deadline = time.monotonic() + DEADLINE
        while not recorder.at_end:
            assert time.monotonic() < deadline
            recorder.step(0.01)
            peak = max(peak, recorder._merge.size)
        recorder.close()
        # Beyond the bound, one read of 500 records for every partition that was not ahead when it was asked: four with
        # messages of 40 bytes, two with Batches of 200, and 500 bytes for each record.
        assert peak < 100_000 + 4 * 500 * 540 + 2 * 500 * 700 < total / 2
        assert sorted(records_of(f"file://{tmp_path}")) == broker.records()


def test_a_recording_from_the_end_holds_only_new_records(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 5))
    before = len(broker.records())
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks(), start="latest")
    publish(broker, line(6, 7))
    deadline = time.monotonic() + DEADLINE
    while recorder.progress.records < len(broker.records()) - before:
        assert time.monotonic() < deadline
        recorder.step(0.05)
    recorder.close()
    blocks = {record.key[1:33] for record in records_of(f"file://{tmp_path}") if record.key}
    assert blocks >= {hash_of("6a"), hash_of("7a")}
    assert hash_of("5a") not in blocks


@pytest.mark.parametrize("stopped", [False, True])
def test_partitions_added_after_a_start_at_the_end_are_recorded_whole(
    broker: MemoryBroker, tmp_path: Path, *, stopped: bool
) -> None:
    publish(broker, line(1, 5))
    before = broker.records()
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks(), start="latest")
    if stopped:
        recorder.close()
    broker.widen("a", 6)
    publish(broker, line(6, 40))
    if stopped:
        recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks(), start="latest")
    come = sorted(set(broker.records()) - set(before))
    deadline = time.monotonic() + DEADLINE
    while recorder.progress.records < len(come):
        assert time.monotonic() < deadline
        recorder.step(0.05)
    recorder.close()
    assert sorted(records_of(f"file://{tmp_path}")) == come


def test_records_expired_before_the_recording_are_reported(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 5))
    record_all(broker.url, tmp_path)
    publish(broker, line(6, 9))
    ends: dict[tuple[str, int], int] = {}
    for record in broker.records():
        ends[record.topic, record.partition] = record.offset + 1
    for where, end in ends.items():
        broker.trim(*where, end)
    for _ in range(2):  # the folder is given free again
        with pytest.raises(CursorExpiredError, match="record into another folder") as caught:
            Recorder(broker.url, f"file://{tmp_path}", Blocks())
        assert caught.value.missing
        assert "start from" not in str(caught.value)


def test_records_that_expire_during_the_recording_are_reported(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 5))
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
    broker.trim("a", 0, 2)
    with pytest.raises(CursorExpiredError, match="record into another folder"):
        step_until_told(recorder)
    recorder.close()


def test_a_recreated_stream_shorter_than_its_recording_is_reported(tmp_path: Path) -> None:
    publish(f"file://{tmp_path}/stream", line(1, 5))
    record_all(f"file://{tmp_path}/stream", tmp_path / "kept")
    kept = records_of(f"file://{tmp_path}/kept")
    shutil.rmtree(tmp_path / "stream")
    publish(f"file://{tmp_path}/stream", line(1, 2))
    for _ in range(2):  # to start again helps nobody
        with pytest.raises(
            CursorExpiredError, match=r"the recording in .*/kept cannot resume.* into another"
        ) as caught:
            Recorder(f"file://{tmp_path}/stream", f"file://{tmp_path}/kept", Blocks())
        assert caught.value.missing
        assert "start again" not in str(caught.value)
    assert records_of(f"file://{tmp_path}/kept") == kept


def test_a_second_recorder_of_one_folder_is_refused(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 2))
    first = Recorder(broker.url, f"file://{tmp_path}", Blocks())
    with pytest.raises(LogInUseError):
        Recorder(broker.url, f"file://{tmp_path}", Blocks())
    first.close()


@pytest.mark.slow
def test_partitions_and_channels_added_while_recording_are_recorded(broker: MemoryBroker, tmp_path: Path) -> None:
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


def test_every_batch_is_recorded_after_its_block_also_with_added_partitions(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """In the recording of a stream, and in that of a recording that grows."""
    first, second = f"file://{tmp_path}/first", f"file://{tmp_path}/second"
    publish(broker, line(1, 5))
    recorders = [Recorder(broker.url, first, Blocks()), Recorder(first, second, Blocks())]
    deadline = time.monotonic() + DEADLINE
    for last, partitions in ((40, 5), (80, 7)):
        for recorder in recorders:
            recorder.step(0.0)
        broker.widen("a", partitions)
        publish(broker, line(last - 34, last))
        while recorders[-1].progress.records < len(broker.records()):
            assert time.monotonic() < deadline
            for recorder in recorders:
                recorder.step(0.01)
    for recorder, url in zip(recorders, (first, second), strict=True):
        recorder.close()
        check_seals(url)
        assert sorted(records_of(url)) == broker.records()
    assert records_of(second) == records_of(first)


def test_an_unreachable_server_while_a_channel_is_opened_loses_nothing(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel's topic is seen, and the ends of the new source are not to be had: the old one reads on."""
    away = [True]
    answer = MemorySource.watermarks

    def watermarks(source: MemorySource) -> dict[Partition, tuple[int, int]]:
        if away and "block-re-0x01" in source._topics:
            away.clear()
            raise UnreachableError("the server is unreachable", address="there")
        return answer(source)

    monkeypatch.setattr(MemorySource, "watermarks", watermarks)
    monkeypatch.setattr(recording, "_TOPICS_SECONDS", 0.0)
    publish(broker, line(1, 5))
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
    publish(broker, line(6, 30))
    broker.create("block-re-0x01", partitions=1)
    recorder.step(0.01)
    assert not away
    assert recorder._merge.waiting
    deadline = time.monotonic() + DEADLINE
    while recorder.progress.records < len(broker.records()):
        assert time.monotonic() < deadline
        recorder.step(0.05)
    recorder.close()
    assert recorder.progress.records == len(broker.records())  # none of them twice
    assert sorted(records_of(f"file://{tmp_path}", topics=["block", "a", "b", "block-re-0x01"])) == broker.records()


@pytest.mark.slow
def test_a_recording_continues_after_a_channel_is_deleted(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, line(1, 5))
    broker.create("block-re-0x01", partitions=1)
    broker.create("block-re-0x02", partitions=1)
    gone: set[str] = set()
    answer, topics = MemoryBroker.marks, broker.topics

    def marks(broker: MemoryBroker, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        asked = list(partitions)
        if found := {topic for topic, _ in asked} & gone:
            raise TopicError("it was deleted", topic=min(found))
        return answer(broker, asked)

    monkeypatch.setattr(MemoryBroker, "marks", marks)
    monkeypatch.setattr(broker, "topics", lambda: topics() - gone)
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
    broker.take(Routed("block-re-0x01", b"\x00" + bytes(32), b"waits"), ())
    recorder.step(0.05)
    assert ("block-re-0x01", 0) in recorder._merge.waiting  # of a channel that nobody says the end of any more
    gone.update({"block-re-0x01", "block-re-0x02"})
    publish(broker, line(6, 9))
    deadline = time.monotonic() + DEADLINE
    while recorder.progress.records < len(broker.records()):
        assert time.monotonic() < deadline, recorder.progress
        recorder.step(0.05)
    assert recorder.at_end
    assert recorder.progress.behind == 0
    recorder.close()
    assert sorted(records_of(f"file://{tmp_path}", topics=[*Blocks().all_topics, *gone])) == broker.records()


def test_a_deleted_topic_of_the_stream_ends_the_recording(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, line(1, 5))
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())

    def marks(*_: object) -> None:
        raise TopicError("it was deleted", topic="a")

    monkeypatch.setattr(MemoryBroker, "marks", marks)
    with pytest.raises(TopicError):
        step_until_told(recorder)
    recorder.close()


# --- a damaged folder, and when files are synced --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [middle, torn])
def test_records_before_a_damage_are_recorded_before_it_is_reported(
    tmp_path: Path, damaged: Callable[[Path], Path]
) -> None:
    url, copy = recorded(tmp_path / "one", Blocks(), line(1, 2 * COUNT)), f"file://{tmp_path}/two"
    path = damaged(tmp_path / "one")
    before = read_before(url, Blocks())
    assert len(before) > LATER
    for _ in range(2):
        recorder = Recorder(url, copy, Blocks())
        with pytest.raises(LogDamagedError, match=str(path)):
            until(lambda: recorder.at_end, step=lambda: recorder.step(0.05))  # noqa: B023 - called within its round
        recorder.close()
        assert [record for record in records_of(copy) if record.key] == before


def test_a_copy_of_a_folder_keeps_its_order(tmp_path: Path) -> None:
    url = recorded(tmp_path / "one", Blocks(), line(1, 2 * COUNT))
    record_all(url, tmp_path / "two")
    assert records_of(f"file://{tmp_path}/two") == records_of(url)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes the segment had at each call."""
    sizes: list[int] = []
    monkeypatch.setattr("cardinal.transports.file.writer._sync_data", lambda fd: sizes.append(os.fstat(fd).st_size))
    return sizes


def _record_everything(recorder: Recorder, broker: MemoryBroker) -> None:
    until(lambda: recorder.progress.records >= len(broker.records()), step=lambda: recorder.step(0.01))


def test_sync_always_syncs_after_every_step(broker: MemoryBroker, tmp_path: Path, synced: list[int]) -> None:
    publish(broker, line(1, 5))
    recorder = Recorder(broker.url, f"file://{tmp_path}?fsync=always", Blocks())
    for number in range(6, 9):
        _record_everything(recorder, broker)
        assert synced[-1] == (tmp_path / "000000000001.avro").stat().st_size
        publish(broker, line(number, number))
    recorder.close()


def test_sync_never_syncs_when_closed(broker: MemoryBroker, tmp_path: Path, synced: list[int]) -> None:
    publish(broker, line(1, 5))
    recorder = Recorder(broker.url, f"file://{tmp_path}?fsync=never", Blocks())
    _record_everything(recorder, broker)
    assert synced == []
    recorder.close()
    assert synced[-1] == (tmp_path / "000000000001.avro").stat().st_size
