"""The rows between source and lake."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from cardinal.errors import ConfigurationError
from cardinal_spark.rows import (
    RAW_ARROW,
    AppSpec,
    payload_content,
    raw_batch,
    raw_rows,
    row_payload,
    weight_bytes,
)
from cardinal_spark.testing import script


def test_the_arrow_schema_is_what_spark_derives() -> None:
    assert to_arrow_schema(from_arrow_schema(RAW_ARROW), timezone="UTC") == RAW_ARROW


def test_rows_survive_an_arrow_batch() -> None:
    [rows] = script("1a 2a 3a")
    assert list(raw_rows(raw_batch(rows))) == rows
    assert raw_batch([]).num_rows == 0


def test_a_row_is_its_payload() -> None:
    [[row]] = script("7a")
    payload = row_payload(row)
    assert (payload.number, payload.hash, payload.parent, payload.weight) == (7, row.hash, row.parent, 7)
    assert payload.updates["x/7a/1"] == b"7a"
    assert payload.updates["\udcff/7a"] == b""
    assert payload.deletes == {"gone/7a"}
    assert payload_content(payload) == row.content


def test_weights_are_minimal() -> None:
    assert [weight_bytes(weight) for weight in (0, 1, 255, 256)] == [b"", b"\x01", b"\xff", b"\x01\x00"]


def test_an_application_is_its_text() -> None:
    spec = AppSpec.parse('{"chain_id":1,"name":"evm"}')
    assert (spec.name, spec.options) == ("evm", {"chain_id": 1})
    assert AppSpec.parse(spec.text()) == spec


@pytest.mark.parametrize("text", ["", "{}", "[]", "evm"])
def test_an_application_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="_app"):
        AppSpec.parse(text)
