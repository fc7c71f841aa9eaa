"""Kafka sources without a broker: offsets, newest records, errors, partitions that stand still."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec
from hypothesis import given, settings
from hypothesis import strategies as st

from blocks import DEADLINE
from cardinal.errors import (
    CardinalError,
    CursorExpiredError,
    RefusedError,
    TopicError,
    TransportError,
    UnreachableError,
)
from cardinal.transports import parse_url
from cardinal.transports.kafka import kafka_settings
from cardinal.transports.kafka.admin import Cluster, TopicAdmin
from cardinal.transports.kafka.errors import PendingError, Reasons
from cardinal.transports.kafka.watchdog import PATIENCE_SECONDS, Watchdog
from clocks import Clock
from examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.protocols.streams.types import Partition


NOBODY = "kafka://127.0.0.1:1?cardinal.connect.timeout.ms="
FOREVER = 1_000_000
NO_ANSWER = -1001
"""What the client gives as an offset where the broker became unreachable before it answered: no error, only this."""

Asked = Mapping[TopicPartition, OffsetSpec]


class Dying:
    """A client whose broker does not answer for its second partition, so many times: without an error, or with one."""

    def __init__(self, silent: int, error: int | None = None) -> None:
        self.silent = silent
        self.error = error
        self.requested = 0

    def list_offsets(self, requested: Asked, **_: object) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        self.requested += 1
        offsets = (7, 9 if self.requested > self.silent else NO_ANSWER)
        answers = {}
        for where, offset in zip(requested, offsets, strict=True):
            answers[where] = Future[ListOffsetsResultInfo]()
            if offset < 0 and self.error is not None:
                answers[where].set_exception(KafkaException(KafkaError(self.error)))
            else:
                answers[where].set_result(ListOffsetsResultInfo(offset, -1, 0))
        return answers

    def poll(self, _seconds: float) -> int:
        return 0

    def list_topics(self, **_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def cluster(silent: int, error: int | None = None, milliseconds: int | None = None) -> tuple[Cluster, Dying]:
    """A cluster that is waited for briefly only where no time would do."""
    patience = milliseconds or (200 if silent >= FOREVER else 60_000)
    made = Cluster(kafka_settings(parse_url(f"{NOBODY}{patience}")))
    client = Dying(silent, error)
    made.client = client  # type: ignore[assignment] # the part that is used
    return made, client


UNSETTLED = [
    None,
    KafkaError._IN_PROGRESS,
    KafkaError._TRANSPORT,
    KafkaError._DESTROY_BROKER,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
]


@pytest.mark.parametrize("error", UNSETTLED)
def test_a_query_not_answered_for_every_partition_is_retried(error: int | None) -> None:
    asking, client = cluster(silent=2, error=error)
    assert asking.ends([("block", 0), ("block", 1)]) == {("block", 0): 7, ("block", 1): 9}
    assert client.requested == 3


def test_offsets_that_are_none_are_never_taken_for_the_end() -> None:
    asking, _ = cluster(silent=FOREVER)
    with pytest.raises(UnreachableError):
        asking.starts([("block", 0), ("block", 1)])


class Times(Dying):
    """The same for a query by time; in its second partition no record is so new."""

    def list_offsets(self, requested: Asked, **options: object) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        if any(spec._value < 0 for spec in requested.values()):  # where its partitions end
            return Dying(0).list_offsets(requested)
        found = super().list_offsets(requested, **options)
        if self.requested > self.silent:
            *_, last = found
            found[last] = Future()
            found[last].set_result(ListOffsetsResultInfo(-1, -1, 0))
        return found

    def list_topics(self, *_: object, **__: object) -> SimpleNamespace:  # type: ignore[override] # it has them
        return SimpleNamespace(cluster_id=None, topics={"block": SimpleNamespace(partitions=range(2), error=None)})


def test_a_query_of_offsets_by_time_is_retried_until_the_broker_has_them() -> None:
    asking, client = cluster(0)
    asking.client = client = Times(2)  # type: ignore[assignment] # the part that is used
    partitions = [("block", 0), ("block", 1)]
    assert asking.offsets_for_time(partitions, 1_000) == {("block", 0): 7, ("block", 1): 9}
    assert client.requested == 3
    asking, _ = cluster(FOREVER)
    asking.client = Times(FOREVER)  # type: ignore[assignment] # the same
    with pytest.raises(UnreachableError):
        asking.offsets_for_time(partitions, 1_000)


class Listing(Dying):
    """A client whose broker does not know a partition, so many times, and lists these topics: one list a question."""

    def __init__(self, silent: int, listed: Callable[[int], list[str] | None]) -> None:
        super().__init__(silent, KafkaError.UNKNOWN_TOPIC_OR_PART)
        self.listed = listed

    def list_topics(self, **_: object) -> SimpleNamespace:
        if (names := self.listed(self.requested)) is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(cluster_id=None, topics=dict.fromkeys(names))


def listing(
    monkeypatch: pytest.MonkeyPatch,
    silent: int,
    listed: Callable[[int], list[str] | None],
    milliseconds: int | None = None,
) -> Cluster:
    monkeypatch.setattr("cardinal.transports.kafka.admin._GONE_SECONDS", 0.1)
    asking, _ = cluster(silent, milliseconds=milliseconds)
    asking.client = Listing(silent, listed)  # type: ignore[assignment] # the part that is used
    return asking


def test_topic_that_brokers_answer_without_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = listing(monkeypatch, FOREVER, lambda _: ["other"], 60_000)
    with pytest.raises(TopicError, match="the topic block is gone from Kafka") as caught:
        asking.ends([("block", 0), ("block", 1)])
    assert caught.value.topic == "block"


@pytest.mark.parametrize(
    "listed",
    [
        pytest.param(lambda requested: [] if requested == 1 else ["block"], id="a moment without it"),
        pytest.param(lambda requested: [] if requested % 2 else ["block"], id="brokers that disagree"),
        pytest.param(lambda _: None, id="nobody says which topics there are"),
    ],
)
def test_topic_that_may_be_there_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, listed: Callable[[int], list[str] | None]
) -> None:
    asking = listing(monkeypatch, 8, listed)
    assert asking.ends([("block", 0), ("block", 1)]) == {("block", 0): 7, ("block", 1): 9}
    asking = listing(monkeypatch, FOREVER, listed)
    with pytest.raises(UnreachableError):
        asking.ends([("block", 0), ("block", 1)])


def test_a_refusal_of_before_is_no_reason_for_an_outage_after_the_broker_has_answered() -> None:
    made, _ = cluster(silent=0)
    made.reasons(KafkaError(KafkaError._AUTHENTICATION, "the password was wrong for a moment"))
    assert made.reasons.refusal() is not None
    assert made.ends([("a", 0), ("a", 1)]) == {("a", 0): 7, ("a", 1): 9}
    assert isinstance(made.reasons.unreachable(1), UnreachableError)


def test_a_query_of_replicas_is_retried_while_one_broker_lacks_the_topic() -> None:
    """Of a topic that was just made, in a cluster: whoever answers may not have heard of it."""
    partitions = {number: SimpleNamespace(replicas=[1, 2, 3]) for number in range(4)}
    answers = [{}, {"a": SimpleNamespace(partitions={})}, {"a": SimpleNamespace(partitions=partitions)}]
    made, _ = cluster(silent=0)
    made.metadata = lambda: SimpleNamespace(topics=answers.pop(0))  # type: ignore[method-assign]
    settings = kafka_settings(parse_url("kafka://127.0.0.1:1?cardinal.connect.timeout.ms=60000"))
    assert TopicAdmin(settings, made)._replicas("a") == 3
    assert not answers


def test_a_topic_that_no_broker_knows_any_more_is_named() -> None:
    made, _ = cluster(silent=0)
    made.metadata = lambda: SimpleNamespace(topics={})  # type: ignore[method-assign]
    with pytest.raises(TopicError, match="the topic a is gone"):
        TopicAdmin(kafka_settings(parse_url(f"{NOBODY}200")), made)._replicas("a")


# --- refusals and other errors that a Kafka client reports once: for how long each counts, and how often it is raised


LOGIN = KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "wrong password")
GRACE = 10.0


def test_a_refusal_stands_when_the_broker_has_accepted_nothing_for_the_whole_grace() -> None:
    clock = Clock(100.0)
    reasons = Reasons("host:9092", clock=clock)
    assert reasons.lasting(GRACE) is None
    reasons(LOGIN)
    assert isinstance(reasons.refusal(), RefusedError)
    assert reasons.lasting(GRACE) is None
    clock.now += GRACE - 1
    reasons(LOGIN)  # the grace begins with the first report
    assert reasons.lasting(GRACE) is None
    clock.now += 1
    assert "wrong password" in str(reasons.lasting(GRACE))


@pytest.mark.parametrize("reset", [Reasons.forget, Reasons.withdraw])
def test_the_grace_begins_again_after_an_answer(reset: Callable[[Reasons], None]) -> None:
    clock = Clock(100.0)
    reasons = Reasons("host:9092", clock=clock)
    reasons(LOGIN)
    clock.now += GRACE
    reset(reasons)
    assert reasons.lasting(GRACE) is None
    reasons(LOGIN)
    assert reasons.lasting(GRACE) is None
    clock.now += GRACE
    assert reasons.lasting(GRACE) is not None


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
    assert not refused.retry_due(100.0)
    for now in (5.0, 5.9):
        for pending in (refused, deleted):
            assert _raised(pending, now) is not None
            assert not pending.retry_due(now)
    assert refused.retry_due(6.0)
    assert not deleted.retry_due(6.0)
    refused.forget()
    assert not refused.retry_due(100.0)


# --- when a partition counts as one that the Kafka client no longer fetches ------------------------------------------


A, B = ("block", 0), ("block", 1)
LOOK = 10.0
POLL = 0.5


class Reading:
    """A reader that polls twice a second, of a broker with these ends; None: it is unreachable."""

    def __init__(self, ends: Mapping[Partition, int]) -> None:
        self.now = 100.0
        self.positions = {A: 0, B: 0}
        self.paused: frozenset[Partition] = frozenset()
        self.ends: Mapping[Partition, int] | None = ends
        self.queries = 0
        self.watchdog = Watchdog(self._query)

    def _query(self) -> Mapping[Partition, int]:
        self.queries += 1
        if self.ends is None:
            raise UnreachableError("away", address="broker")
        return self.ends

    def poll(self, seconds: float, *, step: float = POLL, drained: bool = True) -> list[Partition]:
        """The partitions that are named within so many seconds of polls."""
        named: list[Partition] = []
        for _ in range(round(seconds / step)):
            self.now += step
            found = self.watchdog.check(self.now, self.positions, self.paused, drained=drained)
            self._wait_for_the_answer()
            self.watchdog.forget(found)
            named += found
        return named

    def _wait_for_the_answer(self) -> None:
        deadline = time.monotonic() + DEADLINE
        while (request := self.watchdog._request) is not None and not request.done():
            assert time.monotonic() < deadline


def test_a_partition_that_the_broker_has_more_of_and_nothing_comes_of_is_named() -> None:
    reading = Reading({A: 5, B: 0})
    assert reading.poll(PATIENCE_SECONDS + LOOK - 2 * POLL) == []
    assert reading.poll(LOOK) == [A]


def test_a_reader_that_has_read_everything_queries_now_and_then() -> None:
    reading = Reading({A: 0, B: 0})
    assert reading.poll(500) == []
    assert reading.queries <= 500 / LOOK


def test_time_without_polls_does_not_count() -> None:
    reading = Reading({A: 5, B: 0})
    assert reading.poll(3_600, step=100) == []
    assert reading.poll(PATIENCE_SECONDS) == [A]


def test_while_polls_leave_fetched_records_their_partitions_may_wait_for_their_turn() -> None:
    reading = Reading({A: 5, B: 0})
    assert reading.poll(10 * PATIENCE_SECONDS, step=1.0, drained=False) == []
    assert reading.poll(PATIENCE_SECONDS + 2 * LOOK - 1, step=1.0) == [A]


def test_a_partition_that_is_paused_or_read_from_elsewhere_is_not_named() -> None:
    reading = Reading({A: 5, B: 5})
    reading.paused = frozenset({A})
    assert reading.poll(PATIENCE_SECONDS) == []
    reading.watchdog.forget([B])
    reading.paused = frozenset()
    assert reading.poll(PATIENCE_SECONDS) == []
    assert sorted(reading.poll(2 * LOOK)) == [A, B]


def test_while_no_broker_answers_nothing_is_named() -> None:
    reading = Reading({A: 5})
    assert reading.poll(PATIENCE_SECONDS) == []
    reading.ends = None
    assert reading.poll(LOOK + 1) == []
    reading.ends = {A: 5}
    assert reading.poll(PATIENCE_SECONDS) == []
    assert reading.poll(2 * LOOK) == [A]


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(1, round(PATIENCE_SECONDS) - 1), min_size=2, max_size=8))
def test_a_partition_that_moves_within_the_time_is_never_named(steps: list[int]) -> None:
    reading = Reading({A: FOREVER, B: FOREVER})
    for seconds in steps:
        reading.positions = {tp: at + 1 for tp, at in reading.positions.items()}
        assert reading.poll(float(seconds)) == []
