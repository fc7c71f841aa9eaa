"""A block that the disk had room for half of: the half is cut off at once, and readers see none of it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import DeliveryError, LogInUseError, TransportError
from cardinal.protocols.streams import Routed
from file_logs import DEADLINE, block, everything, sink_of

if TYPE_CHECKING:
    from pathlib import Path


@contextmanager
def _files_no_larger_than(size: int) -> Iterator[None]:
    """What a full disk is to who writes; the limit of the process, so nothing else is to be written meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 700])
def test_the_segment_is_as_long_as_before_and_goes_on(tmp_path: Path, room: int) -> None:
    sink = sink_of(tmp_path)
    sink.send(*block(1)).result(DEADLINE)
    segment = tmp_path / "000000000001.avro"
    size = segment.stat().st_size
    large = [Routed("logs", b"\x03" + (2).to_bytes(32, "big") + b"p/0", os.urandom(4_000))]
    with _files_no_larger_than(size + room), pytest.raises(DeliveryError, match="make room"):
        sink.send(large, None).result(DEADLINE)
    assert segment.stat().st_size == size
    sink.send(*block(3)).result(DEADLINE)
    sink.send(large, None).result(DEADLINE)
    sink.close()
    written = [int.from_bytes(record.key[1:33]) for record in everything(tmp_path)]
    assert written == [1] * 5 + [3] * 5 + [2]


def test_a_writer_that_opens_on_a_full_disk_says_so_and_one_that_is_there_goes_on(tmp_path: Path) -> None:
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
