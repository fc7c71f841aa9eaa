"""Requirements on existing topics, and the bound of bytes in flight while the broker accepts nothing."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka_streams import DEADLINE, a_block, a_chain, everything_on, small_stream

from cardinal.embedded import EmbeddedKafka
from cardinal.errors import OversizeError, TopicError
from cardinal.producer import Producer
from cardinal.protocols.streams import Payload

pytestmark = pytest.mark.broker


def _create(broker: EmbeddedKafka, topic: str, **config: str) -> None:
    admin = AdminClient(broker.client_config())
    wanted = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, 2, 1, config=wanted)])[topic].result(30)


def test_a_topic_that_takes_next_to_nothing_is_refused_by_its_name(cardinal_broker: EmbeddedKafka) -> None:
    app = small_stream()
    _create(cardinal_broker, app.all_topics[1], max_message_bytes="500")
    with pytest.raises(TopicError, match=r"500 bytes only: raise its max\.message\.bytes") as caught:
        Producer(f"kafka://{cardinal_broker.bootstrap}", app, producer_id="one")
    assert caught.value.topic == app.all_topics[1]


def test_standby_is_refused_where_the_producers_clocks_stamp_the_records(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}"
    _create(cardinal_broker, app.default_topic, message_timestamp_type="CreateTime")
    with pytest.raises(TopicError, match=r"message\.timestamp\.type=LogAppendTime") as caught:
        Producer(url, app, producer_id="one", redundancy="standby")
    assert caught.value.topic == app.default_topic
    with Producer(url, app, producer_id="one") as producer:  # as the Go implementation's topics are
        producer.add(a_block("1a", "0g")).result(DEADLINE)


def test_of_a_block_with_one_value_that_is_too_large_nothing_is_sent(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}?max.message.bytes=20000"
    with Producer(url, app, producer_id="one") as producer:
        whole = a_block("1a", "0g")
        with pytest.raises(OversizeError) as caught:
            producer.add(Payload(1, whole.hash, whole.parent, 1, {**whole.updates, "a/large": bytes(30_000)}))
        assert (caught.value.path, caught.value.limit) == ("a/large", 20_000)
        assert caught.value.size > 30_000
        producer.add(a_block("1b", "0g")).result(DEADLINE)
    spoken = {record.key[1:33] for record in everything_on(url, app) if record.key[0] <= 4}
    assert spoken == {a_block("1b", "0g").hash}


@pytest.mark.parametrize("options", ["", "?transactional=update"])
def test_every_topic_carries_what_it_takes_and_small_messages_go_at_once(
    cardinal_broker: EmbeddedKafka, options: str
) -> None:
    """One topic takes less than the other: neither a large message nor a batch of small ones is refused on the way."""
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}{options}"
    _create(cardinal_broker, app.default_topic, max_message_bytes="2000000")
    _create(cardinal_broker, app.all_topics[1], max_message_bytes="20000")
    with Producer(url, app, producer_id=f"{app.default_topic}-one") as producer:
        whole = a_block("1a", "0g", values=2_000)
        values = {**whole.updates, "a/large": os.urandom(19_000), "inside": os.urandom(1_000_000)}
        producer.add(Payload(1, whole.hash, whole.parent, 1, values)).result(DEADLINE)
        for path, size, limit in (("a/larger", 20_000, 20_000), ("within", 2_000_000, 2_000_000)):
            with pytest.raises(OversizeError) as caught:
                producer.add(Payload(2, whole.parent, whole.hash, 2, {path: bytes(size)}))
            assert caught.value.limit == limit
        producer.add(a_block("2a", "1a")).result(DEADLINE)


def test_while_the_broker_stands_still_only_so_much_is_taken_and_then_all_of_it_arrives_in_order(
    cardinal_killable_broker: EmbeddedKafka,
) -> None:
    """Bounds of bytes in the client, of blocks and of bytes in the producer."""
    _is_bounded(cardinal_killable_broker, "&queue.buffering.max.kbytes=32")
    _is_bounded(cardinal_killable_broker, max_blocks=16)
    _is_bounded(cardinal_killable_broker, max_bytes=65_536)


def _is_bounded(broker: EmbeddedKafka, options: str = "", **settings: int) -> None:
    app, url = small_stream(threshold=256), f"kafka://{broker.bootstrap}?linger.ms=1{options}"
    chain = a_chain(" ".join(f"{number}a" for number in range(1, 121)), values=10)  # 120 times 1.5 kB
    taken: list[int] = []
    with Producer(url, app, producer_id="one", **settings) as producer:  # type: ignore[arg-type] # numbers, all of them
        producer.add(chain[0]).result(DEADLINE)
        broker.pause()

        def add_all() -> None:
            for payload in chain[1:]:
                producer.add(payload)
                taken.append(payload.number)

        adding = threading.Thread(target=add_all)
        adding.start()
        _settled(taken)
        assert 0 < len(taken) < 60
        assert adding.is_alive()
        broker.resume()
        adding.join(DEADLINE)
        producer.flush(DEADLINE)
        assert producer.stats.blocks == len(chain)
    batches = [record for record in everything_on(url, app, [app.default_topic]) if record.key[0] == 0]
    assert sorted(record.key[1:] for record in batches) == sorted(payload.hash for payload in chain)
    for partition in {record.partition for record in batches}:
        numbers = [int(r.key[1:].lstrip(b"\0")[:-1]) for r in batches if r.partition == partition]
        assert all(below < above for below, above in pairwise(numbers))


def _settled(taken: list[int]) -> None:
    """Wait until nothing more has been taken for a while."""
    deadline, since, seen = time.monotonic() + DEADLINE, time.monotonic(), -1
    while time.monotonic() - since < 0.5:
        assert time.monotonic() < deadline
        if len(taken) != seen:
            seen, since = len(taken), time.monotonic()
        time.sleep(0.01)


def test_who_was_first_is_known_on_a_real_topic(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}"
    chain = a_chain("1a 2a 3a 4a")
    with (
        Producer(url, app, producer_id="one", watch=True) as one,
        Producer(url, app, producer_id="two", watch=True) as two,
    ):
        for payload in chain:
            one.add(payload)
        one.flush(DEADLINE)
        for payload in chain:
            two.add(payload)
        two.flush(DEADLINE)
        deadline = time.monotonic() + DEADLINE
        while True:
            found = one.producer_count
            assert found is not None
            if found.live == ("one", "two") and sum(found.first.values()) == len(chain):
                break
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (found.live, found.rank, found.count) == (("one", "two"), 0, 2)
        assert dict(found.first) == {"one": 4}
