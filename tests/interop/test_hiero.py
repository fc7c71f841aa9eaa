"""Publishers of Hiero against an ingest node: their messages, their gRPC, every answer that a publisher can get."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hiero import PROTO_VARIABLE, Messages, Publisher, block, folders, of_facts, of_files, publisher, written_blocks

from cardinal.apps import get
from cardinal.consumer import Consumer
from cardinal.protocols.streams import Payload
from cardinal_ingest import items
from ingesting import node

if TYPE_CHECKING:
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.broker
DEADLINE = 60.0
DUPLICATE_BLOCK, INVALID_REQUEST, RESET = 5, 2, 1


@pytest.fixture(scope="module", params=["facts", "files"])
def messages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Messages:
    if request.param == "facts":
        return of_facts()
    if not folders():
        pytest.skip(f"{PROTO_VARIABLE} names no folders: name those of the reference's protobuf files")
    return of_files(folders(), tmp_path_factory.mktemp("proto"))


class Node:
    """A node's port, and its stream."""

    def __init__(self, port: int, url: str, topic: str) -> None:
        self.port = port
        self._url = url
        self._app = get("items", topic=topic)

    def delivered(self, count: int) -> list[items.Block]:
        """What a consumer of the stream reads."""
        found: list[items.Block] = []
        with Consumer(self._url, self._app, idle_timeout=DEADLINE) as consumer:
            for update in consumer:
                assert not update.removed
                found += [items.read(one) for one in update.added if isinstance(one, Payload)]
                if len(found) >= count:
                    break
        return found


@pytest.fixture
def served(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Node]:
    url, topic = f"kafka://{cardinal_broker.bootstrap}", f"hiero-{uuid.uuid4().hex}"
    with node(url, topic, tmp_path) as (_, port):
        yield Node(port, url, topic)


def publish(one: Publisher, messages: Messages, *numbers: int) -> None:
    for number in numbers:
        one.block(number, block(messages, number))


def expected(blocks: dict[int, list[object]]) -> list[items.Block]:
    return [items.Block(number, tuple(item.SerializeToString() for item in made)) for number, made in blocks.items()]  # type: ignore[attr-defined]


def test_blocks_are_acknowledged_and_every_item_reaches_a_consumer_byte_for_byte(
    served: Node, messages: Messages
) -> None:
    with publisher(served.port, messages) as one:
        publish(one, messages, *range(40, 60))
        one.acknowledged(59)
        one.leave(RESET, 40, 59)
        assert one.next() == ()
    assert served.delivered(20) == expected({number: block(messages, number) for number in range(40, 60)})


def test_blocks_that_the_reference_wrote_arrive_as_they_are(served: Node, messages: Messages) -> None:
    written = written_blocks(messages)
    if not written:
        pytest.skip(f"{PROTO_VARIABLE} names no folder with blocks: 0.blk.gz and the following")
    with publisher(served.port, messages) as one:
        for number, made in enumerate(written):
            one.block(number, made, each=100)
        one.acknowledged(len(written) - 1)
    assert served.delivered(len(written)) == expected(dict(enumerate(written)))


def test_a_publisher_is_skipped_and_has_to_resend_when_the_winner_dies(served: Node, messages: Messages) -> None:
    made = block(messages, 7)
    with (
        publisher(served.port, messages) as one,
        publisher(served.port, messages) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        for each in (one, two):
            each.items(*made[:4])
        answers = {pool.submit(one.next): (one, two), pool.submit(two.next): (two, one)}
        answer = wait(answers, DEADLINE, FIRST_COMPLETED).done.pop()
        assert answer.result() == ("skip_block", 7)
        loser, winner = answers[answer]
        winner.cancel()
        assert loser.next() == ("resend_block", 7)
        loser.block(7, made)
        loser.acknowledged(7)
    assert served.delivered(1) == expected({7: made})


def test_a_publisher_ahead_of_the_node_is_notified_where_to_resume(served: Node, messages: Messages) -> None:
    with publisher(served.port, messages) as one:
        publish(one, messages, 0, 1)
        one.acknowledged(1)
        one.items(*block(messages, 9)[:5])
        assert one.next() == ("node_behind_publisher", 1)
        publish(one, messages, 2, 3)
        one.acknowledged(3)


def test_a_block_that_the_node_has_is_skipped_or_ends_the_stream_by_its_distance(
    served: Node, messages: Messages
) -> None:
    with publisher(served.port, messages) as one:
        publish(one, messages, *range(8))
        one.acknowledged(7)
    with publisher(served.port, messages) as one:
        one.items(block(messages, 2)[0])
        assert [one.next(), one.next()] == [("skip_block", 2), ("acknowledgement", 7)]
        one.items(block(messages, 1)[0])
        assert one.next() == ("end_stream", DUPLICATE_BLOCK, 7, 1)
        assert one.next() == ()


def test_a_block_without_an_end_is_acknowledged_by_its_proof(served: Node, messages: Messages) -> None:
    """As publishers of the first version of the protocol send it."""
    with publisher(served.port, messages) as one:
        one.items(*block(messages, 0))
        one.acknowledged(0)


def test_a_header_amid_a_set_ends_the_stream_and_another_publisher_continues(served: Node, messages: Messages) -> None:
    with publisher(served.port, messages) as two:
        publish(two, messages, 0)
        two.acknowledged(0)
        with publisher(served.port, messages) as one:
            one.items(*block(messages, 1)[:3], block(messages, 1)[0])
            assert one.next() == ("end_stream", INVALID_REQUEST, 0, 0)
            assert one.next() == ()
        publish(two, messages, 1)
        two.acknowledged(1)
