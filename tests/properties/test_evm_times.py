"""Laws of a block's time: one function of the number in its header, the same wherever a time is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cardinal import apps
from cardinal.cli.blocks import clock, facts_of
from cardinal.protocols.streams.payload import Payload
from cardinal_ethereum import Abi, decoded_frames, frames, rlp
from cardinal_ethereum.times import header_time, microseconds
from cardinal_spark.rows import AppSpec
from cardinal_spark.source.tables import block_time as spark_time

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
HASH = bytes(range(32))
EVM = apps.get("evm", chain_id=1337)
BOUNDS = [0, 10**11, 10**14, 10**17, (LAST + 1) * 1000, 2**63, 2**64, 2**70, 2**256]

numbers = st.one_of(
    st.sampled_from(BOUNDS).flatmap(lambda bound: st.integers(max(0, bound - 2), min(bound + 2, 2**256 - 1))),
    st.integers(0, 2**70),
    st.integers(0, 2**256 - 1),
)


def block(timestamp: int, *, gas: int = 1) -> Payload:
    """A block of a header and a log."""
    numbers = [rlp.minimal_bytes(number) for number in (1, 5, gas, gas, timestamp)]
    header = rlp.encode([HASH, HASH, bytes(20), HASH, HASH, HASH, bytes(256), *numbers, b"", HASH, bytes(8)])
    root = f"c/539/b/{HASH.hex()}"
    return Payload(5, HASH, HASH, 1, {f"{root}/h": header, f"{root}/l/0/0": rlp.encode([bytes(20), [HASH], b""])})


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (10**11 - 1, (10**11 - 1) * 10**6),
        (10**11, 10**14),
        (10**14 - 1, (10**14 - 1) * 10**3),
        (10**14, 10**14),
        (10**17 - 1, 10**17 - 1),
        (10**17, 10**14),
        ((LAST + 1) * 1000 - 1, LAST),
        ((LAST + 1) * 1000, None),
        (2**256 - 1, None),
    ],
)
def test_the_unit_changes_at_each_bound(timestamp: int, expected: int | None) -> None:
    assert microseconds(timestamp) == expected


@given(st.integers(10**9, 10**10), st.integers(0, 999_999_999))
def test_every_unit_of_the_same_moment_is_the_same_time(seconds: int, rest: int) -> None:
    whole = seconds * 10**9 + rest
    assert microseconds(whole) == microseconds(whole // 10**3) == seconds * 10**6 + rest // 10**3
    assert microseconds(whole // 10**6) == seconds * 10**6 + rest // 10**6 * 10**3
    assert microseconds(whole // 10**9) == seconds * 10**6


@given(numbers)
def test_a_time_fits_every_calendar_or_is_none(timestamp: int) -> None:
    time = microseconds(timestamp)
    assert time is None or EPOCH + timedelta(microseconds=time) >= EPOCH


@given(numbers)
@example(1_761_317_324_396_005_796)
@example(2**70)
def test_tables_spark_consumers_and_commands_read_the_same_time(timestamp: int) -> None:
    payload, expected = block(timestamp), microseconds(timestamp)
    date = None if expected is None else EPOCH + timedelta(microseconds=expected)
    (row,) = frames([payload], tables=["blocks"])["blocks"].to_pylist()
    assert (row["timestamp"], row["block_timestamp"]) == (date, date)
    assert row["block_date"] == (None if date is None else date.date())
    (row,) = decoded_frames([payload], Abi([]), tables=["decoded_logs"])["decoded_logs"].to_pylist()
    assert (row["block_timestamp"], row["block_date"]) == (date, None if date is None else date.date())
    assert spark_time(AppSpec("evm", {"chain_id": 1337}), payload) == expected
    seconds = EVM.time_of(payload)
    assert seconds is None if expected is None else round(seconds * 10**6 - expected) == 0 or expected > 2**53
    assert facts_of(EVM, payload).time == (seconds or None)
    assert clock(seconds) == "-" or date is not None


@given(st.integers(0, 2**256 - 1))
def test_a_header_of_any_numbers_has_a_row(gas: int) -> None:
    (row,) = frames([block(1, gas=gas)], tables=["blocks"])["blocks"].to_pylist()
    assert row["gas_limit"] == row["gas_used"] == (gas if gas < 2**63 else None)


@given(st.binary(max_size=80))
def test_bytes_that_are_no_header_have_no_time(header: bytes) -> None:
    assert header_time(header) is None
