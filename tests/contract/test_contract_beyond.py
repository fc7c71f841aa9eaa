"""Positions behind the end, on every transport: a topic that was made anew is noticed, never waited on."""

from __future__ import annotations

import pytest
from reading import block, read_to_the_end
from rooms import DEADLINE, Room

from cardinal.errors import CursorExpiredError, TopicError


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
