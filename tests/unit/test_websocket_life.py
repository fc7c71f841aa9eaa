from __future__ import annotations

import pytest

from cardinal.transports.websocket.life import Life


def test_who_says_nothing_for_two_intervals_is_gone() -> None:
    life = Life(10.0, 100.0)
    assert not life.gone(119.9)
    assert life.gone(120.0)
    life.hear(115.0)
    assert not life.gone(134.9)
    assert life.gone(135.0)


def test_one_that_is_heard_is_asked_all_the_same() -> None:
    life = Life(10.0, 100.0)
    asked = []
    for now in range(100, 140):
        life.hear(now)
        if life.ask(now):
            asked.append(now)
    assert asked == [110, 120, 130]


def test_every_ping_has_a_content_of_its_own() -> None:
    life = Life(10.0, 100.0)
    contents = [life.payload for now in (110.0, 120.0, 130.0) if life.ask(now)]
    assert contents == [b"\0\0\0\1", b"\0\0\0\2", b"\0\0\0\3"]


@pytest.mark.parametrize("heard", [100.0, 104.0, 109.0])
def test_there_is_rest_until_something_may_be_due_and_no_longer(heard: float) -> None:
    life = Life(10.0, 100.0)
    life.hear(heard)
    assert life.rest(109.0) == 1.0
    assert life.rest(111.0) == 0.0
    assert life.ask(111.0)
    assert life.rest(111.0) == min(10.0, heard + 20.0 - 111.0)
    now = heard + 20.0
    assert life.gone(now)
    assert life.rest(now) == 0.0
