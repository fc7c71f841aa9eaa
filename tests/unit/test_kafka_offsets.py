"""Where partitions begin and end, asked of a broker that dies while it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from cardinal.errors import TopicError, UnreachableError
from cardinal.transports import parse_url
from cardinal.transports.kafka import kafka_settings
from cardinal.transports.kafka.admin import Cluster, TopicAdmin

NOBODY = "kafka://127.0.0.1:1?cardinal.connect.timeout.ms=200"
NO_ANSWER = -1001
"""What the client gives as an offset where the broker went away before it had answered: no error, only this."""

Asked = Mapping[TopicPartition, OffsetSpec]


class Dying:
    """A client whose broker does not answer for its second partition, so many times: without an error, or with one."""

    def __init__(self, silent: int, error: int | None = None) -> None:
        self.silent = silent
        self.error = error
        self.asked = 0

    def list_offsets(self, asked: Asked, **_: object) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        self.asked += 1
        offsets = (7, 9 if self.asked > self.silent else NO_ANSWER)
        answers = {}
        for where, offset in zip(asked, offsets, strict=True):
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


def cluster(silent: int, error: int | None = None) -> tuple[Cluster, Dying]:
    made, client = Cluster(kafka_settings(parse_url(NOBODY))), Dying(silent, error)
    made.client = client  # type: ignore[assignment] # what is asked of it
    return made, client


@pytest.mark.parametrize("error", [None, KafkaError._IN_PROGRESS, KafkaError.NOT_LEADER_FOR_PARTITION])
def test_broker_that_has_not_answered_for_every_partition_is_asked_again(error: int | None) -> None:
    asking, client = cluster(silent=2, error=error)
    assert asking.ends([("block", 0), ("block", 1)]) == {("block", 0): 7, ("block", 1): 9}
    assert client.asked == 3


def test_offsets_that_are_none_are_never_taken_for_the_end() -> None:
    asking, _ = cluster(silent=1_000_000)
    with pytest.raises(UnreachableError):
        asking.starts([("block", 0), ("block", 1)])


class Times(Dying):
    """The same when it is asked for a time; in its second partition no record is so new."""

    def list_offsets(self, asked: Asked, **options: object) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        if any(spec._value < 0 for spec in asked.values()):  # where its partitions end
            return Dying(0).list_offsets(asked)
        found = super().list_offsets(asked, **options)
        if self.asked > self.silent:
            *_, last = found
            found[last] = Future()
            found[last].set_result(ListOffsetsResultInfo(-1, -1, 0))
        return found

    def list_topics(self, *_: object, **__: object) -> SimpleNamespace:  # type: ignore[override] # it has them
        return SimpleNamespace(cluster_id=None, topics={"block": SimpleNamespace(partitions=range(2), error=None)})


UNSETTLED = [
    None,
    KafkaError._TRANSPORT,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
]


@pytest.mark.parametrize("error", UNSETTLED)
def test_broker_that_does_not_know_a_time_s_offsets_yet_is_asked_again(error: int | None) -> None:
    asking, client = cluster(0)
    asking.client = client = Times(2, error)  # type: ignore[assignment] # what is asked of it
    partitions = [("block", 0), ("block", 1)]
    assert asking.offsets_for_time(partitions, 1_000) == {("block", 0): 7, ("block", 1): 9}
    assert client.asked == 3
    client.asked, client.silent = 0, 1_000_000
    with pytest.raises(UnreachableError):
        asking.offsets_for_time(partitions, 1_000)


class Listing(Dying):
    """A client whose broker does not know a partition, so many times, and lists these topics: one list a question."""

    def __init__(self, silent: int, listed: Callable[[int], list[str] | None]) -> None:
        super().__init__(silent, KafkaError.UNKNOWN_TOPIC_OR_PART)
        self.listed = listed

    def list_topics(self, **_: object) -> SimpleNamespace:
        if (names := self.listed(self.asked)) is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(cluster_id=None, topics=dict.fromkeys(names))


def listing(monkeypatch: pytest.MonkeyPatch, silent: int, listed: Callable[[int], list[str] | None]) -> Cluster:
    monkeypatch.setattr("cardinal.transports.kafka.admin._GONE_SECONDS", 0.1)
    asking, _ = cluster(0)
    asking.client = Listing(silent, listed)  # type: ignore[assignment] # what is asked of it
    return asking


def test_topic_that_brokers_answer_without_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = listing(monkeypatch, 1_000_000, lambda _: ["other"])
    with pytest.raises(TopicError, match="the topic block is gone from Kafka") as caught:
        asking.ends([("block", 0), ("block", 1)])
    assert caught.value.topic == "block"


@pytest.mark.parametrize(
    "listed",
    [
        pytest.param(lambda asked: [] if asked == 1 else ["block"], id="a moment without it"),
        pytest.param(lambda asked: [] if asked % 2 else ["block"], id="brokers that disagree"),
        pytest.param(lambda _: None, id="nobody says which topics there are"),
    ],
)
def test_topic_that_may_be_there_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, listed: Callable[[int], list[str] | None]
) -> None:
    asking = listing(monkeypatch, 8, listed)
    assert asking.ends([("block", 0), ("block", 1)]) == {("block", 0): 7, ("block", 1): 9}
    asking = listing(monkeypatch, 1_000_000, listed)
    with pytest.raises(UnreachableError):
        asking.ends([("block", 0), ("block", 1)])


def test_a_refusal_of_before_is_no_reason_for_an_outage_after_the_broker_has_answered() -> None:
    made, _ = cluster(silent=0)
    made.reasons(KafkaError(KafkaError._AUTHENTICATION, "the password was wrong for a moment"))
    assert made.reasons.refusal() is not None
    assert made.ends([("a", 0), ("a", 1)]) == {("a", 0): 7, ("a", 1): 9}
    assert isinstance(made.reasons.unreachable(1), UnreachableError)


def test_replicas_of_a_topic_that_one_broker_does_not_know_yet_are_asked_for_again() -> None:
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
        TopicAdmin(kafka_settings(parse_url(NOBODY)), made)._replicas("a")
