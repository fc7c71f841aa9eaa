"""How often an error is told that the Kafka client reports beside records."""

from __future__ import annotations

import pytest

from cardinal.errors import (
    CardinalError,
    CursorExpiredError,
    RefusedError,
    TopicError,
    TransportError,
    UnreachableError,
)
from cardinal.transports.kafka.noted import ASK_SECONDS, Noted


def _told(noted: Noted, now: float = 0.0) -> CardinalError | None:
    try:
        noted.tell(now)
    except CardinalError as error:
        return error
    return None


def test_the_first_report_is_told_once() -> None:
    noted, first = Noted(), TransportError("first")
    noted.keep(lambda: first)
    noted.keep(lambda: TransportError("second"))
    assert noted
    assert _told(noted) is first
    assert not noted
    assert _told(noted) is None


@pytest.mark.parametrize("gone", [CursorExpiredError("gone", missing={}), TopicError("gone", topic="a")])
def test_what_is_gone_is_told_every_time_until_another_assignment(gone: CardinalError) -> None:
    noted = Noted()
    noted.keep(lambda: gone)
    assert [_told(noted, at) for at in (0.0, 1.0, 1e6)] == [gone] * 3
    assert not noted.is_stale(1e9)
    noted.forget()
    assert _told(noted) is None


def test_a_refusal_is_told_every_time_and_is_stale_a_second_after_it_was_told_first() -> None:
    noted, refused = Noted(), RefusedError("no")
    noted.keep(lambda: refused)
    assert not noted.is_stale(100.0), "nobody was told yet"
    for at in (100.0, 100.0 + ASK_SECONDS / 2):
        assert _told(noted, at) is refused
        assert not noted.is_stale(at)
    assert noted.is_stale(100.0 + ASK_SECONDS)
    noted.forget()
    assert not noted.is_stale(1e9)
    noted.keep(lambda: refused)
    assert _told(noted, 200.0) is refused
    assert not noted.is_stale(200.0), "each refusal counts by itself"


def test_what_cannot_be_found_out_is_tried_again_by_the_next_call() -> None:
    answers: list[CardinalError | None] = [None, None, CursorExpiredError("gone", missing={})]

    def why() -> CardinalError:
        answer = answers.pop(0)
        if answer is None:
            raise UnreachableError("nobody answers", address="a:1")
        return answer

    noted = Noted()
    noted.keep(why)
    assert isinstance(_told(noted), UnreachableError)
    assert isinstance(_told(noted), UnreachableError)
    assert isinstance(_told(noted), CursorExpiredError)
    assert isinstance(_told(noted), CursorExpiredError)
