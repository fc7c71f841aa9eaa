"""Spark reads the lake's lists of structures: access lists and authorizations of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cardinal.apps.evm import frames
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.rows import AppSpec, RawRow, payload_content, weight_bytes
from cardinal_spark.testing import commit_batch
from evm_typed import OTHER, address, block_of, call, wish

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_spark_reads_lists_of_structures(spark: SparkSession, tmp_path: Path) -> None:
    touched = [{"address": "0x" + "12" * 20, "storageKeys": ["0x" + "34" * 32]}]
    payload = block_of(call(4, authorizationList=[wish(OTHER, 1, 0)], accessList=touched), call(2))
    row = RawRow(
        *(1, 1, 1, payload.number, payload.hash, None, None, "line", AppSpec("evm", {"chain_id": 1}).text()),
        *(payload.parent, weight_bytes(payload.weight), payload_content(payload)),
    )
    folder = str(tmp_path / "lake")
    commit_batch(LakeLocation.of(folder), [[row]])
    table = spark.read.format("cardinal_lake").option("table", "current_transactions").load(folder)
    wanted = frames([payload])["transactions"]
    found = table.toArrow().sort_by("transaction_index")
    for column in ("access_list", "authorization_list", "blob_versioned_hashes", "mint"):
        assert found.column(column).to_pylist() == wanted.column(column).to_pylist(), column
    authorities = table.selectExpr("inline(authorization_list)").select("authority").collect()
    assert [each["authority"] for each in authorities] == [address(OTHER)]
