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
