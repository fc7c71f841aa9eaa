"""What a reader sees of a segment that grows, and is ended, between two of its looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.transports.file.log import Log, Place
from file_logs import DEADLINE, block, sink_of

if TYPE_CHECKING:
    from pathlib import Path


def test_blocks_that_came_after_the_last_look_are_read_before_the_next_segment(tmp_path: Path) -> None:
    """A reader finds nothing more; the writer appends, begins the next segment; only then the reader looks for that."""
    sink = sink_of(tmp_path, "segment.bytes=3000&fsync=never")
    log = Log(tmp_path)
    sink.send(*block(0)).result(DEADLINE)
    place = _to_the_end(log, Place(1, 0))
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
    assert (following.place.number, following.adjoins) == (2, True)
    log.close()
    sink.close()


def _to_the_end(log: Log, place: Place) -> Place:
    while (found := log.read(place)) is not None:
        place = Place(place.number, found.end)
    return place
