"""What the streams core refuses, one sentence each, and copies that replace what is held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.errors import ConfigurationError, DecodeError, EncodeError, SplitError
from cardinal.protocols.streams import (
    Batch,
    BatchMsg,
    BlockRef,
    Completed,
    Divergence,
    Follower,
    FollowerSettings,
    MissingPayload,
    Overflow,
    Payload,
    Ping,
    QuorumReassembler,
    Reassembler,
    Record,
    SubBatch,
    SubBatchHeader,
    SubBatchMsg,
    Update,
    decode,
    encode,
    split,
)
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.payload import PathMap
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.codec import encode_content
from cardinal.protocols.streams.wire.messages import BATCH, PING
from streams import SCHEMA, block, h

ID = b"\1" * 32
LONE = "\ud800"
"""Half of a surrogate pair: text, and no bytes stand for it."""


@pytest.mark.parametrize(
    "message",
    [
        BatchMsg(b"short", "a/1", b""),
        SubBatchHeader(h("1a"), ID, -1),
        BatchMsg(h("1a"), LONE, b""),
        Ping(ID, 1, 2, 1 << 40),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_cannot_be_written_is_refused(message: BatchMsg | SubBatchHeader | Ping) -> None:
    with pytest.raises(EncodeError):
        encode(message)


def test_deletes_without_an_order_are_written_sorted() -> None:
    assert encode_content(frozenset({"b", "a"}), {}) == encode_content(("a", "b"), {})


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (bytes((BATCH,)) + bytes(33), b"", "nothing more"),
        (bytes((PING,)) + bytes(32), b"\x01" + bytes(8) + b"\xff\xff\xff\xff" + bytes(2), "a second or more"),
    ],
)
def test_what_is_no_message_is_refused(key: bytes, value: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode(key, value)


def test_numbers_and_weights_that_no_block_has_are_refused() -> None:
    with pytest.raises(DecodeError, match="64 bits"):
        avro.read_int(b"\xff" * 9 + b"\x7f")
    good = avro.write_batch(1, 1, bytes(32), [])
    with pytest.raises(DecodeError, match="longer than"):
        avro.read_batch(good[:1] + b"\xc8\x01" + bytes(100) + good[3:])


@pytest.mark.parametrize(
    "updates",
    [
        {"a/1": "text"},
        {f"b/1a/t/{LONE}": b""},
        {"b/1a/t/0": "text", "b/1a/t/1": b""},
        {"b/1a/t/0": b"", f"b/1a/t/{LONE}": b""},
    ],
)
def test_a_value_that_is_no_bytes_and_a_path_that_no_bytes_stand_for_are_refused(updates: dict[str, bytes]) -> None:
    with pytest.raises(SplitError):
        split(replace(block("1a", "0r"), updates=updates), SCHEMA, "t")


class _Named(bytes):
    """Bytes of another type, as some libraries give them."""


def test_values_of_a_type_that_is_bytes_are_taken_as_bytes() -> None:
    plain = {f"b/1a/t/{index}": b"%d" % index for index in range(3)}
    named = {path: _Named(value) for path, value in plain.items()}
    of_plain, of_named = (split(replace(block("1a", "0r"), updates=updates), SCHEMA, "t") for updates in (plain, named))
    assert of_named == of_plain


def test_a_delete_that_no_bytes_stand_for_is_refused() -> None:
    with pytest.raises(SplitError):
        split(replace(block("1a", "0r"), deletes=frozenset({f"b/1a/t/{LONE}"})), SCHEMA, "t")


def test_a_hash_of_another_length_and_an_id_of_zeros_are_refused() -> None:
    with pytest.raises(SplitError, match="must be 32 bytes"):
        split(Payload(1, b"short", h("0r"), 1, {}), SCHEMA, "t")
    with pytest.raises(SplitError, match="not all of them zero"):
        split(replace(block("1a", "0r"), sub_batches={bytes(32): SubBatch("s/", {}, frozenset())}), SCHEMA, "t")


@pytest.mark.parametrize("schema", [{"(": "t"}, {"": "t", "a/": "u"}])
def test_a_schema_that_cannot_route_is_refused(schema: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        split(block("1a", "0r"), schema, "t")
    assert caught.value.setting == "topics"


def test_a_map_of_paths_is_a_mapping_that_prints_its_size() -> None:
    paths = PathMap({b"a": b"1"})
    assert (len(paths), repr(paths), LONE in paths) == (1, "PathMap(1 paths)", False)
    assert MissingPayload(1, h("1a")).ref == BlockRef(1, h("1a"))


# --- copies ------------------------------------------------------------------------------------------------


def records(*messages: object, at: list[int]) -> list[Record]:
    return [
        Record("t", 0, offset, *encode(message), 5)  # type: ignore[arg-type] # messages
        for message, offset in zip(messages, at, strict=True)
    ]


def test_copies_of_a_sub_batchs_header_and_parts_at_lower_positions_count() -> None:
    one, other = ({"s/1": value} for value in (b"1", b"2"))
    found = Reassembler().receive(
        records(
            SubBatchHeader(h("1a"), ID, 2),
            SubBatchMsg(h("1a"), ID, 0, (), one),
            SubBatchMsg(h("1a"), ID, 0, (), other),
            SubBatchHeader(h("1a"), ID, 1),
            Batch(h("1a"), 1, 1, h("0r"), {"s/": Update(sub_batch=ID)}),
            at=[9, 8, 3, 2, 10],
        )
    )
    assert [type(event) for event in found] == [Divergence, Divergence, Completed]
    assert found[-1].payload.updates == other  # type: ignore[union-attr]


def test_a_copy_of_a_header_that_counts_below_nothing_replaces_none() -> None:
    reassembler = Reassembler()
    key, _ = encode(SubBatchHeader(h("1a"), ID, 1))
    reassembler.receive(records(SubBatchHeader(h("1a"), ID, 1), at=[9]))
    (event,) = reassembler.receive([Record("t", 0, 1, key, b"\x01", 5)])
    assert isinstance(event, Divergence)
    assert reassembler.receive(
        records(
            SubBatchMsg(h("1a"), ID, 0, (), {"s/1": b"1"}),
            Batch(h("1a"), 1, 1, h("0r"), {"s/": Update(sub_batch=ID)}),
            at=[10, 11],
        )
    )


def test_what_one_of_two_batches_counts_is_surplus_to_the_other() -> None:
    reassembler = Reassembler()
    first = Batch(h("1a"), 1, 1, h("0r"), {"a/": Update(count=2)})
    second = Batch(h("1a"), 1, 1, h("0r"), {"b/": Update(count=1)})
    reassembler.receive(records(first, second, BatchMsg(h("1a"), "a/1", b"1"), at=[0, 1, 2]))
    held = reassembler.held(h("1a"))
    assert held is not None
    (done,) = reassembler.receive(records(BatchMsg(h("1a"), "a/2", b"2"), at=[3]))
    assert done.payload.updates == {"a/1": b"1", "a/2": b"2"}  # type: ignore[union-attr]


def test_a_header_that_is_read_again_at_its_own_position_is_no_copy() -> None:
    reassembler = Reassembler()
    twice = records(SubBatchHeader(h("1a"), ID, 1), SubBatchHeader(h("1a"), ID, 1), at=[3, 3])
    assert reassembler.receive(twice) == []
    assert reassembler.explain(h("1a")).missing_batch


def test_the_open_blocks_of_two_producers_are_those_of_both() -> None:
    both = QuorumReassembler(1, ["one", "two"])
    assert both.open_blocks() == []
    for producer, number in ((b"one", 7), (b"two", 5)):
        key, value = encode(Batch(h(f"{number}a"), number, 1, h("0r"), {"a/": Update(count=1)}))
        both.receive([Record("t", 0, number, key, value, 5, (("cardinal-producer", producer),))])
    assert [both.number_of(block) for block in both.open_blocks()] == [7, 5]


def test_a_follower_reports_blocks_that_it_has_no_room_for() -> None:
    follower = Follower(FollowerSettings("app", "chain", bounds=Bounds(open_blocks=1)))
    found = records(BatchMsg(h("1a"), "a/1", b"1"), BatchMsg(h("2a"), "a/1", b"2"), at=[0, 1])
    (event,) = follower.step(found, {("t", 0): 2}).items
    assert isinstance(event, Overflow)
    assert event.block == h("1a")
    assert follower.explain(h("1a")).state == "unknown"
