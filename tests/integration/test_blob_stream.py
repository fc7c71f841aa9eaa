"""An application that is not Ethereum: the same producer, consumer, recording and replay, on any transport."""

from __future__ import annotations

import uuid
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocks import DEADLINE
from cardinal import apps
from cardinal.apps.blob import Blob, payload, read
from cardinal.consumer import Consumer, find_application
from cardinal.copying.recording import Recorder
from cardinal.copying.replaying import Player
from cardinal.errors import ApplicationError, ConfigurationError
from cardinal.producer import Producer
from cardinal.protocols.streams.payload import Payload
from cardinal.transports import open_sink, open_source
from cardinal_devkit.testing.memory import MemoryBroker
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams import ChainUpdate

APP = apps.get("blob", chain_id=7)
KEYS = {"": b"an empty key", "a/b c/ü": b"\0\1", "k/": b"", "c/1/h": b"no header at all", "byte \udcff": b"5"}


def named(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def branch(below: str, *names: str, more: int = 0) -> list[Payload]:
    return [
        payload(Blob(int(name[:-1]), named(name), named(parent), KEYS | {"me": name.encode()}, int(name[:-1]) + more))
        for parent, name in pairwise((below, *names))
    ]


LINE = branch("0a", "1a", "2a", "3a", "4a")
FORK = branch("2a", "3b", "4b", "5b", more=1)


@pytest.fixture
def url() -> Iterator[str]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        yield broker.url


def publish(url: str, *payloads: Payload) -> None:
    with Producer(url, APP, producer_id="one") as producer:
        for each in payloads:
            producer.add(each)
        producer.flush(DEADLINE)


def consume(consumer: Consumer, last: str) -> list[ChainUpdate]:
    updates = []
    for update in consumer:
        updates.append(update)
        if update.added and update.added[-1].hash == named(last):
            return updates
    raise AssertionError(f"{last} did not come")


def head_of(updates: list[ChainUpdate]) -> list[bytes]:
    chain: list[bytes] = []
    for update in updates:
        for removed in update.removed:
            assert chain.pop() == removed.hash
        chain += [added.hash for added in update.added]
    return chain


def test_blocks_of_any_keys_come_out_in_order_and_a_reorg_is_one_update(url: str) -> None:
    publish(url, *LINE)
    with Consumer(url, APP, idle_timeout=DEADLINE) as consumer:
        updates = consume(consumer, "4a")
        assert [read(block) for update in updates for block in update.added if isinstance(block, Payload)] == [
            read(each) for each in LINE
        ]
        publish(url, *FORK)
        after = consume(consumer, "5b")
    (switch,) = [update for update in after if update.removed]
    assert [block.hash for block in switch.removed] == [named("4a"), named("3a")]
    assert [block.hash for update in after for block in update.added] == [each.hash for each in FORK]


def test_a_cursor_of_it_resumes_and_its_stream_is_found_by_name(url: str) -> None:
    publish(url, *LINE)
    assert find_application(url, "blob") == APP
    with Consumer(url, "blob", idle_timeout=DEADLINE) as consumer:
        seen = consume(consumer, "4a")
    publish(url, *FORK)
    with Consumer(url, "blob", start=seen[-1].cursor, idle_timeout=DEADLINE) as consumer:
        seen += consume(consumer, "5b")
    assert head_of(seen) == [named(name) for name in ("1a", "2a", "3b", "4b", "5b")]


def test_a_recording_of_it_is_replayed_elsewhere(url: str, tmp_path: Path) -> None:
    publish(url, *LINE, *FORK)
    recorder = Recorder(url, f"file://{tmp_path}", APP)
    until(lambda: recorder.at_end, step=lambda: recorder.step(0.05))
    recorder.close()
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as other:
        source, sink = open_source(f"file://{tmp_path}", APP), open_sink(other.url, APP, producer_id="replay")
        try:
            player = Player(source, sink, APP)
            while player.step():
                pass
        finally:
            sink.close()
            source.close()
        for where in (other.url, f"file://{tmp_path}"):
            with Consumer(where, APP, idle_timeout=DEADLINE) as consumer:
                updates = consume(consumer, "5b")
            assert head_of(updates)[-3:] == [each.hash for each in FORK]
            last = updates[-1].added[-1]
            assert isinstance(last, Payload)
            assert read(last).keys == KEYS | {"me": b"5b"}


@given(
    st.integers(0, 2**64),
    st.dictionaries(st.text(max_size=20), st.binary(max_size=30), max_size=5),
    st.none() | st.integers(0, 2**70),
)
def test_what_is_written_is_read(number: int, keys: dict[str, bytes], weight: int | None) -> None:
    published = payload(Blob(number, named("1a"), named("0a"), keys, weight))
    assert payload(read(published)) == published
    assert read(published).keys == keys


def test_what_is_no_key_of_the_block_is_refused() -> None:
    for wrong in (
        Payload(1, named("1a"), named("0a"), 1, {"k/other": b""}),
        Payload(1, named("1a"), named("0a"), 1, {}, frozenset({"k/"})),
    ):
        with pytest.raises(ApplicationError, match="k/"):
            read(wrong)
    with pytest.raises(ConfigurationError, match="chain id"):
        apps.get("blob", chain_id=-1)
