"""Laws of bodies: a payload comes back as it was, equal payloads give equal bytes, and nothing else is read."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import ApplicationError
from cardinal.protocols.streams import Payload
from cardinal.protocols.streams.payload import SubBatch
from cardinal.protocols.streams.types import path_text
from cardinal_ingest.body import Published, body_pb2, frame, items_of, payload_of, unframe

hashes = st.binary(min_size=32, max_size=32)
paths = st.binary(max_size=6).map(path_text)
updates = st.dictionaries(paths, st.binary(max_size=4), max_size=4)
deletes = st.frozensets(paths, max_size=3)
sub_batches = st.dictionaries(hashes.filter(any), st.builds(SubBatch, paths, updates, deletes), max_size=3)
numbers = st.integers(0, 2**64 - 2)
payloads = st.builds(Payload, numbers, hashes, hashes, st.integers(0, 2**256 - 1), updates, deletes, sub_batches)
BLOCK = Payload(
    5, b"h" * 32, b"p" * 32, 5, {"a": b"1", "b": b""}, frozenset({"d"}), {b"s" * 32: SubBatch("s", {"x": b"2"})}
)
ITEMS = items_of(BLOCK, chain_id=1)


@given(payloads, st.integers(0, 2**64 - 1))
def test_a_payload_comes_back_as_it_was(block: Payload, chain_id: int) -> None:
    items = items_of(block, chain_id=chain_id)
    assert payload_of(items) == Published(block, chain_id)
    assert unframe(frame(items)) == items


@given(payloads)
def test_the_order_in_which_a_payload_was_made_does_not_matter(block: Payload) -> None:
    turned = Payload(
        block.number,
        block.hash,
        block.parent,
        block.weight,
        dict(reversed(block.updates.items())),
        block.deletes,
        dict(reversed(block.sub_batches.items())),
    )
    assert items_of(turned, chain_id=1) == items_of(block, chain_id=1)


@given(payloads, st.data())
def test_changed_items_are_refused_or_are_another_payload(block: Payload, data: st.DataObject) -> None:
    items = list(items_of(block, chain_id=1))
    place = data.draw(st.integers(0, len(items) - 1))
    item = bytearray(items[place])
    item[data.draw(st.integers(0, len(item) - 1))] ^= data.draw(st.integers(1, 255))
    items[place] = bytes(item)
    with pytest.raises(ApplicationError):
        payload_of(items)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_body_or_refused(data: bytes) -> None:
    with contextlib.suppress(ApplicationError):
        assert frame(unframe(data)) == data


@pytest.mark.parametrize(
    "items",
    [
        [],
        ITEMS[:1],
        ITEMS[1:],
        ITEMS[:-1],
        [*ITEMS[:2], *ITEMS[3:]],
        [ITEMS[0], ITEMS[2], ITEMS[1], *ITEMS[3:]],
        [*ITEMS[:2], *ITEMS[1:]],
        [*ITEMS[:-1], body_pb2.Item(proof=body_pb2.Proof(number=6)).SerializeToString()],
        [body_pb2.Item(header=body_pb2.Header(number=5, hash=b"short")).SerializeToString(), ITEMS[-1]],
        [*ITEMS[:2], b"\xff", *ITEMS[2:]],
    ],
    ids=[
        "nothing",
        "header",
        "no header",
        "no proof",
        "one less",
        "another order",
        "one twice",
        "another block's proof",
        "short hash",
        "no item",
    ],
)
def test_items_that_no_payload_gives_are_refused(items: Sequence[bytes]) -> None:
    with pytest.raises(ApplicationError):
        payload_of(items)


def test_a_sub_batch_without_content_cannot_be_published() -> None:
    with pytest.raises(ApplicationError, match="publish it whole"):
        items_of(Payload(1, b"h" * 32, b"p" * 32, 1, {}, frozenset(), {b"s" * 32: None}), chain_id=1)


def test_bytes_that_are_no_body_are_refused() -> None:
    for data in (b"", b"\xff", frame(ITEMS) + b"\x10\x01"):
        with pytest.raises(ApplicationError, match="no body"):
            unframe(data)
