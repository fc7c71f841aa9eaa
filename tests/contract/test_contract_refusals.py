"""Refusals of every transport, and their errors."""

from __future__ import annotations

import pytest
from reading import block, read, read_to_the_end
from rooms import DEADLINE, LIMIT, Room, from_start, with_key

from cardinal.errors import CursorExpiredError, OversizeError, TopicError
from cardinal.protocols.streams.types import Routed


def test_an_oversize_message_is_refused_before_anything_is_sent(room: Room) -> None:
    sink = room.sink()
    content, _ = block(room.app, 1)
    content.append(Routed(room.app.other, b"\x03" + bytes(32) + b"big/one", bytes(LIMIT + 1)))
    for attempt in (lambda: sink.send(content, None), lambda: sink.check(content)):
        with pytest.raises(OversizeError) as caught:
            attempt()
        assert caught.value.path == "big/one"
        assert caught.value.limit == LIMIT
        assert caught.value.size > LIMIT
    sink.flush(DEADLINE)
    source = from_start(room.source())
    assert with_key(read_to_the_end(source)) == []
    sink.close()
    source.close()


def test_a_message_of_just_under_the_limit_arrives_whole(room: Room) -> None:
    sink = room.sink()
    big = Routed(room.app.other, b"\x03" + bytes(32) + b"big", bytes(LIMIT - 1000))
    sink.send([big], None).result(DEADLINE)
    source = from_start(room.source())
    assert {record.value for record in read(source, room.members)} == {big.value}
    sink.close()
    source.close()


def test_a_topic_of_another_stream_is_refused(any_room: Room) -> None:
    sink = any_room.sink()
    with pytest.raises(TopicError) as caught:
        sink.send([Routed("elsewhere", b"\x03" + bytes(32), b"")], None)
    assert caught.value.topic == "elsewhere"
    sink.close()


def test_a_stream_that_nobody_writes_yet_is_named(room: Room) -> None:
    with pytest.raises(TopicError, match="start a producer") as caught:
        room.source()
    assert caught.value.topic in room.app.all_topics


def test_what_cannot_be_read_is_refused_with_an_error_of_ours(any_room: Room) -> None:
    sink = any_room.sink()
    source = any_room.source()
    with pytest.raises(TopicError):
        source.assign({(any_room.app.default_topic, 1_000_000): 0})
    for where, (_, high) in source.watermarks().items():
        with pytest.raises(CursorExpiredError) as caught:
            source.assign({where: high + 5})
        assert where in caught.value.missing
    sink.close()
    source.close()
