"""What a consumer is told that cannot be meant is refused before anything is read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocks import Blocks, line, publish, steps
from cardinal.consumer import Consumer
from cardinal.copying.recording import Recorder
from cardinal.errors import ConfigurationError, CursorInvalidError
from cardinal.testing.memory import MemoryBroker

HASH = bytes(32)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        publish(broker, line(1, 3))
        yield broker


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("start", b"c1:AAAA"),
        ("start", 3.5),
        ("start", True),
        ("start", ["earliest"]),
        ("whitelist", {3: "0x" + HASH.hex()}),
        ("whitelist", {"3": HASH}),
        ("whitelist", {3: HASH[1:]}),
        ("blacklist", ["0x" + HASH.hex()]),
        ("blacklist", [b"short"]),
        ("blacklist", HASH),
        ("skip", [("topic", 0)]),
        ("skip", [("topic", "0", 1)]),
        ("skip", ["topic"]),
        ("max_open_bytes", 0),
        ("idle_timeout", -1),
        ("topics_timeout", -0.5),
        ("topics_timeout", "10"),
        ("idle_timeout", "5"),
        ("idle_timeout", ""),
        ("idle_timeout", float("nan")),
        ("max_open_bytes", None),
        ("tracked", b"a/"),
        ("producers", "one"),
        ("on_incomplete", "wait"),
        ("on_finality_violation", ""),
        ("policy", "quorum"),
        ("until", "now"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(broker: MemoryBroker, option: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=option) as caught:
        Consumer(broker.url, Blocks(), **{option: value})  # type: ignore[arg-type]
    assert caught.value.setting == option


@pytest.mark.parametrize("start", ["start", "", "Earliest", "17", "2026-01-13T22:00:00Z"])
def test_text_that_is_no_place_to_start_at_is_told_what_is_one(
    broker: MemoryBroker, tmp_path: Path, start: str
) -> None:
    says = f"start must be 'earliest', 'latest', a number, a time, or the text of a cursor, .* not '{start}'"
    with pytest.raises(CursorInvalidError, match=says):
        Consumer(broker.url, Blocks(), start=start)
    with pytest.raises(CursorInvalidError, match=says):
        Recorder(broker.url, f"file://{tmp_path}", Blocks(), start=start)


@pytest.mark.parametrize("app", ["evm", "blob"])
def test_chain_id_that_is_no_number_is_refused_by_name(broker: MemoryBroker, app: str) -> None:
    with pytest.raises(ConfigurationError, match="chain_id must be a number, not str") as caught:
        Consumer(broker.url, app, chain_id="1337")  # type: ignore[arg-type]
    assert caught.value.setting == "chain_id"


def test_no_start_is_the_start(broker: MemoryBroker) -> None:
    with Consumer(broker.url, Blocks(), start=None, idle_timeout=0.2) as consumer:
        assert steps(list(consumer))[-1].endswith("3a")


def test_iterating_anew_asks_for_the_next_update(broker: MemoryBroker) -> None:
    with Consumer(broker.url, Blocks(), idle_timeout=0.2) as consumer:
        for update in consumer:
            if update.added[-1].number == 3:
                break
        assert not consumer.ready
        assert list(consumer) == []
        assert consumer.ready
