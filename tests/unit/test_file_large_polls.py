"""How much a poll of a folder gives where records are large: who polls knows how many it wants, not their size."""

from __future__ import annotations

from pathlib import Path

import pytest

from cardinal.protocols.streams import Record
from cardinal.transports.file.source import _POLL_BYTES
from file_logs import source_of, write

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
