"""A segment that is cut short, though others follow: nothing of it is passed over in silence."""

from __future__ import annotations

import os
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import LogDamagedError
from cardinal.transports.file.container import SYNC_SIZE, encode_header, read_header
from cardinal.transports.file.folders import numbers_of, path_of
from file_logs import DEADLINE, block, everything, sink_of, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.protocols.streams.types import Record
    from cardinal.transports.file import FileSource

BLOCK = 1_000
"""Stands for a whole block, in what is lost of a segment."""


@pytest.mark.parametrize("lost", [1, 7, 40, BLOCK, 2 * BLOCK])
def test_a_reader_that_comes_to_the_cut_says_which_file_is_damaged(tmp_path: Path, lost: int) -> None:
    """Also where it ends with a whole block, as a copy does that was made before the segment was full."""
    sink = sink_of(tmp_path, "segment.bytes=3000&fsync=never")
    for number in range(40):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    whole = everything(tmp_path)
    damaged = path_of(tmp_path, numbers_of(tmp_path)[1])
    os.truncate(damaged, _blocks_before_end(damaged, lost // BLOCK) - lost % BLOCK)
    source = source_of(tmp_path)
    source.assign({where: low for where, (low, _) in source.watermarks().items()})
    read: list[Record] = []
    with pytest.raises(LogDamagedError) as caught:
        _read_on(source, read)
    assert str(damaged) in str(caught.value)
    with_key = [record for record in read if record.key]
    assert with_key == whole[: len(with_key)]
    assert 0 < len(with_key) < len(whole)
    source.close()


def _blocks_before_end(segment: Path, count: int) -> int:
    """Where so many blocks before the end of a segment begin."""
    data = segment.read_bytes()
    with segment.open("rb") as file:
        marker = read_header(file).sync
    end = len(data)
    for _ in range(count):
        end = data.rfind(marker, 0, end - SYNC_SIZE) + SYNC_SIZE
    return end


def test_a_segment_that_does_not_say_how_long_the_one_before_was_is_read() -> None:
    header = read_header(BytesIO(encode_header(bytes(SYNC_SIZE), {("block", 0): 5}, 7)))
    assert (header.offsets, header.latest, header.before) == ({("block", 0): 5}, 7, None)


def _read_on(source: FileSource, read: list[Record]) -> None:
    while polled := source.poll(50, 0.0):
        read += polled
