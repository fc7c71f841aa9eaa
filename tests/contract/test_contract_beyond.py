"""Positions beyond the end, on every transport: a recreated topic is an error, not an endless wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from reading import block, read, read_to_the_end
from rooms import DEADLINE, Room, from_start

from cardinal.errors import CursorExpiredError, TopicError

if TYPE_CHECKING:
    from cardinal.transports import Source


def test_a_position_behind_the_end_is_refused_and_the_end_itself_is_not(room: Room) -> None:
    sink = room.sink()
    sink.send(*block(room.app, 1)).result(DEADLINE)
    source = room.source()
    ends = {where: high for where, (_, high) in source.watermarks().items()}
    where = max(ends)
    for beyond in (1, 1_000):
        with pytest.raises(CursorExpiredError) as caught:
            source.assign({**ends, where: ends[where] + beyond})
        assert set(caught.value.missing) == {where}
    with pytest.raises(TopicError):
        source.assign({(where[0], where[1] + 1_000_000): 0})
    source.assign(ends)
    assert source.poll(100, 0.0) == []
    sink.send(*block(room.app, 2)).result(DEADLINE)
    assert {record.key[1:33] for record in read_to_the_end(source)} == {(2).to_bytes(32, "big")}
    sink.close()
    source.close()


def test_topics_that_are_made_anew_under_a_source_are_told_at_every_poll_until_it_is_told_where_to_read(
    room: Room,
) -> None:
    sink = room.sink()
    sink.send(*block(room.app, 1)).result(DEADLINE)
    sink.close()
    source = from_start(room.source())
    read_to_the_end(source)
    room.forget()
    anew = room.sink()
    for _ in range(3):
        with pytest.raises((CursorExpiredError, TopicError)):
            _poll_in_vain(source)
    source.close()
    anew.send(*block(room.app, 2)).result(DEADLINE)
    source = from_start(room.source())
    assert {record.key[1:33] for record in read(source, 11 * room.members)} == {(2).to_bytes(32, "big")}
    source.close()
    anew.close()


def _poll_in_vain(source: Source) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        assert source.poll(100, 0.2) == []
