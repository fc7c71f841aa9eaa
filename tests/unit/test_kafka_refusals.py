"""Refusals and other errors that a Kafka client reports once: for how long each counts, and how often it is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError

from cardinal.errors import CardinalError, CursorExpiredError, RefusedError, TopicError, TransportError
from cardinal.transports.kafka.errors import PendingError, Reasons
from clocks import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

LOGIN = KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "wrong password")
GRACE = 10.0


def test_a_refusal_stands_when_the_broker_has_accepted_nothing_for_the_whole_grace() -> None:
    clock = Clock(100.0)
    reasons = Reasons("host:9092", clock=clock)
    assert reasons.standing(GRACE) is None
    reasons(LOGIN)
    assert isinstance(reasons.refusal(), RefusedError)
    assert reasons.standing(GRACE) is None
    clock.now += GRACE - 1
    reasons(LOGIN)  # the grace begins with the first report
    assert reasons.standing(GRACE) is None
    clock.now += 1
    assert "wrong password" in str(reasons.standing(GRACE))


@pytest.mark.parametrize("reset", [Reasons.forget, Reasons.withdraw])
def test_the_grace_begins_anew_after_an_answer(reset: Callable[[Reasons], None]) -> None:
    clock = Clock(100.0)
    reasons = Reasons("host:9092", clock=clock)
    reasons(LOGIN)
    clock.now += GRACE
    reset(reasons)
    assert reasons.standing(GRACE) is None
    reasons(LOGIN)
    assert reasons.standing(GRACE) is None
    clock.now += GRACE
    assert reasons.standing(GRACE) is not None


def _raised(pending: PendingError, now: float) -> CardinalError | None:
    try:
        pending.throw(now)
    except CardinalError as error:
        return error
    return None


@pytest.mark.parametrize(
    "error", [CursorExpiredError("expired", missing={}), TopicError("deleted", topic="t"), RefusedError("no ACL")]
)
def test_an_error_that_the_client_reports_once_is_raised_by_every_poll(error: CardinalError) -> None:
    pending = PendingError()
    pending.keep(lambda: error)
    pending.keep(lambda: TransportError("a later one"))
    assert [_raised(pending, now) for now in (1.0, 2.0, 3.0)] == [error] * 3
    assert pending
    pending.forget()
    assert not pending
    assert _raised(pending, 4.0) is None


def test_any_other_error_is_raised_once() -> None:
    pending, error = PendingError(), TransportError("a bad message")
    pending.keep(lambda: error)
    assert [_raised(pending, now) for now in (1.0, 2.0)] == [error, None]


def test_only_a_refusal_becomes_stale_one_second_after_it_was_first_raised() -> None:
    refused, deleted = PendingError(), PendingError()
    refused.keep(lambda: RefusedError("no ACL"))
    deleted.keep(lambda: TopicError("deleted", topic="t"))
    assert not refused.is_stale(100.0)
    for now in (5.0, 5.9):
        for pending in (refused, deleted):
            assert _raised(pending, now) is not None
            assert not pending.is_stale(now)
    assert refused.is_stale(6.0)
    assert not deleted.is_stale(6.0)
    refused.forget()
    assert not refused.is_stale(100.0)
