"""Segments, retention, polls, and the order of writes of a folder."""

from __future__ import annotations

import os
import random
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cardinal.errors import ConfigurationError, CursorExpiredError, TopicError
from cardinal.protocols.streams import Record
from cardinal.transports import list_topics, open_source, parse_url
from cardinal.transports.file import FileSettings, FileSink, FileSource, LogWriter, file_settings, writer
from cardinal.transports.file.container import read_header
from cardinal.transports.file.folders import numbers_of, path_of
from cardinal.transports.file.log import Log, Position
from cardinal.transports.file.source import _POLL_BYTES
from file_logs import APP, DEADLINE, block, everything, sink_of, source_of, write
from serving import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path


FAST = "fsync=never&cardinal.partitions=3"


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A long segment, and one more."""
    folder = tmp_path_factory.mktemp("long")
    rng = random.Random(3)
    sink = sink_of(folder, FAST + "&segment.bytes=4500000")
    for number in range(130):
        content, seal = block(number, messages=6)
        noise = [message._replace(value=rng.randbytes(8_000)) for message in content]
        sink.send(noise, seal).result(DEADLINE)
    sink.close()
    return folder, everything(folder, heartbeats=True)


def test_segments_begin_where_the_ones_before_end(long_log: tuple[Path, list[Record]]) -> None:
    folder, records = long_log
    assert [path.name for path in sorted(folder.glob("*.avro"))] == ["000000000001.avro", "000000000002.avro"]
    with (folder / "000000000002.avro").open("rb") as file:
        header = read_header(file)
    assert sum(header.offsets.values()) < len(records)
    before = records[: sum(header.offsets.values())]
    assert header.offsets == {where: sum(r[:2] == where for r in before) for where in header.offsets}
    assert header.latest == max(record.timestamp_ms for record in before)


def test_seeking_finds_what_reading_finds(long_log: tuple[Path, list[Record]]) -> None:
    folder, records = long_log
    rng = random.Random(1)
    source = source_of(folder)
    ends = {where: high for where, (_, high) in source.watermarks().items()}
    for _ in range(60):
        wanted = {where: rng.randrange(end + 1) for where, end in ends.items() if rng.random() < 0.6}
        source.assign(wanted)
        expected = [r for r in records if r.offset >= wanted.get((r.topic, r.partition), r.offset + 1)]
        assert source.poll(10_000, 0.0) == expected
    source.close()


def test_many_readers_see_the_same_while_one_writes(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, FAST + "&segment.bytes=3000")
    blocks = 150
    total = 6 + blocks * 5
    seen: list[list[Record]] = [[] for _ in range(4)]

    def read(into: list[Record]) -> None:
        source = source_of(tmp_path)
        source.assign({where: low for where, (low, _) in source.watermarks().items()})
        deadline = time.monotonic() + DEADLINE
        while len(into) < total and time.monotonic() < deadline:
            into += source.poll(17, 0.2)
        source.close()

    readers = [threading.Thread(target=read, args=(into,)) for into in seen]
    for reader in readers:
        reader.start()
    for number in range(blocks):
        sink.send(*block(number)).result(DEADLINE)
    for reader in readers:
        reader.join(DEADLINE)
    sink.close()
    assert len(list(tmp_path.glob("*.avro"))) > 3
    whole = everything(tmp_path, heartbeats=True)
    assert len(whole) == total
    assert all(records == whole for records in seen)


def test_waiting_for_records_costs_no_processor_time(tmp_path: Path) -> None:
    sink = sink_of(tmp_path)
    source = source_of(tmp_path)
    source.assign({where: high for where, (_, high) in source.watermarks().items()})
    began = time.thread_time()
    assert source.poll(10, 1.0) == []
    assert time.thread_time() - began < 0.2
    source.close()
    sink.close()


def test_retention_removes_the_oldest_segments_and_a_reader_there_is_told(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, FAST + "&segment.bytes=2000&retention.bytes=10000")
    slow = source_of(tmp_path)
    slow.assign(dict.fromkeys(slow.partitions(), 0))
    for number in range(60):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.avro")) < 14_000
    reader = source_of(tmp_path)
    lows = {where: low for where, (low, _) in reader.watermarks().items()}
    assert min(lows.values()) > 1
    # What was opened before it was removed can still be read; then the gap is named, not stepped over.
    with pytest.raises(CursorExpiredError, match="retention") as caught:
        everything_left(slow)
    assert {where: low for where, (_, low) in caught.value.missing.items()} == lows
    everything(tmp_path)
    reader.close()
    slow.close()


def everything_left(source: FileSource) -> None:
    while source.poll(100, 0.0):
        pass


def test_a_clock_that_jumps_back_a_day_hides_nothing_from_who_looks_for_a_time(tmp_path: Path) -> None:
    now = [1_700_000_000.0]
    writer = LogWriter(tmp_path, FileSettings())
    sink = FileSink(writer, FileSettings(), APP.all_topics, producer_id="a", recent=lambda _: [], clock=lambda: now[0])
    sink.send(*block(1)).result(DEADLINE)
    now[0] -= 86_400
    sink.send(*block(2)).result(DEADLINE)
    now[0] += 2 * 86_400
    sink.send(*block(3)).result(DEADLINE)
    sink.close()
    times = [record.timestamp_ms for record in everything(tmp_path)]
    assert times == sorted(times)
    source = source_of(tmp_path)
    source.assign(source.offsets_for_time(1_700_000_000_001))
    assert {record.key[1:33] for record in source.poll(100, 0.0)} == {(3).to_bytes(32, "big")}
    source.close()


# --- logs that keep another transport's positions ------------------------------------------------------------


def test_offsets_of_another_transport_are_kept_with_their_gaps(tmp_path: Path) -> None:
    records = [Record("block", 2, offset, b"k%d" % offset, b"v", 1_000 + offset) for offset in (100, 101, 105, 106)]
    write(tmp_path, [records[:2], records[2:]])
    source = open_source(f"file://{tmp_path}", APP, topics=["block"])
    assert source.watermarks() == {("block", 2): (100, 107)}
    for offset, expected in ((100, records), (102, records[2:]), (106, records[3:]), (107, [])):
        source.assign({("block", 2): offset})
        assert source.poll(10, 0.0) == expected
        assert source.positions() == {("block", 2): 107}
    source.close()


def test_partitions_can_be_moved_ahead_of_their_last_record(tmp_path: Path) -> None:
    records = [Record("block", 0, offset, b"k", b"v") for offset in range(3)]
    write(tmp_path, [records])
    writer = LogWriter(tmp_path, FileSettings())
    writer.declare({("block", 0): 5, ("block", 1): 7})
    writer.declare({("block", 0): 4})  # not back again
    source = open_source(f"file://{tmp_path}", APP, topics=["block"])
    assert source.watermarks() == {("block", 0): (0, 5), ("block", 1): (7, 7)}
    source.assign({("block", 0): 0, ("block", 1): 7})
    assert source.poll(10, 0.1) == records
    assert source.positions() == {("block", 0): 5, ("block", 1): 7}
    assert writer.append([[Record("block", 0, 5, b"later", b"")]]) == (1, None)
    assert [record.offset for record in source.poll(10, 2.0)] == [5]
    source.close()
    writer.close()


def test_a_topic_that_comes_later_is_noticed(tmp_path: Path) -> None:
    sink = sink_of(tmp_path)
    with pytest.raises(TopicError, match="start a producer"):
        open_source(f"file://{tmp_path}", APP, topics=["block-re"])
    opened: list[tuple[tuple[str, int], ...]] = []

    def wait() -> None:
        source = open_source(f"file://{tmp_path}", APP, topics=["block-re"], wait=DEADLINE)
        opened.append(source.partitions())
        source.close()

    waiting = threading.Thread(target=wait)
    waiting.start()
    sink.open_channel("block-re")
    waiting.join(DEADLINE)
    sink.close()
    assert opened == [(("block-re", 0),)]
    assert list_topics(f"file://{tmp_path}") == {"block", "logs", "block-re"}


# --- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("fsync=sometimes", "fsync"),
        ("segment.bytes=10", "segment.bytes"),
        ("segment.bytes=x", "segment.bytes"),
        ("retention.bytes=-2", "retention.bytes"),
        ("recover=yes", "recover"),
        ("cardinal.partitions=0", "cardinal.partitions"),
        ("linger.ms=5", "linger.ms"),
    ],
)
def test_an_option_that_cannot_work_is_named(tmp_path: Path, options: str, names: str) -> None:
    for open_it in (
        lambda: sink_of(tmp_path, options),
        lambda: file_settings(parse_url(f"file://{tmp_path}?{options}")),
    ):
        with pytest.raises(ConfigurationError, match=names) as caught:
            open_it()
        assert caught.value.setting == names
    assert not list(tmp_path.iterdir())


def test_partitions_that_are_there_stay_whatever_the_option_says(tmp_path: Path) -> None:
    sink_of(tmp_path, "cardinal.partitions=3").close()
    sink = sink_of(tmp_path, "cardinal.partitions=8")
    sink.send(*block(1)).result(DEADLINE)
    sink.close()
    assert len({record.partition for record in everything(tmp_path, heartbeats=True)}) == 3


# --- who sends faster than the disk takes waits: what is under way in a file sink is bounded in bytes ----------------


CALLS = 60
SIZE = 2_000


def test_sending_waits_while_the_disk_stands_still_and_then_everything_is_written_in_order(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "fsync=never&cardinal.queue.bytes=20000")
    futures: list[Future[None]] = []

    def send() -> None:
        for number in range(CALLS):
            futures.append(sink.send(*block(number, messages=1, size=SIZE)))  # noqa: PERF401 - it is looked at meanwhile

    sender = threading.Thread(target=send)
    with sink._committer.writing:  # what the writer's thread needs for every write
        sender.start()
        until(lambda: len(futures) >= 20_000 // (2 * SIZE))
        sender.join(0.2)  # it would end where nothing is bounded
        assert sender.is_alive(), "all of it was taken, and nothing written"
        assert len(futures) < 20_000 // SIZE + 3
        assert not any(future.done() for future in futures)
    sender.join(DEADLINE)
    for future in futures:
        future.result(DEADLINE)
    sink.close()
    seals = [record.key[1:33] for record in everything(tmp_path) if record.topic == "block"]
    assert seals == [number.to_bytes(32, "big") for number in range(CALLS)]


# --- how much a poll of a folder gives where records are large: who polls knows how many it wants, not their size ----


LARGE = 3 << 20


def _record(offset: int, size: int) -> Record:
    return Record("block", 0, offset, b"k", bytes(size))


@pytest.mark.parametrize("paused", [(), [("logs", 0)]])
def test_a_poll_is_bounded_in_bytes_and_the_next_one_goes_on(tmp_path: Path, paused: list[tuple[str, int]]) -> None:
    """Small records, and then large ones at once: as a server finds them that has learnt to ask for thousands."""
    small = [_record(offset, 300) for offset in range(1_000)]
    large = [_record(offset, LARGE) for offset in range(1_000, 1_012)]
    write(tmp_path, [small, *([one] for one in large), [Record("logs", 0, 0, b"k", b"v")]])
    source = source_of(tmp_path)
    source.assign({("block", 0): 0, ("logs", 0): 0})
    source.pause(paused)
    records: list[Record] = []
    while polled := source.poll(10_000, 0.0):
        assert sum(len(record.value) for record in polled) < _POLL_BYTES + LARGE
        records += polled
    assert [record.offset for record in records if record.topic == "block"] == list(range(1_012))
    assert len(records) == 1_012 + (not paused)
    source.close()


# --- what a reader sees of a segment that grows, and is ended, between two of its looks ------------------------------


def test_blocks_that_came_after_the_last_look_are_read_before_the_next_segment(tmp_path: Path) -> None:
    """A reader finds nothing more; the writer appends, begins the next segment; only then the reader looks for that."""
    sink = sink_of(tmp_path, "segment.bytes=3000&fsync=never")
    log = Log(tmp_path)
    sink.send(*block(0)).result(DEADLINE)
    place = _to_the_end(log, Position(1, 0))
    assert log.read(place) is None
    sent = 0
    while not (tmp_path / "000000000002.avro").exists():
        sent += 1
        sink.send(*block(sent)).result(DEADLINE)
    assert log.after(place) is None, "it would pass over what was appended"
    unread = log.read(place)
    assert unread is not None
    assert unread.records[0].key[1:33] == (1).to_bytes(32, "big")
    following = log.after(_to_the_end(log, place))
    assert following is not None
    assert (following.position.number, following.adjoins) == (2, True)
    log.close()
    sink.close()


def _to_the_end(log: Log, place: Position) -> Position:
    while (found := log.read(place)) is not None:
        place = Position(place.number, found.end)
    return place


# --- in which order the disk is asked for segments: what a power cut leaves is a log without a gap -------------------


class Asked(NamedTuple):
    """What the system was asked: to ``sync`` or ``write`` a file; and how large that was before."""

    what: str
    inode: int
    size: int


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Everything that the writer asks of the real disk, in order."""
    asked: list[Asked] = []

    def note(what: str, call: Callable[..., int | None]) -> Callable[..., int | None]:
        def noted(fd: int, *rest: object) -> int | None:
            stat = os.fstat(fd)
            asked.append(Asked(what, stat.st_ino, stat.st_size))
            return call(fd, *rest)

        return noted

    monkeypatch.setattr(writer, "_sync_data", note("sync", writer._sync_data))
    monkeypatch.setattr(os, "fsync", note("sync", os.fsync))
    monkeypatch.setattr(os, "pwrite", note("write", os.pwrite))
    return asked


@pytest.mark.parametrize("policy", ["always", "never"])
def test_a_segment_and_the_name_of_the_next_are_on_the_disk_before_that_has_a_record(
    asked: list[Asked], tmp_path: Path, policy: str
) -> None:
    sink = sink_of(tmp_path, f"segment.bytes=2000&fsync={policy}")
    for number in range(30):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    segments = [path_of(tmp_path, number).stat() for number in numbers_of(tmp_path)]
    folder = tmp_path.stat().st_ino
    assert len(segments) > 3
    for before, after in pairwise(segments):
        first_record = next(at for at, one in enumerate(asked) if one[:2] == ("write", after.st_ino))
        synced = [at for at, one in enumerate(asked[:first_record]) if one.what == "sync"]
        header = [at for at in synced if asked[at].inode == after.st_ino]
        assert ("sync", before.st_ino, before.st_size) in asked[:first_record], "the one before is not whole"
        assert header, "its header may be lost"
        assert any(asked[at].inode == folder for at in synced if at > header[-1]), "its name may be lost"


@pytest.mark.parametrize("there", ["", "new", "new/log"])
def test_the_names_of_the_folders_are_on_the_disk_before_there_is_a_record(
    asked: list[Asked], tmp_path: Path, there: str
) -> None:
    """Also of one that is there: whoever made it may have died before its name was on the disk."""
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    sink_of(tmp_path / "new" / "log").close()
    first_record = next(at for at, one in enumerate(asked) if one.what == "write" and one.size)
    synced = {one.inode for one in asked[:first_record] if one.what == "sync"}
    made = ["new"] if there else ["", "new"]
    assert synced >= {(tmp_path / above).stat().st_ino for above in made}


# --- when the disk is asked, and who else reads the files ------------------------------------------------------------


class Disk:
    """Asks the real disk, and keeps when, and how much had been written by then."""

    def __init__(self, sync: Callable[[int], None]) -> None:
        self._sync = sync
        self.asked: list[tuple[float, int]] = []

    def __call__(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        self._sync(fd)
        self.asked.append((time.monotonic(), size))

    @property
    def keeps(self) -> int:
        """Bytes of the segment that are on the disk."""
        return self.asked[-1][1] if self.asked else 0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(writer._sync_data)
    monkeypatch.setattr(writer, "_sync_data", disk)
    return disk


def test_nothing_is_acknowledged_that_the_disk_does_not_keep(disk: Disk, tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "fsync=always")
    sizes = []
    for number in range(5):
        sink.send(*block(number)).result(DEADLINE)
        sizes.append((disk.keeps, (tmp_path / "000000000001.avro").stat().st_size))
    sink.close()
    assert all(kept == written for kept, written in sizes)
    assert [written for _, written in sizes] == sorted({written for _, written in sizes})


def test_never_means_that_the_operating_system_is_trusted(disk: Disk, tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "fsync=never")
    opening = len(disk.asked)
    for number in range(20):
        sink.send(*block(number)).result(DEADLINE)
    assert len(disk.asked) == opening
    assert len(everything(tmp_path)) == 100
    sink.close()


def test_an_avro_reader_of_other_makers_reads_the_segments(tmp_path: Path) -> None:
    """Rust's, in Polars; Java's, on which Spark's stands, reads them in tests/spark."""
    polars = pytest.importorskip("polars")
    sink = sink_of(tmp_path, "segment.bytes=3000&fsync=never")
    for number in range(30):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    segments = sorted(tmp_path.glob("*.avro"))
    assert len(segments) > 2
    rows = [row for segment in segments for row in polars.read_avro(segment).iter_rows(named=True)]
    ours = everything(tmp_path, heartbeats=True)
    assert [(row["topic"], row["partition"], row["offset"], row["key"], row["value"]) for row in rows] == [
        (one.topic, one.partition, one.offset, one.key, one.value) for one in ours
    ]
    assert [tuple((each["name"], each["value"]) for each in row["headers"]) for row in rows] == [
        one.headers for one in ours
    ]
