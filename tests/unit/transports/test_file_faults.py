"""Faults under a folder: torn tails, damage, full disks, removed segments, errors of the system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import resource
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blocks import Blocks, line, publish
from cardinal._concurrency import run_in_thread
from cardinal.copying.recording import Recorder
from cardinal.errors import CursorExpiredError, DeliveryError, LogDamagedError, LogInUseError, TransportError
from cardinal.protocols.streams import Record, Routed
from cardinal.transports import list_topics
from cardinal.transports.file import FileSink, FileSource
from cardinal.transports.file.container import SYNC_SIZE, read_header
from cardinal.transports.file.folders import numbers_of, path_of
from cardinal.transports.file.segments import Segment
from cardinal_devkit.testing.memory import MemoryBroker
from file_logs import DEADLINE, at_end, at_start, block, everything, fill, numbers_in, read_on, sink_of, source_of
from waiting import until

FAST = "fsync=never&cardinal.partitions=2"
SMALL = f"{FAST}&segment.bytes=3000"
SEGMENT = "000000000001.avro"
FLIPS = 60
BLOCK = 1_000
"""Stands for a complete Avro block, among the bytes lost of a segment."""


def blocks_of(folder: Path, name: str = SEGMENT) -> list[tuple[int, int, int]]:
    """Begin, end and number of records of every Avro block of a segment."""
    segment = Segment(folder, int(name[:12]))
    at, found = segment.header.size, []
    with contextlib.suppress(LogDamagedError):
        while (one := segment.read(at)) is not None:
            found.append((at, one.end, len(one.records)))
            at = one.end
    segment.close()
    return found


def a_log(folder: Path, count: int = 8, size: int = 20) -> list[Record]:
    """A log with an Avro block for each of its blocks."""
    sink = sink_of(folder, FAST)
    for number in range(count):
        sink.send(*block(number, messages=2, size=size)).result(DEADLINE)
    sink.close()
    return everything(folder, heartbeats=True)


def damage(folder: Path, index: int, name: str = SEGMENT) -> int:
    """Alter a byte of an Avro block; where that block begins."""
    begin, end, _ = blocks_of(folder, name)[index]
    data = bytearray((folder / name).read_bytes())
    data[(begin + end) // 2] ^= 4
    (folder / name).write_bytes(data)
    return begin


def refused(folder: Path) -> LogDamagedError | None:
    """The error for a writer; None where it can continue."""
    try:
        sink_of(folder, FAST).close()
    except LogDamagedError as damage:
        return damage
    return None


# --- torn tails and damage ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_cut_at_every_byte_of_its_last_blocks_a_log_holds_every_complete_block_and_continues(tmp_path: Path) -> None:
    whole = a_log(tmp_path / "whole", count=3, size=1)
    blocks = blocks_of(tmp_path / "whole")
    folder = tmp_path / "cut"
    data = (tmp_path / "whole" / SEGMENT).read_bytes()
    for size in range(blocks[-2][0], blocks[-1][1] + 1):
        folder.mkdir()
        (folder / SEGMENT).write_bytes(data[:size])
        kept = sum(count for _, end, count in blocks if end <= size)
        assert everything(folder, heartbeats=True) == whole[:kept]  # a reader, before a writer recovers it
        sink = sink_of(folder, FAST)
        assert everything(folder, heartbeats=True) == whole[:kept]
        sink.send(*block(99)).result(DEADLINE)
        sink.close()
        after = everything(folder, heartbeats=True)
        assert after[:kept] == whole[:kept]
        assert set(numbers_in(after[kept:])) == {99}
        shutil.rmtree(folder)


def test_a_reader_at_a_torn_tail_resumes_when_it_was_recovered(tmp_path: Path) -> None:
    a_log(tmp_path)
    os.truncate(tmp_path / SEGMENT, blocks_of(tmp_path)[-1][1] - 3)
    reader = at_end(tmp_path)
    sink = sink_of(tmp_path, FAST)
    sink.send(*block(7, messages=2)).result(DEADLINE)  # as long as what was cut: the file has the size it had
    assert set(numbers_in(reader.poll(10, 5.0))) == {7}
    sink.close()
    reader.close()


@pytest.mark.parametrize("tail", [b"\0" * 5_000, b"\0", b"\x02", os.urandom(3_000), b"\xff" * 64])
def test_a_tail_of_zeros_or_garbage_without_the_marker_is_cut(tmp_path: Path, tail: bytes) -> None:
    whole = a_log(tmp_path)
    with (tmp_path / SEGMENT).open("ab") as file:
        file.write(tail)
    assert everything(tmp_path, heartbeats=True) == whole
    sink_of(tmp_path, FAST).close()
    assert (tmp_path / SEGMENT).stat().st_size == blocks_of(tmp_path)[-1][1]
    assert everything(tmp_path, heartbeats=True) == whole


def test_a_flipped_bit_in_what_was_written_is_never_cut_off_in_silence(tmp_path: Path) -> None:
    whole = a_log(tmp_path / "whole")
    data = (tmp_path / "whole" / SEGMENT).read_bytes()
    blocks = blocks_of(tmp_path / "whole")
    noticed = 0
    rng = random.Random(5)
    for place in rng.sample(range(blocks[0][0], len(data) - 16), FLIPS):
        folder = tmp_path / f"{place}"
        folder.mkdir()
        altered = bytearray(data)
        altered[place] ^= 1 << rng.randrange(8)
        (folder / SEGMENT).write_bytes(altered)
        hit = next(index for index, (begin, end, _) in enumerate(blocks) if begin <= place < end)
        damage = refused(folder)
        if damage is None:  # snappy copied equal bytes from another place: the block says what it said
            assert everything(folder, heartbeats=True) == whole
            continue
        noticed += 1
        assert "recover=cut" in str(damage)
        assert (damage.path, damage.position) == (str(folder / SEGMENT), blocks[hit][0])
        assert (folder / SEGMENT).read_bytes() == bytes(altered)
        sink_of(folder, f"{FAST}&recover=cut").close()
        assert everything(folder, heartbeats=True) == whole[: sum(count for _, _, count in blocks[:hit])]
        shutil.rmtree(folder)
    assert noticed > FLIPS * 9 // 10


@pytest.mark.slow
@pytest.mark.parametrize("query", [FileSource.watermarks, lambda reader: reader.offsets_for_time(0)])
def test_a_damaged_log_has_no_end_to_be_read_to(tmp_path: Path, query: Callable[[FileSource], object]) -> None:
    """A copy takes the end first: if damage were an end, the copy of a part would look complete."""
    a_log(tmp_path)
    begin = damage(tmp_path, 2)
    reader = source_of(tmp_path)
    with pytest.raises(LogDamagedError) as caught:
        query(reader)
    assert caught.value.position == begin
    reader.close()


def test_the_end_that_is_queried_while_a_writer_recovers_the_log_is_the_recovered_one(tmp_path: Path) -> None:
    whole = a_log(tmp_path)
    damage(tmp_path, 2)
    reader = source_of(tmp_path)
    query = run_in_thread(reader.watermarks, "query")
    sink_of(tmp_path, f"{FAST}&recover=cut").close()
    ends = {tp: high for tp, (_, high) in query.result(DEADLINE).items()}
    kept = whole[: sum(count for _, _, count in blocks_of(tmp_path))]
    assert ends == {tp: sum(record[:2] == tp for record in kept) for tp in ends}
    reader.close()


@pytest.mark.slow
def test_records_before_the_damage_are_read_before_every_poll_names_it(tmp_path: Path) -> None:
    fill(tmp_path, 0, 40, SMALL).close()
    whole = everything(tmp_path, heartbeats=True)
    third = path_of(tmp_path, 3)
    begin = damage(tmp_path, -1, third.name)
    with third.open("rb") as file:
        kept = sum(read_header(file).offsets.values()) + sum(count for _, _, count in blocks_of(tmp_path, third.name))
    reader = source_of(tmp_path)
    reader.assign(dict.fromkeys(reader.partitions(), 0))
    assert reader.poll(1_000, 0.0) == whole[:kept]
    for _ in range(2):
        with pytest.raises(LogDamagedError) as caught:
            reader.poll(1_000, 0.0)
        assert (caught.value.path, caught.value.position) == (str(third), begin)
    reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("stays", ["later ones stay", "earlier ones stay"])
def test_the_advice_for_damage_in_an_older_segment_works(tmp_path: Path, stays: str) -> None:
    fill(tmp_path, 0, 40, SMALL).close()
    whole = everything(tmp_path)
    damage(tmp_path, 0, "000000000002.avro")
    sink_of(tmp_path, f"{FAST}&recover=cut").close()  # it concerns the newest segment only
    with pytest.raises(LogDamagedError, match=stays) as caught:
        everything(tmp_path)
    assert "recover" not in str(caught.value)
    for path in tmp_path.glob("*.avro"):
        if path.stem <= "000000000002" if "later" in stays else path.stem >= "000000000002":
            path.unlink()
    sink_of(tmp_path, FAST).close()
    kept = everything(tmp_path)
    assert kept
    assert kept == (whole[-len(kept) :] if "later" in stays else whole[: len(kept)])


def test_a_damaged_header_is_refused_or_set_aside(tmp_path: Path) -> None:
    fill(tmp_path, 0, 40, SMALL).close()
    newest = max(tmp_path.glob("*.avro"))
    with newest.open("rb") as file:
        lost = read_header(file).offsets
    newest.write_bytes(newest.read_bytes()[:50])
    with pytest.raises(LogDamagedError, match="header"):
        sink_of(tmp_path, FAST)
    sink_of(tmp_path, f"{FAST}&recover=cut").close()
    assert newest.with_name(newest.name + ".damaged").exists()
    reader = source_of(tmp_path)
    assert {tp: high for tp, (_, high) in reader.watermarks().items()} == lost
    reader.close()


@pytest.mark.parametrize("lost", [1, 7, 40, BLOCK, 2 * BLOCK])
def test_a_segment_that_is_cut_though_others_follow_is_named_as_damaged(tmp_path: Path, lost: int) -> None:
    """Also where it ends with a complete block, as a copy does that was made before the segment was full."""
    fill(tmp_path, 0, 40, SMALL).close()
    whole = everything(tmp_path)
    damaged = path_of(tmp_path, numbers_of(tmp_path)[1])
    data = damaged.read_bytes()
    with damaged.open("rb") as file:
        marker = read_header(file).sync
    end = len(data)
    for _ in range(lost // BLOCK):
        end = data.rfind(marker, 0, end - SYNC_SIZE) + SYNC_SIZE
    os.truncate(damaged, end - lost % BLOCK)
    source = at_start(tmp_path)
    read: list[Record] = []
    with pytest.raises(LogDamagedError) as caught:
        read_on(source, read)
    assert str(damaged) in str(caught.value)
    with_key = [record for record in read if record.key]
    assert with_key == whole[: len(with_key)]
    assert 0 < len(with_key) < len(whole)
    source.close()


# --- segments that are removed or replaced ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["fsync=always", "fsync=never"])
def test_nothing_is_acknowledged_into_a_segment_that_was_removed(tmp_path: Path, options: str) -> None:
    sink = fill(tmp_path, 0, 5, options)
    (tmp_path / SEGMENT).unlink()
    with pytest.raises(TransportError, match="removed or replaced"):
        sink.send(*block(5)).result(DEADLINE)
    sink.close()
    fill(tmp_path, 5, 7, options).close()
    assert set(numbers_in(everything(tmp_path))) == {5, 6}


def test_a_recording_whose_segment_is_removed_raises(tmp_path: Path) -> None:
    def step_until(recorder: Recorder, count: int) -> None:
        until(lambda: recorder.progress.records >= count, step=lambda: recorder.step(0.05))

    with MemoryBroker(uuid.uuid4().hex) as broker:
        publish(broker, line(1, 5))
        recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
        step_until(recorder, len(broker.records()))
        for segment in tmp_path.glob("*.avro"):
            segment.unlink()
        publish(broker, line(6, 9))
        with pytest.raises(TransportError, match="removed or replaced"):
            step_until(recorder, len(broker.records()))
        recorder.close()


def _raises(reader: FileSource, error: type[TransportError | CursorExpiredError], says: str) -> None:
    with pytest.raises(error, match=says):
        read_on(reader, timeout=DEADLINE)


def test_a_reader_raises_where_its_segments_are_missing(tmp_path: Path) -> None:
    """Retention has overtaken it, or one in the middle is missing."""
    fill(tmp_path, 0, 100, SMALL).close()
    oldest, second, third, *_ = sorted(tmp_path.glob("*.avro"))
    fresh, reader = at_start(tmp_path), at_start(tmp_path)
    assert reader.poll(1, 0.0)
    second.unlink()
    _raises(fresh, LogDamagedError, "segment 2 is missing, and later ones are there")
    oldest.unlink()
    third.unlink()
    _raises(reader, CursorExpiredError, "retention")
    reader.close()
    fresh.close()


def test_a_reader_raises_where_the_log_was_recreated(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    fill(folder, 0, 20).close()
    reader = at_end(folder)
    shutil.rmtree(folder)
    fill(folder, 100, 200, SMALL).close()
    _raises(reader, CursorExpiredError, "replaced")
    reader.close()
    reader = at_end(folder)
    max(folder.glob("*.avro")).unlink()
    _raises(reader, CursorExpiredError, "removed")
    fill(folder, 100, 200, SMALL).close()  # its number is assigned once more
    _raises(reader, CursorExpiredError, "replaced")
    reader.close()


@pytest.mark.parametrize("more", [0, 10, 100])
def test_a_reader_raises_where_damage_was_cut_off_before_its_position(tmp_path: Path, more: int) -> None:
    fill(tmp_path, 0, 40).close()
    reader = at_end(tmp_path)
    data = bytearray((tmp_path / SEGMENT).read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / SEGMENT).write_bytes(data)
    fill(tmp_path, 1_000, 1_000 + more, "fsync=never&recover=cut").close()
    _raises(reader, CursorExpiredError, "cut off")
    reader.close()


# --- disks that are full, broken or not writable ----------------------------------------------------------------------


@contextlib.contextmanager
def _files_no_larger_than(size: int) -> Iterator[None]:
    """A full disk; the limit is the process's, so nothing else is to be written meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 700])
def test_a_partially_written_block_is_cut_off_and_writing_continues_when_there_is_room(
    tmp_path: Path, room: int
) -> None:
    sink = fill(tmp_path, 1, 2, "")
    size = (tmp_path / SEGMENT).stat().st_size
    large = [Routed("logs", b"\x03" + (2).to_bytes(32, "big") + b"p/0", os.urandom(4_000))]
    with _files_no_larger_than(size + room), pytest.raises(DeliveryError, match="make room"):
        sink.send(large, None).result(DEADLINE)
    assert (tmp_path / SEGMENT).stat().st_size == size
    sink.send(*block(3)).result(DEADLINE)
    sink.send(large, None).result(DEADLINE)
    sink.close()
    assert numbers_in(everything(tmp_path)) == [1] * 5 + [3] * 5 + [2]


@pytest.mark.parametrize("limit", [6_000, 6_001, 7_777])
def test_a_full_disk_fails_exactly_the_blocks_that_are_not_written(tmp_path: Path, limit: int) -> None:
    sink = sink_of(tmp_path, "fsync=always&cardinal.partitions=1")
    failed = []
    with _files_no_larger_than(limit):
        for number, future in enumerate([sink.send(*block(number, messages=5, size=300)) for number in range(60)]):
            if (error := future.exception(DEADLINE)) is not None:
                assert isinstance(error, DeliveryError)
                assert (error.retriable, error.hash) == (True, number.to_bytes(32, "big"))
                failed.append(number)
        assert set(numbers_in(everything(tmp_path))) == set(range(60)) - set(failed)
    assert 0 < len(failed) < 60
    for number in failed:
        sink.send(*block(number, messages=5, size=300)).result(DEADLINE)
    sink.close()
    assert sorted(numbers_in(everything(tmp_path))) == [number for number in range(60) for _ in range(6)]


def test_a_full_disk_is_named_at_opening_and_an_existing_log_opens(tmp_path: Path) -> None:
    """There is no room for as much as the writer's number in the lock."""
    sink_of(tmp_path / "there").close()
    with _files_no_larger_than(0):
        with pytest.raises(TransportError, match=r"no segment could be begun in .*log"):
            sink_of(tmp_path / "log")
        sink = sink_of(tmp_path / "there")
        with pytest.raises(LogInUseError, match="another process"):
            sink_of(tmp_path / "there")
        with pytest.raises(DeliveryError, match="make room"):
            sink.send(*block(1)).result(DEADLINE)
    sink.send(*block(1)).result(DEADLINE)
    sink.close()
    assert len(everything(tmp_path / "there")) == 5


def test_no_room_for_the_next_segment_is_reported_and_retried(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "segment.bytes=1000")
    sink.send(*block(1, messages=20, size=100)).result(DEADLINE)
    in_the_way = tmp_path / "000000000002.avro.new"
    in_the_way.mkdir()  # nobody, root neither, can create a file of this name
    with pytest.raises(DeliveryError, match="make room and send it again") as caught:
        sink.send(*block(2)).result(DEADLINE)
    assert caught.value.hash == (2).to_bytes(32, "big")
    sink.close()
    with pytest.raises(TransportError, match="opened for writing"):
        sink_of(tmp_path)
    in_the_way.rmdir()
    in_the_way.write_bytes(b"Obj\x01half")  # what is left of a segment that was not begun
    fill(tmp_path, 2, 3, "segment.bytes=1000").close()
    assert set(numbers_in(everything(tmp_path))) == {1, 2}
    assert len(list(tmp_path.glob("*.avro*"))) == 2


def test_a_folder_that_cannot_be_created_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "folder", tmp_path / "file"):
        with pytest.raises(TransportError, match="cannot be made"):
            sink_of(folder)


def _send_until_refused(sink: FileSink) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        sink.send(*block(4)).exception(DEADLINE)


@pytest.mark.parametrize("fault", ["takes writes and refuses to be synced", "takes no write and cannot be cut"])
def test_after_a_failed_sync_or_cut_nothing_more_is_acknowledged(tmp_path: Path, fault: str) -> None:
    out, into = (-1, os.open(os.devnull, os.O_WRONLY)) if "sync" in fault else os.pipe()
    sink = fill(tmp_path, 1, 2, "fsync=always")
    kept = everything(tmp_path)
    os.dup2(into, sink._writer._fd)
    for future in [sink.send(*block(number)) for number in (2, 3)]:
        assert isinstance(future.exception(DEADLINE), TransportError)
    with pytest.raises(TransportError, match="nothing more is written"):
        _send_until_refused(sink)
    sink.close()
    assert everything(tmp_path) == kept
    fill(tmp_path, 2, 3).close()
    assert everything(tmp_path)[: len(kept)] == kept
    for fd in {out, into} - {-1}:
        os.close(fd)


def broken(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("method", ["poll", "assign", "watermarks", "offsets_for_time"])
def test_a_disk_that_cannot_be_read_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fill(tmp_path, 0, 5).close()
    source = source_of(tmp_path)
    start = dict.fromkeys(source.partitions(), 0)
    arguments = {"poll": (10, 0.0), "assign": (start,), "watermarks": (), "offsets_for_time": (0,)}[method]
    if method == "poll":  # else it has not read to the end yet
        source.assign(start)
    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(TransportError, match="cannot be read: Input/output error"):
        getattr(source, method)(*arguments)
    monkeypatch.undo()
    source.assign(start)
    assert len(source.poll(100, 0.0)) == len(everything(tmp_path, heartbeats=True))
    source.close()


def test_a_header_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 0, 5).close()
    monkeypatch.setattr(Segment, "__init__", broken)
    for opened in (lambda: list_topics(f"file://{tmp_path}"), lambda: source_of(tmp_path)):
        with pytest.raises(TransportError, match="cannot be read: Input/output error"):
            opened()
    with pytest.raises(TransportError, match="opened for writing: Input/output error"):
        sink_of(tmp_path)
    monkeypatch.undo()
    sink_of(tmp_path).close()  # and the folder is not locked


def test_a_file_system_without_locks_is_not_called_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(TransportError, match="a file system that has locks") as caught:
        sink_of(tmp_path)
    assert not isinstance(caught.value, LogInUseError)
