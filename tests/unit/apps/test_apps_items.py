"""Application of opaque items: blocks chained by number."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.errors import ApplicationError, ConfigurationError
from cardinal.producer import Producer
from cardinal.protocols.streams.payload import Payload
from cardinal_devkit.testing.memory import MemoryBroker
from cardinal_ingest import items


@given(st.integers(0, 2**64 - 2), st.lists(st.binary(max_size=5), max_size=300))
def test_a_block_comes_back_as_it_was(number: int, content: list[bytes]) -> None:
    block = items.Block(number, tuple(content))
    assert items.read(items.payload(block)) == block


SIZES = [0, 1, items.PART_BYTES, items.PART_BYTES + 1, 2 * items.PART_BYTES, 5 * items.PART_BYTES // 2]
LARGE = items.Block(7, tuple(bytes([index]) * size for index, size in enumerate(SIZES)))


def test_a_large_item_travels_in_parts_of_one_size() -> None:
    published = items.payload(LARGE)
    root = f"i/{items.block_hash(7).hex()}/"
    sizes = {path.removeprefix(root): len(value) for path, value in published.updates.items()}
    assert sizes == {
        "00000000": 0,
        "00000001": 1,
        "00000002": 900_000,
        "00000003/0000": 900_000,
        "00000003/0001": 1,
        "00000004/0000": 900_000,
        "00000004/0001": 900_000,
        "00000005/0000": 900_000,
        "00000005/0001": 900_000,
        "00000005/0002": 450_000,
    }
    assert items.read(published) == LARGE


@pytest.mark.parametrize(
    "change",
    [
        {"00000005/0001": None},
        {"00000005/0000": None},
        {"00000005/0002": None, "00000005/0003": bytes(450_000)},
        {"00000005/0001": bytes(899_999)},
        {"00000005": b"both"},
        {"00000001": None, "00000001/0000": b"a"},
        {"00000003/0000": None, "00000003/0001": None, "00000003": bytes(900_001)},
    ],
    ids=["a gap", "no first", "a number that is not next", "a short one", "both forms", "a small one", "a large whole"],
)
def test_parts_that_do_not_make_an_item_are_refused(change: dict[str, bytes | None]) -> None:
    published = items.payload(LARGE)
    root = f"i/{items.block_hash(7).hex()}/"
    changed = published.updates | {root + path: value for path, value in change.items()}
    updates = {path: value for path, value in changed.items() if value is not None}
    with pytest.raises(ApplicationError, match="block 7 is no block of items"):
        items.read(replace(published, updates=updates))


def test_blocks_are_chained_by_number() -> None:
    first, second = (items.payload(items.Block(number, ())) for number in (0, 1))
    assert second.parent == first.hash
    assert first.parent != first.hash
    assert (second.weight, second.number) == (1, 1)


@pytest.mark.parametrize(
    "change",
    [{"hash": b"h" * 32}, {"weight": 3}, {"deletes": frozenset({"i/"})}, {"updates": {"i/x": b""}}],
    ids=["hash", "weight", "deletes", "path"],
)
def test_anything_else_is_refused(change: dict[str, object]) -> None:
    block: Payload = items.payload(items.Block(7, (b"a", b"b")))
    with pytest.raises(ApplicationError, match="block 7 is no block of items"):
        items.read(replace(block, **change))


def test_a_chain_is_produced_and_consumed() -> None:
    app = apps.get("items", chain_id=3)
    blocks = [items.Block(number, tuple(bytes([number, place]) for place in range(20))) for number in range(5)]
    with MemoryBroker("items") as broker:
        with Producer(broker.url, app, producer_id="one") as producer:
            for block in blocks:
                producer.add(items.payload(block))
        with Consumer(broker.url, app, until="end") as consumer:
            found = [items.read(block) for update in consumer for block in update.added if isinstance(block, Payload)]
    assert found == blocks


def test_a_chain_id_below_nought_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="0 or more"):
        apps.get("items", chain_id=-1)
