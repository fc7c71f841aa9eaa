"""Data at rest of earlier versions: this version reads each set in ``tests/data/formats`` (docs/upgrades.md)."""

from __future__ import annotations

import base64
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cardinal import Consumer, apps
from cardinal.cli.main import cardinal
from cardinal.protocols.streams import Cursor
from cardinal_ingest.body_exchange.objects import Objects
from cardinal_ingest.cluster.config import load_cluster
from cardinal_ingest.cluster.first_state import MAX_BLOCKS
from cardinal_ingest.cluster.keys import verify
from cardinal_ingest.cluster.rows import ReplicaRows
from cardinal_ingest.node.store import BodyStore
from cardinal_ingest.protocols.replication import (
    ClaimLog,
    Marker,
    Position,
    PutBlock,
    PutPosition,
    PutWinner,
    Rules,
    decode_marker,
)
from cardinal_ingest.protocols.replication.claims import Applied, Opened

FORMATS = Path(__file__).parents[1] / "data/formats"
SETS = sorted(path for path in FORMATS.iterdir() if path.is_dir())
STREAM_CHAIN = 6
CLUSTER_CHAIN = 5


@pytest.fixture(params=SETS, ids=lambda path: path.name)
def stored(request: pytest.FixtureRequest) -> Path:
    """One set."""
    path: Path = request.param
    return path


def facts(stored: Path) -> dict[str, Any]:
    """What the set holds, as the version that wrote it read it."""
    found: dict[str, Any] = json.loads((stored / "facts.json").read_text())
    return found


def chain_of(stored: Path, **options: Any) -> list[list[object]]:  # noqa: ANN401 - a consumer's
    """Blocks of the recording, after reorgs."""
    chain: list[list[object]] = []
    with Consumer(f"file://{stored}/recording", chain_id=STREAM_CHAIN, until="end", **options) as consumer:
        for update in consumer:
            del chain[len(chain) - len(update.removed) :]
            chain += [[block.number, block.hash.hex()] for block in update.added]
    return chain


def test_there_is_a_set_of_the_first_version() -> None:
    assert SETS[0].name == "0.1.0"


def test_a_recording_is_read(stored: Path) -> None:
    chain = facts(stored)["chain"]
    assert len(chain) > 10
    assert chain_of(stored, start=0) == chain


def test_a_cursor_resumes_in_the_recording(stored: Path) -> None:
    found = facts(stored)
    saved = found["cursor"]
    cursor = Cursor.parse(saved["text"])
    assert (cursor.app, cursor.chain, cursor.seq) == ("evm", f"evm:{STREAM_CHAIN}", saved["seq"])
    assert (cursor.ring[0].number, cursor.ring[0].hash.hex()) == (saved["number"], saved["hash"])
    assert chain_of(stored, start=saved["text"]) == [one for one in found["chain"] if one[0] > saved["number"]]


def test_a_members_store_is_read(stored: Path, tmp_path: Path) -> None:
    app = apps.get("evm", chain_id=CLUSTER_CHAIN)
    shutil.copy(stored / "ingest.sqlite", tmp_path)
    cluster = load_cluster(stored / "cluster.toml").cluster(app)
    with closing(BodyStore(tmp_path, app.chain)) as store:
        retained = [block for block in store.blocks() if block.retained]
        assert retained
        assert all(len(store.body(block.number, block.hash)) == block.size for block in retained)
        rows = ReplicaRows(store, Objects(forks=True), cluster.digest).stored()
    kinds = {type(row) for row in rows}
    assert {PutBlock, PutWinner, PutPosition} <= kinds


def test_a_claim_log_and_its_markers_are_read(stored: Path) -> None:
    app, found = apps.get("evm", chain_id=CLUSTER_CHAIN), facts(stored)
    membership = load_cluster(stored / "cluster.toml").membership(app)
    log = ClaimLog(membership, verify, Position(rules=Rules(0, app.reorg_threshold, MAX_BLOCKS)))
    verdicts = [log.read(offset, base64.b64decode(value)) for offset, value in found["claims"]]
    assert isinstance(verdicts[0], Opened)
    assert {type(one) for one in verdicts[1:]} == {Applied}
    assert log.state is not None
    assert (log.state.num, log.state.head.number) == (found["batch"], found["head"])
    markers = [decode_marker(base64.b64decode(value)) for _, value in found["markers"]]
    assert isinstance(markers[-1], Marker)
    assert (markers[-1].cluster, markers[-1].num) == (membership.cluster, found["batch"])


def test_a_lake_is_read(stored: Path) -> None:
    """Without Spark: what a job and a reader find first, the state, and the rows of its tables."""
    pytest.importorskip("deltalake", reason="deltalake is not installed")
    lake, found = str(stored / "lake"), facts(stored)
    state = CliRunner().invoke(cardinal, ["lake", "status", lake], catch_exceptions=False).stdout
    number, block_hash = found["chain"][-1]
    assert f"head {number} 0x{block_hash}" in " ".join(state.split())
    arguments = ["lake", "query", lake, "--columns", "number,hash", "--format", "json", "--table", "current_blocks"]
    printed = CliRunner().invoke(cardinal, arguments, catch_exceptions=False).stdout
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [[row["number"], row["hash"].removeprefix("0x")] for row in rows] == found["chain"]
    for table, column in (("current_transactions", "hash"), ("current_logs", "address"), ("events", "seq")):
        arguments = ["lake", "query", lake, "--columns", column, "--format", "json", "--table", table]
        assert CliRunner().invoke(cardinal, arguments, catch_exceptions=False).stdout.count("\n") > 5, table
