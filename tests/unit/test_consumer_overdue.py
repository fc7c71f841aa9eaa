from __future__ import annotations

from cardinal.consuming.healing import Overdue

A = ("t", 0)


def test_an_answer_says_nothing_about_what_was_overdue_after_the_question() -> None:
    overdue = Overdue()
    overdue.add(b"first")
    assert overdue.wants_ends
    overdue.asked()
    overdue.add(b"second")  # its messages may lie behind the ends that are on their way
    overdue.answered({A: 10})
    assert overdue.passed({A: 9}) == []
    assert overdue.passed({A: 10}) == [b"first"]
    assert overdue.wants_ends
    overdue.asked()
    overdue.answered({A: 20})
    assert overdue.passed({A: 19}) == []
    assert overdue.passed({A: 20}) == [b"second"]
    assert not overdue.wants_ends


def test_one_question_at_a_time_and_asked_again_it_is_for_all() -> None:
    overdue = Overdue()
    overdue.add(b"first")
    overdue.asked()
    overdue.add(b"second")
    assert overdue.waits_for_ends
    assert not overdue.wants_ends
    overdue.asked()  # the first question was lost
    overdue.answered({A: 5})
    assert overdue.passed({A: 5}) == [b"first", b"second"]


def test_a_partition_that_is_gone_holds_nothing_up() -> None:
    overdue = Overdue()
    overdue.add(b"first")
    overdue.asked()
    overdue.answered({A: 10, ("t", 1): 4})
    assert overdue.passed({A: 10}) == [b"first"]


def test_what_came_after_all_is_reported_no_more_and_nothing_is_kept_of_it() -> None:
    overdue = Overdue()
    for number in range(100):
        overdue.add(b"%d" % number)
        overdue.asked()
        overdue.answered({A: 100 + number})
        if number != 50:
            overdue.settle(b"%d" % number)
    assert overdue.reported == 50, "the first fifty came"
    assert not overdue.wants_ends
    assert overdue.passed({A: 149}) == []
    assert overdue.passed({A: 150}) == [b"50"]
    assert overdue.reported == overdue.added == 100
    assert not overdue._pending
    assert not overdue._answered


def test_watermarks_are_bounded_and_the_newest_speak_for_those_between() -> None:
    overdue = Overdue()
    for number in range(1_000):
        overdue.add(b"%d" % number)
        overdue.asked()
        overdue.answered({A: number})
        overdue.asked()
        overdue.answered({A: number})
    assert len(overdue._answered) <= 100
    assert overdue.passed({A: 50}) == [b"%d" % number for number in range(51)]
    assert overdue.passed({A: 998}) == [b"%d" % number for number in range(51, 99)]
    assert overdue.passed({A: 999}) == [b"%d" % number for number in range(99, 1_000)]


def test_a_block_that_is_overdue_twice_waits_once() -> None:
    overdue = Overdue()
    for block in (b"first", b"second", b"first"):
        overdue.add(block)
    overdue.asked()
    overdue.answered({A: 1})
    assert overdue.passed({A: 1}) == [b"first", b"second"]
    assert overdue.reported == overdue.added == 2
