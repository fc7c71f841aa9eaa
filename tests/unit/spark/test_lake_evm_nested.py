"""Columns of lists and structures in a lake: access lists and authorizations come out as they went in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cardinal.apps.evm import frames
from cardinal_spark.lake import Snapshot, read
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.maintenance import compact
from cardinal_spark.lake.sql import run_sql
from cardinal_spark.rows import AppSpec, RawRow, payload_content, weight_bytes
from cardinal_spark.testing import commit_batch
from evm_typed import OTHER, address, block_of, call, wish

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.protocols.streams.payload import Payload

TOUCHED = [{"address": "0x" + "12" * 20, "storageKeys": ["0x" + "34" * 32, "0x" + "56" * 32]}]


def row(payload: Payload) -> RawRow:
    return RawRow(
        seq=1,
        change=1,
        update_id=1,
        number=payload.number,
        hash=payload.hash,
        block_time=None,
        published_at=None,
        lineage="line",
        app=AppSpec("evm", {"chain_id": 1}).text(),
        parent=payload.parent,
        weight=weight_bytes(payload.weight),
        content=payload_content(payload),
    )


@pytest.mark.parametrize("compacted", [False, True])
def test_lists_of_structures_come_out_of_a_lake_as_they_went_in(tmp_path: Path, *, compacted: bool) -> None:
    payload = block_of(
        call(1, gasPrice="0x9", accessList=TOUCHED),
        call(4, authorizationList=[wish(OTHER, 1, 0)], accessList=TOUCHED),
        call(2),
    )
    folder = str(tmp_path / "lake")
    commit_batch(LakeLocation.of(folder), [[row(payload)]])
    if compacted:
        assert compact(LakeLocation.of(folder), min_files=1)
    wanted = frames([payload])["transactions"]
    found = read(folder, "current_transactions").sort_by("transaction_index")
    for column in wanted.column_names:
        assert found.column(column).to_pylist() == wanted.column(column).to_pylist(), column
    sql = """
        SELECT transaction_index AS at, authorization_list[1].authority AS authority, len(access_list) AS touched,
            access_list[1].storage_keys AS keys
        FROM current_transactions ORDER BY 1
    """
    keys = TOUCHED[0]["storageKeys"]
    assert run_sql(Snapshot.at(folder), sql).to_pylist() == [
        {"at": 0, "authority": None, "touched": 1, "keys": keys},
        {"at": 1, "authority": address(OTHER), "touched": 1, "keys": keys},
        {"at": 2, "authority": None, "touched": 0, "keys": None},
    ]
