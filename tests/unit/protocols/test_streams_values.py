"""Small values of the streams core: what an update is, and which headers are no messages."""

from __future__ import annotations

import pytest

from cardinal.errors import DecodeError
from cardinal.protocols.streams import ChainUpdate, decode
from cardinal.protocols.streams.events import Change
from cardinal.protocols.streams.types import PRODUCER_HEADER, is_sealed, producer_of
from cardinal.protocols.streams.wire.messages import PING, REORG, REORG_COMPLETE, SUB_BATCH_HEADER
from streams import block


def test_an_update_says_whether_it_extends_replaces_or_only_takes_away() -> None:
    one, other = (block("1a", "0r"),), (block("1b", "0r"),)
    assert ChainUpdate(1, (), one, None).change is Change.EXTEND
    assert ChainUpdate(2, one, other, None).change is Change.REORG
    assert ChainUpdate(2, one, (), None).change is Change.REVERT


@pytest.mark.parametrize("kind", [SUB_BATCH_HEADER, PING, REORG, REORG_COMPLETE])
def test_a_key_of_the_wrong_length_is_no_message(kind: int) -> None:
    for size in (31, 33):
        with pytest.raises(DecodeError):
            decode(bytes((kind,)) + bytes(size), b"\x00")


def test_a_sub_batch_of_a_negative_count_is_refused() -> None:
    with pytest.raises(DecodeError, match="the count -1 of a sub batch is negative"):
        decode(bytes((SUB_BATCH_HEADER,)) + bytes(64), b"\x01")


def test_the_producer_of_a_record_is_found_among_other_headers() -> None:
    assert producer_of((("traceparent", b"00"), (PRODUCER_HEADER, b"one"))) == b"one"
    assert producer_of((("traceparent", b"00"),)) == producer_of(())


def test_the_seal_is_a_header_of_any_value() -> None:
    assert is_sealed((("cardinal-producer", b"one"), ("cardinal-sealed", b"")))
    assert not is_sealed((("cardinal-producer", b"cardinal-sealed"),))
