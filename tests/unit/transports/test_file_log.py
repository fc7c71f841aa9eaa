"""Segments, retention, polls, and the order of writes of a folder."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
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
from examples import few
from file_logs import APP, DEADLINE, at_start, block, everything, fill, read_on, sink_of, source_of, write
from serving import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


FAST = "fsync=never&cardinal.partitions=3"


def test_segments_begin_where_the_ones_before_end(tmp_path: Path) -> None:
    fill(tmp_path, 0, 60, FAST + "&segment.bytes=3000").close()
    records = everything(tmp_path, heartbeats=True)
    segments = sorted(tmp_path.glob("*.avro"))
    assert [path.name for path in segments[:2]] == ["000000000001.avro", "000000000002.avro"]
    for segment in segments[1:]:
        with segment.open("rb") as file:
            header = read_header(file)
        before = records[: sum(header.offsets.values())]
        assert header.offsets == {tp: sum(record[:2] == tp for record in before) for tp in header.offsets}
        assert header.latest == max(record.timestamp_ms for record in before)


def test_many_readers_see_the_same_while_one_writes(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, FAST + "&segment.bytes=3000")
    blocks = 150
    total = 6 + blocks * 5
    seen: list[list[Record]] = [[] for _ in range(4)]

    def read(into: list[Record]) -> None:
        source = at_start(tmp_path)
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


def test_retention_removes_the_oldest_segments_and_a_reader_there_raises(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, FAST + "&segment.bytes=2000&retention.bytes=10000")
    slow = source_of(tmp_path)
    slow.assign(dict.fromkeys(slow.partitions(), 0))
    for number in range(60):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.avro")) < 14_000
    lows = at_start(tmp_path).positions()
    assert min(lows.values()) > 1
    # What was opened before it was removed can still be read; then the gap is named, not skipped.
    with pytest.raises(CursorExpiredError, match="retention") as caught:
        read_on(slow)
    assert {tp: low for tp, (_, low) in caught.value.missing.items()} == lows
    slow.close()


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


def test_existing_partitions_stay_whatever_the_option(tmp_path: Path) -> None:
    sink_of(tmp_path, "cardinal.partitions=3").close()
    fill(tmp_path, 1, 2, "cardinal.partitions=8").close()
    assert len({record.partition for record in everything(tmp_path, heartbeats=True)}) == 3


# --- who sends faster than the disk takes waits: what is under way in a file sink is bounded in bytes ----------------


CALLS = 60


SIZE = 2_000


def test_sending_waits_while_the_disk_hangs_and_then_everything_is_written_in_order(tmp_path: Path) -> None:
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
def test_a_poll_is_bounded_in_bytes_and_the_next_one_continues(tmp_path: Path, paused: list[tuple[str, int]]) -> None:
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


# --- in which order segments are synced: what a power cut leaves is a log without a gap -------------------


class SystemCall(NamedTuple):
    """A call of the system: to ``sync`` or ``write`` a file; and how large that was before."""

    what: str
    inode: int
    size: int


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[SystemCall]:
    """Everything that the writer asks of the real disk, in order."""
    calls: list[SystemCall] = []

    def note(what: str, call: Callable[..., int | None]) -> Callable[..., int | None]:
        def noted(fd: int, *rest: object) -> int | None:
            stat = os.fstat(fd)
            calls.append(SystemCall(what, stat.st_ino, stat.st_size))
            return call(fd, *rest)

        return noted

    monkeypatch.setattr(writer, "_sync_data", note("sync", writer._sync_data))
    monkeypatch.setattr(os, "fsync", note("sync", os.fsync))
    monkeypatch.setattr(os, "pwrite", note("write", os.pwrite))
    return calls


@pytest.mark.parametrize("policy", ["always", "never"])
def test_a_segment_and_the_name_of_the_next_are_on_the_disk_before_that_has_a_record(
    calls: list[SystemCall], tmp_path: Path, policy: str
) -> None:
    fill(tmp_path, 0, 30, f"segment.bytes=2000&fsync={policy}").close()
    segments = [path_of(tmp_path, number).stat() for number in numbers_of(tmp_path)]
    folder = tmp_path.stat().st_ino
    assert len(segments) > 3
    for before, after in pairwise(segments):
        first_record = next(at for at, one in enumerate(calls) if one[:2] == ("write", after.st_ino))
        synced = [at for at, one in enumerate(calls[:first_record]) if one.what == "sync"]
        header = [at for at in synced if calls[at].inode == after.st_ino]
        assert ("sync", before.st_ino, before.st_size) in calls[:first_record], "the one before is not whole"
        assert header, "its header may be lost"
        assert any(calls[at].inode == folder for at in synced if at > header[-1]), "its name may be lost"


@pytest.mark.parametrize("there", ["", "new", "new/log"])
def test_the_names_of_the_folders_are_on_the_disk_before_there_is_a_record(
    calls: list[SystemCall], tmp_path: Path, there: str
) -> None:
    """Also of one that is there: whoever made it may have died before its name was on the disk."""
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    sink_of(tmp_path / "new" / "log").close()
    first_record = next(at for at, one in enumerate(calls) if one.what == "write" and one.size)
    synced = {one.inode for one in calls[:first_record] if one.what == "sync"}
    made = ["new"] if there else ["", "new"]
    assert synced >= {(tmp_path / above).stat().st_ino for above in made}


def test_nothing_is_acknowledged_before_it_is_on_the_disk(calls: list[SystemCall], tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "fsync=always")
    for number in range(5):
        calls.clear()
        sink.send(*block(number)).result(DEADLINE)
        assert [one.what for one in calls] == ["write", "sync"]
        assert calls[-1].size == path_of(tmp_path, 1).stat().st_size
    sink.close()


def test_never_means_that_the_operating_system_is_trusted(calls: list[SystemCall], tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "fsync=never")
    calls.clear()
    for number in range(20):
        sink.send(*block(number)).result(DEADLINE)
    assert {one.what for one in calls} == {"write"}
    sink.close()


# --- seeded schedules of a writer and a reader, compared with a model that is a list ---------------------------------


PLACES = [("block", 0), ("block", 1), ("logs", 0), ("logs", 64)]


class Schedule:
    """Random appends, segments, gaps, removed segments and restarts; random assignments, pauses and polls."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.settings = FileSettings(segment_bytes=1_000 + self.rng.randrange(3_000))
        self.writer = LogWriter(folder, self.settings)
        self.writer.declare(dict.fromkeys(PLACES, 0))
        self.log: list[Record] = []
        self.lows = dict.fromkeys(PLACES, 0)
        self.source = FileSource(folder, None)
        self.given: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.paused: set[tuple[str, int]] = set()

    def run(self, steps: int) -> None:
        actions = [self.append] * 5 + [self.poll] * 8 + [self.pause, self.look, self.skip, self.restart, self.assign]
        self.assign()
        for _ in range(steps):
            self.rng.choice(actions)()
        self.paused = set()
        self.source.pause(())
        while self.poll():
            pass
        assert self.given == {where: self.writer.offsets[where] for where in self.given}
        self.source.close()
        self.writer.close()

    def append(self) -> None:
        blocks = []
        offsets = dict(self.writer.offsets)
        for _ in range(self.rng.randrange(1, 4)):
            block = []
            for _ in range(self.rng.randrange(1, 6)):
                where = self.rng.choice(PLACES)
                block.append(Record(*where, offsets[where], self.rng.randbytes(40), b"v", len(self.log), ()))
                offsets[where] += 1
            blocks.append(block)
        assert self.writer.append(blocks) == (len(blocks), None)
        self.log += [record for block in blocks for record in block]

    def skip(self) -> None:
        where = self.rng.choice(PLACES)
        self.writer.declare({where: self.writer.offsets[where] + self.rng.randrange(3)})

    def restart(self) -> None:
        self.writer.close()
        if self.rng.random() < 0.5:
            with path_of(self.folder, numbers_of(self.folder)[-1]).open("ab") as file:
                file.write(self.rng.randbytes(self.rng.randrange(60)))
        self.writer = LogWriter(self.folder, self.settings)

    def look(self) -> None:
        marks = self.source.watermarks()
        assert marks == {where: (self.lows[where], self.writer.offsets[where]) for where in PLACES}

    def assign(self) -> None:
        ends = self.writer.offsets
        self.given.clear()
        for where in self.rng.sample(PLACES, self.rng.randrange(1, len(PLACES) + 1)):
            self.given[where] = self.rng.randint(self.lows[where], ends[where])
        self.source.assign(self.given)
        self.paused = set()

    def pause(self) -> None:
        self.paused = {where for where in self.given if self.rng.random() < 0.4}
        self.source.pause(self.paused)

    def poll(self) -> bool:
        """One poll; whether it gave anything."""
        limit = self.rng.randrange(1, 12)
        polled = self.source.poll(limit, 0.0)
        assert len(polled) <= limit
        for record in polled:
            where = (record.topic, record.partition)
            assert where not in self.paused
            assert record == self.next_of(where)
            self.given[where] = record.offset + 1
        for where, at in self.source.positions().items():
            following = self.next_of(where)
            assert self.given[where] <= at
            assert following is None or at <= following.offset  # a gap may be passed, a record not
            self.given[where] = at
        if not polled:
            assert all(self.next_of(where) is None for where in self.given.keys() - self.paused)
        return bool(polled)

    def next_of(self, where: tuple[str, int]) -> Record | None:
        found = (record for record in self.log if record[:2] == where and record.offset >= self.given[where])
        return next(found, None)


SEEDS = [*few(10, range(40)), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(40, 2_000))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_gets_what_a_list_would_give(tmp_path: Path, seed: int) -> None:
    Schedule(seed, tmp_path).run(150)


def test_a_reader_that_paused_below_expired_records_is_notified_when_it_resumes(tmp_path: Path) -> None:
    schedule = Schedule(1, tmp_path)
    source = schedule.source
    source.assign(dict.fromkeys(PLACES, 0))
    source.pause([PLACES[0]])
    for _ in range(60):
        schedule.append()
        source.poll(1_000, 0.0)
    numbers = numbers_of(tmp_path)
    assert len(numbers) > 12
    for number in numbers[:-1]:
        path_of(tmp_path, number).unlink()
    source.pause(())
    with pytest.raises(CursorExpiredError) as caught:
        read_on(source)
    assert set(caught.value.missing) == {PLACES[0]}
    source.close()
    schedule.writer.close()
