"""Recovery of a folder: torn tails of crashes, and damage that no crash explains."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cardinal._concurrency import run_in_thread
from cardinal.errors import LogDamagedError, LogInUseError, TransportError
from cardinal.protocols.streams import Record
from cardinal.transports.file import FileSink, FileSource
from cardinal.transports.file.container import read_header
from cardinal.transports.file.segments import Segment
from file_logs import DEADLINE, block, everything, sink_of, source_of

FAST = "fsync=never&cardinal.partitions=2"
SEGMENT = "000000000001.avro"
FLIPS = 60


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


def refused(folder: Path) -> LogDamagedError | None:
    """What whoever wants to write on is told; None where it can."""
    try:
        sink_of(folder, FAST).close()
    except LogDamagedError as damage:
        return damage
    return None


def test_cut_at_every_byte_of_its_last_blocks_a_log_holds_every_whole_block_and_goes_on(tmp_path: Path) -> None:
    whole = a_log(tmp_path / "whole", count=3, size=1)
    file = tmp_path / "whole" / SEGMENT
    blocks = blocks_of(tmp_path / "whole")
    folder = tmp_path / "cut"
    data = file.read_bytes()
    for size in range(blocks[-2][0], blocks[-1][1] + 1):
        folder.mkdir()
        (folder / SEGMENT).write_bytes(data[:size])
        kept = sum(count for _, end, count in blocks if end <= size)
        assert everything(folder, heartbeats=True) == whole[:kept]  # a reader, before anybody mends it
        sink = sink_of(folder, FAST)
        assert everything(folder, heartbeats=True) == whole[:kept]
        sink.send(*block(99)).result(DEADLINE)
        sink.close()
        after = everything(folder, heartbeats=True)
        assert after[:kept] == whole[:kept]
        assert {record.key[1:33] for record in after[kept:]} == {(99).to_bytes(32, "big")}
        shutil.rmtree(folder)


def test_a_reader_that_stands_at_a_torn_tail_reads_on_when_it_was_mended(tmp_path: Path) -> None:
    a_log(tmp_path)
    last = blocks_of(tmp_path)[-1]
    reader = source_of(tmp_path)
    os.truncate(tmp_path / SEGMENT, last[1] - 3)
    reader.assign({where: high for where, (_, high) in reader.watermarks().items()})
    assert reader.poll(10, 0.0) == []
    sink = sink_of(tmp_path, FAST)
    sink.send(*block(7, messages=2)).result(DEADLINE)  # as long as what was cut: the file has the size it had
    assert {record.key[1:33] for record in reader.poll(10, 5.0)} == {(7).to_bytes(32, "big")}
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


def damage(folder: Path, index: int, name: str = SEGMENT) -> int:
    """Alter a byte of an Avro block; where that block begins."""
    begin, end, _ = blocks_of(folder, name)[index]
    data = bytearray((folder / name).read_bytes())
    data[(begin + end) // 2] ^= 4
    (folder / name).write_bytes(data)
    return begin


def test_a_reader_says_what_is_damaged_and_where(tmp_path: Path) -> None:
    a_log(tmp_path)
    reader = source_of(tmp_path)
    reader.assign(dict.fromkeys(reader.partitions(), 0))
    begin = damage(tmp_path, 2)
    assert len(reader.poll(1_000, 0.0)) == sum(count for _, _, count in blocks_of(tmp_path))
    with pytest.raises(LogDamagedError) as caught:
        reader.poll(1_000, DEADLINE)
    assert caught.value.position == begin
    reader.close()


@pytest.mark.parametrize("ask", [FileSource.watermarks, lambda reader: reader.offsets_for_time(0)])
def test_a_damaged_log_has_no_end_to_be_read_to(tmp_path: Path, ask: Callable[[FileSource], object]) -> None:
    """Who copies a log to its end takes the end first: where damage was one, the copy of a part would be whole."""
    a_log(tmp_path)
    begin = damage(tmp_path, 2)
    reader = source_of(tmp_path)
    with pytest.raises(LogDamagedError) as caught:
        ask(reader)
    assert caught.value.position == begin
    reader.close()


def test_who_asks_for_the_end_while_a_writer_mends_the_log_is_told_the_mended_end(tmp_path: Path) -> None:
    whole = a_log(tmp_path)
    damage(tmp_path, 2)
    reader = source_of(tmp_path)
    asked = run_in_thread(reader.watermarks, "asking")
    sink_of(tmp_path, f"{FAST}&recover=cut").close()
    ends = {where: high for where, (_, high) in asked.result(DEADLINE).items()}
    kept = whole[: sum(count for _, _, count in blocks_of(tmp_path))]
    assert ends == {where: sum(record[:2] == where for record in kept) for where in ends}
    reader.close()


def test_what_stands_before_the_damage_is_read_before_it_is_named(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, f"{FAST}&segment.bytes=2000")
    for number in range(40):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    whole = everything(tmp_path, heartbeats=True)
    begin = damage(tmp_path, -1, "000000000003.avro")
    with (tmp_path / "000000000003.avro").open("rb") as file:
        kept = sum(read_header(file).offsets.values()) + sum(n for _, _, n in blocks_of(tmp_path, "000000000003.avro"))
    reader = source_of(tmp_path)
    reader.assign(dict.fromkeys(reader.partitions(), 0))
    assert reader.poll(1_000, 0.0) == whole[:kept]
    for _ in range(2):
        with pytest.raises(LogDamagedError) as caught:
            reader.poll(1_000, 0.0)
        assert (caught.value.path, caught.value.position) == (str(tmp_path / "000000000003.avro"), begin)
    reader.close()


@pytest.mark.parametrize("stays", ["later ones stay", "earlier ones stay"])
def test_the_advice_for_damage_in_an_older_segment_works(tmp_path: Path, stays: str) -> None:
    sink = sink_of(tmp_path, f"{FAST}&segment.bytes=2000")
    for number in range(40):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    whole = everything(tmp_path)
    damage(tmp_path, 0, "000000000002.avro")
    sink_of(tmp_path, f"{FAST}&recover=cut").close()  # it is about the newest, and so this is not what is said
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


def test_what_is_left_of_a_segment_that_was_not_begun_is_removed(tmp_path: Path) -> None:
    whole = a_log(tmp_path)
    (tmp_path / "000000000002.avro.new").write_bytes(b"Obj\x01half")
    sink_of(tmp_path, FAST).close()
    assert sorted(path.name for path in tmp_path.glob("*.avro*")) == [SEGMENT]
    assert everything(tmp_path, heartbeats=True) == whole


def test_a_damaged_header_is_refused_or_set_aside(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, f"{FAST}&segment.bytes=1000")
    for number in range(40):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    newest = max(tmp_path.glob("*.avro"))
    with newest.open("rb") as file:
        lost = read_header(file).offsets
    newest.write_bytes(newest.read_bytes()[:50])
    with pytest.raises(LogDamagedError, match="header"):
        sink_of(tmp_path, FAST)
    sink_of(tmp_path, f"{FAST}&recover=cut").close()
    assert newest.with_name(newest.name + ".damaged").exists()
    reader = source_of(tmp_path)
    assert {where: high for where, (_, high) in reader.watermarks().items()} == lost
    reader.close()


def test_a_second_writer_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    first = sink_of(tmp_path)
    with pytest.raises(LogInUseError, match=f"process {os.getpid()} writes to") as caught:
        sink_of(tmp_path)
    assert caught.value.pid == os.getpid()
    first.send(*block(1)).result(DEADLINE)
    first.close()
    sink_of(tmp_path).close()


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TransportError, match="cannot be made"):
        sink_of(tmp_path / "file" / "folder")
    with pytest.raises(TransportError, match="cannot be made"):
        sink_of(tmp_path / "file")


def send_until_refused(sink: FileSink) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        sink.send(*block(4)).exception(DEADLINE)


def dropped_by_the_disk(folder: Path, instead: int) -> None:
    """A writer whose file was exchanged for something that fails."""
    sink = sink_of(folder, "fsync=always")
    sink.send(*block(1)).result(DEADLINE)
    kept = everything(folder)
    os.dup2(instead, sink._writer._fd)
    futures = [sink.send(*block(number)) for number in (2, 3)]
    for future in futures:
        error = future.exception(DEADLINE)
        assert isinstance(error, TransportError)
    with pytest.raises(TransportError, match="nothing more is written"):
        send_until_refused(sink)
    sink.close()
    assert everything(folder) == kept
    again = sink_of(folder)
    again.send(*block(2)).result(DEADLINE)
    again.close()
    assert everything(folder)[: len(kept)] == kept


def test_when_the_disk_did_not_keep_what_it_took_nothing_more_is_acknowledged(tmp_path: Path) -> None:
    device = os.open(os.devnull, os.O_WRONLY)  # takes every write, and refuses to be synced
    dropped_by_the_disk(tmp_path, device)
    os.close(device)


def test_when_half_a_block_cannot_be_cut_off_nothing_more_is_written(tmp_path: Path) -> None:
    out, into = os.pipe()  # takes no write at a position, and cannot be cut
    dropped_by_the_disk(tmp_path, into)
    os.close(out)
    os.close(into)
