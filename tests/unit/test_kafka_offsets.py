"""Where partitions begin and end, asked of a broker that dies while it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from cardinal.errors import UnreachableError
from cardinal.transports import parse_url
from cardinal.transports.kafka import kafka_settings
from cardinal.transports.kafka.topics import TopicAdmin

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


def admin(silent: int, error: int | None = None) -> tuple[TopicAdmin, Dying]:
    made, client = TopicAdmin(kafka_settings(parse_url(NOBODY))), Dying(silent, error)
    made._client = client
    return made, client


@pytest.mark.parametrize("error", [None, KafkaError._IN_PROGRESS, KafkaError.NOT_LEADER_FOR_PARTITION])
def test_broker_that_has_not_answered_for_every_partition_is_asked_again(error: int | None) -> None:
    asking, client = admin(silent=2, error=error)
    assert asking.ends([("block", 0), ("block", 1)]) == {("block", 0): 7, ("block", 1): 9}
    assert client.asked == 3


def test_offsets_that_are_none_are_never_taken_for_the_end() -> None:
    asking, _ = admin(silent=1_000_000)
    with pytest.raises(UnreachableError):
        asking.starts([("block", 0), ("block", 1)])
