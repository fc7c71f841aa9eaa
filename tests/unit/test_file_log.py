"""Segments, the index beside them, retention, and logs that keep the offsets of another transport."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from cardinal.errors import ConfigurationError, CursorExpiredError, TopicError
from cardinal.protocols.streams import Record
from cardinal.transports import list_topics, open_source, parse_url
from cardinal.transports.file import FileSettings, FileSink, FileSource, LogWriter, file_settings, index
from cardinal.transports.file.container import read_header
from cardinal.transports.file.folders import numbers_of
from cardinal.transports.file.segments import Segments
from file_logs import APP, DEADLINE, block, everything, sink_of, source_of, write

FAST = "fsync=never&cardinal.partitions=3"


def marks_of(segment: Path) -> list[index.Mark]:
    with segment.open("rb") as file:
        return index.read(segment, read_header(file))


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A segment with several marks in its index, and one more segment."""
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
    assert len(marks_of(folder / "000000000001.avro")) >= 3


def test_seeking_by_the_index_finds_what_reading_finds(long_log: tuple[Path, list[Record]]) -> None:
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


@pytest.mark.parametrize("harm", ["gone", "garbage", "of another", "cut", "shifted", "too low", "too high"])
def test_whatever_the_index_says_the_data_is_read(
    long_log: tuple[Path, list[Record]], tmp_path: Path, harm: str
) -> None:
    folder, records = long_log
    for path in folder.glob("*.avro"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    segment = tmp_path / "000000000001.avro"
    marks = marks_of(folder / segment.name)
    with segment.open("rb") as file:
        header = read_header(file)
    made = {
        "shifted": [index.Mark(mark.at + 1, mark.latest, mark.offsets) for mark in marks],
        "too low": [index.Mark(m.at, m.latest, {w: max(0, o - 9) for w, o in m.offsets.items()}) for m in marks],
        "too high": [index.Mark(m.at, m.latest, {w: o + 9 for w, o in m.offsets.items()}) for m in marks],
    }
    good = (folder / "000000000001.index").read_bytes()
    if harm in made:
        index.IndexWriter(segment, header, made[harm]).close()
    elif harm != "gone":
        other = (folder / "000000000002.index").read_bytes()
        text = {"garbage": b"\xff\n" * 99, "of another": other[:33] + good[33:], "cut": good[: len(good) * 2 // 3]}
        segment.with_suffix(".index").write_bytes(text[harm])
    source = source_of(tmp_path)
    ends = {where: high for where, (_, high) in source.watermarks().items()}
    assert ends == {where: 1 + max(r.offset for r in records if r[:2] == where) for where in ends}
    rng = random.Random(2)
    for _ in range(15):
        wanted = {where: rng.randrange(end + 1) for where, end in ends.items()}
        source.assign(wanted)
        assert source.poll(10_000, 0.0) == [r for r in records if r.offset >= wanted[r.topic, r.partition]]
    source.close()


def test_a_writer_that_opens_a_segment_writes_its_index_anew(
    tmp_path: Path, long_log: tuple[Path, list[Record]]
) -> None:
    folder, records = long_log
    data = (folder / "000000000001.avro").read_bytes()
    (tmp_path / "000000000001.avro").write_bytes(data[:-1])
    sink_of(tmp_path, FAST).close()
    kept = marks_of(tmp_path / "000000000001.avro")
    assert kept
    assert kept == marks_of(folder / "000000000001.avro")[: len(kept)]
    found = everything(tmp_path, heartbeats=True)
    assert found == records[: len(found)]


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


def test_waiting_where_there_are_very_many_segments_lists_them_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(tmp_path, FAST + "&segment.bytes=1000")
    source = source_of(tmp_path)
    source.assign({where: high for where, (_, high) in source.watermarks().items()})
    listed: list[Path] = []
    names = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: listed.append(folder) or names(folder))
    assert source.poll(10, 1.0) == []
    assert len(listed) <= 2
    assert {source.partitions() for _ in range(50)} == {tuple(sorted(sink._writer.offsets))}  # asked at every read
    assert len(listed) <= 4
    for number in range(20):
        sink.send(*block(number)).result(DEADLINE)
    found: list[Record] = []
    while len(found) < 100:
        polled = source.poll(1_000, 2.0)
        assert polled
        found += polled
    assert len(list(tmp_path.glob("*.avro"))) > 5
    sink.close()
    source.close()


def test_a_reader_keeps_nothing_of_segments_that_retention_has_removed(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, FAST + "&segment.bytes=1000&retention.bytes=10000")
    source = source_of(tmp_path)
    source.assign({where: low for where, (low, _) in source.watermarks().items()})
    for number in range(60):
        sink.send(*block(number)).result(DEADLINE)
        assert source.poll(1_000, DEADLINE)
    kept, made = numbers_of(tmp_path), sink._writer._number
    assert len(kept) < made / 2
    assert len(source._log._segments._headers) <= len(kept) + 1
    sink.close()
    source.close()


def test_retention_removes_the_oldest_segments_and_a_reader_there_is_told(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, FAST + "&segment.bytes=2000&retention.bytes=10000")
    slow = source_of(tmp_path)
    slow.assign(dict.fromkeys(slow.partitions(), 0))
    for number in range(60):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.avro")) < 14_000
    assert {path.stem for path in tmp_path.glob("*.index")} == {path.stem for path in tmp_path.glob("*.avro")}
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


def test_the_index_is_used_where_offsets_have_gaps(tmp_path: Path) -> None:
    """As those of a transactional stream, whose transactions end with a mark that is no record."""
    rng = random.Random(4)
    groups = [
        [Record("block", number % 2, 10 * number + one, b"k", rng.randbytes(9_000), 1_000 + number) for one in range(5)]
        for number in range(90)
    ]
    write(tmp_path, groups)
    records = [record for group in groups for record in group]
    segment = tmp_path / "000000000001.avro"
    marks = marks_of(segment)
    assert len(marks) == 3
    LogWriter(tmp_path, FileSettings()).close()
    assert marks_of(segment) == marks
    segments = Segments(tmp_path)
    for mark in marks:
        assert segments.nearest_mark(1, mark.offsets) == mark.at
    assert segments.newest_mark(1) == marks[-1]
    segments.close()
    source = open_source(f"file://{tmp_path}", APP, topics=["block"])
    ends = {where: high for where, (_, high) in source.watermarks().items()}
    for _ in range(40):
        wanted = {where: rng.randrange(5, end + 1) for where, end in ends.items()}
        source.assign({where: max(at, 10 * where[1]) for where, at in wanted.items()})
        assert source.poll(10_000, 0.0) == [r for r in records if r.offset >= wanted[r[:2]]]
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
        ("fsync.interval.ms=0", "fsync.interval.ms"),
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
