"""Values of frames and records: one encoding each, everything else refused."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import ViolationError
from cardinal.protocols.cbor import Value, dump, load

scalars = st.integers(0, 2**64 - 1) | st.binary(max_size=70_000) | st.text(max_size=300)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=30), max_leaves=40)


def depth(value: Value) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(values)
def test_a_value_has_the_encoding_of_the_oracle(value: Value) -> None:
    data = dump(value)
    assert data == cbor2.dumps(value)
    assert load(data, depth(value)) == value


@given(st.binary(max_size=12))
def test_what_is_read_is_written_alike(data: bytes) -> None:
    try:
        value = load(data)
    except ViolationError:
        return
    assert dump(value) == data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "the bytes end inside a value"),
        ("0000", "1 bytes after the value"),
        ("1817", "a head that is not the shortest"),
        ("1900ff", "a head that is not the shortest"),
        ("1a0000ffff", "a head that is not the shortest"),
        ("1b00000000ffffffff", "a head that is not the shortest"),
        ("19ff", "the bytes end inside a value"),
        ("1c", "additional information 28"),
        ("9fff", "additional information 31"),
        ("20", "major type 1"),
        ("a0", "major type 5"),
        ("c000", "major type 6"),
        ("f4", "major type 7"),
        ("4200", "the bytes end inside a value"),
        ("9bffffffffffffffff00", "the bytes end inside a value"),
        ("8100", None),
        ("8181818100", None),
        ("818181818100", "arrays are too deep"),
        ("61ff", "text is not UTF-8"),
    ],
)
def test_refusals(data: str, reason: str | None) -> None:
    if reason is None:
        load(bytes.fromhex(data))
        return
    with pytest.raises(ViolationError, match=reason):
        load(bytes.fromhex(data))
