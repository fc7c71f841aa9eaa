"""The lake's commit, driven as Spark drives it but without Spark: tasks write, the driver commits."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeDivergedError, LakeError
from cardinal_spark.lake import Snapshot, last_committed, read, scan
from cardinal_spark.lake.commit import LakeCommitter
from cardinal_spark.lake.decode import write_task
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.tables import LakeSettings
from cardinal_spark.rows import raw_batch
from cardinal_spark.testing import block_hash, commit_batch, image, image_of, script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cardinal_spark.rows import RawRow


class Killed(Exception):  # noqa: N818 - what stands for a kill is no error of the lake
    """The driver dies after a transaction."""


def die_after(last: str) -> Callable[[str], None]:
    def die(table: str) -> None:
        if table == last:
            raise Killed

    return die


@pytest.fixture
def place(tmp_path: Path) -> LakeLocation:
    return LakeLocation.of(str(tmp_path / "lake"))


def test_a_batch_whose_net_change_is_nothing_still_moves_the_state(place: LakeLocation) -> None:
    """A MERGE that changes no row commits nothing; the seq must move all the same."""
    first, second, third = script("1a | 2a | -2a 2b")
    commit_batch(place, [first])
    state = commit_batch(place, [[*second, third[0]]])  # cut inside an update, which the source never does
    assert state is not None
    assert (state.seq, state.number, state.hash) == (3, 1, block_hash("1a"))
    assert image(place.root) == image_of([*first, *second, third[0]])
    commit_batch(place, [third[1:]])
    assert image(place.root) == image_of([*first, *second, *third])


def test_a_reorg_across_a_partition_of_canonical(place: LakeLocation) -> None:
    first, second = script("9998a 9999a 10000a 10001a | -10001a -10000a -9999a 9999b 10000b")
    commit_batch(place, [first])
    commit_batch(place, [second])
    assert image(place.root) == image_of(first + second)


def test_an_empty_batch_is_no_state(place: LakeLocation) -> None:
    assert commit_batch(place, [[], []]) is None
    with pytest.raises(LakeError, match="there is no lake"):
        image(place.root)


def test_another_block_under_a_known_seq_is_refused_by_both_names(place: LakeLocation) -> None:
    [rows], [others] = script("1a 2a"), script("1a 2b")
    commit_batch(place, [rows])
    with pytest.raises(LakeDivergedError, match="restartFrom=sink") as caught:
        commit_batch(place, [others])
    assert (caught.value.seq, caught.value.expected, caught.value.found) == (2, block_hash("2a"), block_hash("2b"))
    assert image(place.root) == image_of(rows)


def test_another_lineage_is_refused_with_what_to_do(place: LakeLocation) -> None:
    [rows], [others] = script("1a 2a"), script("1a 2a 3a", lineage="lineage-2")
    commit_batch(place, [rows])
    with pytest.raises(LakeDivergedError, match=r"'lineage-1'.*'lineage-2'.*another folder"):
        commit_batch(place, [others])
    assert image(place.root) == image_of(rows)


def test_a_gap_is_refused(place: LakeLocation) -> None:
    first, _, third = script("1a | 2a | 3a")
    with pytest.raises(LakeError, match="ends at seq 0 and the stream continues at 3"):
        commit_batch(place, [third])
    commit_batch(place, [first])
    with pytest.raises(LakeError, match="ends at seq 1 and the stream continues at 3"):
        commit_batch(place, [third])
    with pytest.raises(LakeError, match="jumps from seq 1 to 3"):
        commit_batch(place, [first, third])


def test_a_second_driver_between_write_and_commit_is_refused(place: LakeLocation) -> None:
    first, second, third = script("1a | 2a | 3a")
    commit_batch(place, [first])
    late, later = (write_task([raw_batch(rows)], place, LakeSettings()) for rows in (second, second + third))
    commit_batch(place, [second])
    LakeCommitter(place).commit([late])  # the same batch once more, as Spark may
    with pytest.raises(LakeError, match="another query committed to canonical"):
        LakeCommitter(place).commit([later])
    assert image(place.root) == image_of(first + second)


def test_mixed_lineages_and_applications_are_refused(place: LakeLocation) -> None:
    [one], [two] = script("1a"), script("1a 2a", lineage="lineage-2")
    with pytest.raises(LakeError, match="mixes the lineages"):
        commit_batch(place, [one, two[1:]])
    [other] = script("1a 2a", app='{"name":"other"}')
    with pytest.raises(LakeError, match="mixes the applications"):
        commit_batch(place, [one, other[1:]])


def test_rows_that_are_not_raw_are_refused(place: LakeLocation) -> None:
    with pytest.raises(LakeError, match="lack _seq"):
        write_task([pa.record_batch({"number": [1]})], place, LakeSettings())


def test_a_column_of_another_type_is_refused_and_a_missing_one_is_added(place: LakeLocation) -> None:
    [rows] = script("1a")
    held = pa.schema([("lineage", pa.string()), ("seq", pa.int64()), ("change", pa.string())])
    DeltaTable.create(place.uri("events"), schema=held)
    with pytest.raises(LakeError, match="column change of events"):
        commit_batch(place, [rows])


def test_last_committed_is_the_end_of_the_ledger_and_its_chain(place: LakeLocation) -> None:
    assert last_committed(place.root) is None
    updates = script("1a 2a 3a | -3a -2a 2b | 3b 4b 5b")
    for update in updates:
        commit_batch(place, [update])
    found = last_committed(place.root, depth=3)
    assert found is not None
    assert (found.lineage, found.app, found.seq) == ("lineage-1", updates[0][0].app, 9)
    assert (found.head.number, found.head.hash) == (5, block_hash("5b"))
    assert [row.hash for row in found.chain] == [block_hash(name) for name in ("3b", "4b", "5b")]
    whole = last_committed(place.root)
    assert whole is not None
    assert [row.hash for row in whole.chain] == [block_hash(name) for name in ("1a", "2b", "3b", "4b", "5b")]


@pytest.mark.parametrize("asleep", ["payload", "events"])
def test_a_driver_that_was_thought_dead_commits_nothing(place: LakeLocation, asleep: str) -> None:
    """It has written some tables; another one removes its rows, and dies or goes on; then it wakes up."""
    first, second = script("1a 2a | -2a 2b 3b")
    [_, other] = script("1a 2a | -2a 2c 3c 4c")
    commit_batch(place, [first])

    def wake(table: str) -> None:
        if table == asleep:
            with pytest.raises(Killed):
                commit_batch(place, [other], on_commit=die_after("payload"))

    with pytest.raises(LakeError, match="another query"):
        commit_batch(place, [second], on_commit=wake)
    assert image(place.root) == image_of(first)
    commit_batch(place, [other])
    assert image(place.root) == image_of(first + other)


def test_a_snapshot_outlives_the_versions_that_it_names(place: LakeLocation) -> None:
    first, second = script("1a 2a 3a | -3a -2a 2b 3b 4b")
    commit_batch(place, [first])
    snapshot = Snapshot.at(place.root)
    commit_batch(place, [second])
    for table in ("payload", "events", "canonical"):
        forget(place, table)
    with pytest.raises(LakeError):
        place.open("payload", snapshot.state.versions["payload"])
    assert sorted(snapshot.scan("current_payload").read_all().column("_seq").to_pylist()) == [1] * 5 + [2] * 5 + [3] * 5
    assert snapshot.scan("payload").read_all().num_rows == 3 * 5
    assert len(snapshot.scan("events").read_all()) == 3


def forget(place: LakeLocation, table: str) -> None:
    """Remove what a table's log holds before its newest version, as it does itself after some minutes."""
    opened = place.open(table)
    opened.create_checkpoint()
    for file in Path(place.uri(table), "_delta_log").glob("*.json"):
        if int(file.stem) < opened.version():
            file.unlink()


def test_unknown_names_are_refused_with_those_that_exist(place: LakeLocation) -> None:
    commit_batch(place, script("1a"))
    with pytest.raises(LakeError, match="current_payload"):
        read(place.root, "currrent_payload")
    with pytest.raises(ConfigurationError, match="no column 'paht'"):
        scan(place.root, "payload", columns=["paht"])
    with pytest.raises(ConfigurationError, match="needs a path"):
        LakeLocation.of("")


def test_a_store_that_refuses_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where the folder should be")
    with pytest.raises(LakeError) as caught:
        commit_batch(LakeLocation.of(str(tmp_path / "lake")), script("1a"))
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_one_sentence(place: LakeLocation) -> None:
    commit_batch(place, script("1a"))
    [file] = Path(place.uri("payload")).glob("*.parquet")
    file.write_bytes(b"no longer a file of Parquet")
    with pytest.raises(LakeError, match="could not read payload") as caught:
        read(place.root, "payload")
    assert "\n" not in str(caught.value)


def test_an_object_store_is_a_lake_too(tmp_path: Path) -> None:
    """The way of every store but the local one: files and log through delta-rs' own object store."""
    for table in ("payload", "events", "canonical"):  # a folder's store wants them; a bucket has no folders
        (tmp_path / "lake" / table).mkdir(parents=True)
    store = LakeLocation(f"file://{tmp_path}/lake", {"timeout": "5s"})
    assert not store.is_local
    assert "5s" not in repr(store)
    first, second = script("1a 2a | -2a 2b 3b")
    commit_batch(store, [first])
    commit_batch(store, [second])
    assert image(f"{tmp_path}/lake") == image_of(first + second)
    assert Snapshot.of(store).scan("current_payload").read_all().num_rows == 3 * 5
    assert LakeLocation.of("s3://bucket/lake/", {"storage.region": "x", "integers": "string"}).storage == {
        "region": "x"
    }


def test_other_writers_rows_in_a_table_are_not_shown(place: LakeLocation) -> None:
    """Rows beyond the state's seq belong to nobody yet."""
    [rows] = script("1a")
    commit_batch(place, [rows])
    stray = read(place.root, "payload").set_column(0, "_seq", pa.array([7] * 5, pa.int64()))
    write_deltalake(place.uri("payload"), stray, mode="append")
    assert image(place.root) == image_of(rows)


# --- tables that stay open -----------------------------------------------------------------------------------


def commit_by(committer: LakeCommitter, rows: Sequence[RawRow]) -> None:
    committer.commit([write_task([raw_batch(rows)], committer.location, committer.settings)])


def test_a_driver_whose_tables_are_older_than_the_log_opens_them_again(place: LakeLocation) -> None:
    updates = script("1a 2a | 3a | -3a -2a 2b | 3b")
    committers = LakeCommitter(place), LakeCommitter(place)
    for number, update in zip((0, 1, 1, 0), updates, strict=True):
        commit_by(committers[number], update)
        for table in ("payload", "events", "canonical"):
            forget(place, table)
    assert image(place.root) == image_of(list(chain(*updates)))


def test_a_driver_with_open_tables_removes_what_a_killed_one_left(place: LakeLocation) -> None:
    """It is refused, and opens its tables again when the query is started again."""
    first, second = script("1a 2a | -2a 2b 3b")
    committer = LakeCommitter(place)
    commit_by(committer, first)
    with pytest.raises(Killed):
        commit_batch(place, [second], on_commit=die_after("payload"))
    with pytest.raises(LakeError, match="another query committed to payload"):
        commit_by(committer, second)
    commit_by(committer, second)
    assert image(place.root) == image_of(first + second)


def test_a_lake_that_was_removed_is_recreated_by_the_same_driver(place: LakeLocation) -> None:
    [rows], [others] = script("1a 2a 3a"), script("1c 2c", lineage="lineage-2")
    committer = LakeCommitter(place)
    commit_by(committer, rows)
    shutil.rmtree(place.root)
    commit_by(committer, others)
    assert image(place.root) == image_of(others)


def test_a_batch_continues_where_the_log_has_lost_the_state(place: LakeLocation) -> None:
    """Others committed to canonical so often that the last commit of Cardinal has expired."""
    first, second = script("1a 2a | -2a 2b")
    commit_batch(place, [first])
    table = place.open("canonical")
    table.create_write_transaction([], "append", table.schema(), ["bucket"])
    forget(place, "canonical")
    with pytest.raises(LakeError, match="whose next batch restores it"):
        image(place.root)
    commit_batch(place, [second])
    assert image(place.root) == image_of(first + second)
