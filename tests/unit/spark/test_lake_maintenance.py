"""Compaction and clean-up beside a writer."""

from __future__ import annotations

import json
import random
import time
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeError
from cardinal_spark.lake import Snapshot
from cardinal_spark.lake.commit import LakeCommitter
from cardinal_spark.lake.decode import write_task
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.maintenance import clean, compact, publish, upkeep
from cardinal_spark.lake.tables import LakeSettings
from cardinal_spark.rows import AppSpec, raw_batch
from cardinal_spark.testing import Script, commit_batch, image, image_of, script
from examples import few


@pytest.fixture
def place(tmp_path: Path) -> LakeLocation:
    return LakeLocation.of(str(tmp_path / "lake"))


def grow(place: LakeLocation, updates: int, settings: LakeSettings | None = None, threshold: int = 0) -> Script:
    """A lake of one file per table and block, from height 19,990 on, so that canonical has two partitions.

    ``threshold``: the stream's reorg threshold, in blocks.
    """
    writer = Script(app=AppSpec("test", {"reorg_threshold": threshold}).text())
    for number in range(updates):
        commit_batch(place, [writer.update(f"{19_990 + number}a")], settings=settings)
    return writer


@pytest.mark.slow
def test_small_files_are_joined_and_the_rows_stay(place: LakeLocation) -> None:
    grow(place, 20, threshold=1)
    before = image(place.root)
    done = compact(place, min_files=8)
    assert {found.table: found.added for found in done} == {"payload": 1, "events": 1, "canonical": 1}
    assert all(found.removed >= 8 for found in done)
    assert image(place.root) == before
    assert Snapshot.at(place.root).state.versions == {
        name: place.open(name).version() for name in ("payload", "events")
    }
    assert compact(place, min_files=8) == []


@pytest.mark.slow
def test_a_compaction_leaves_the_commit_that_defines_what_the_lake_shows(
    place: LakeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log that keeps nothing which is not needed: the lake stood still for long."""
    keeps_nothing = {"delta.checkpointInterval": "1", "delta.logRetentionDuration": "interval 0 seconds"}
    monkeypatch.setattr("cardinal_spark.lake.commit.LOG_SETTINGS", keeps_nothing)
    writer = grow(place, 20, threshold=1)
    assert "canonical" in {found.table for found in compact(place, min_files=8)}
    assert Snapshot.at(place.root).state.number == 20_009
    commit_batch(place, [writer.update("20010a")])
    assert Snapshot.at(place.root).state.number == 20_010


@pytest.mark.slow
@pytest.mark.parametrize(("threshold", "compacted"), few(1, [(4, ["canonical"]), (6, [])]))
def test_partitions_that_a_reorg_may_touch_are_left_alone(
    place: LakeLocation, threshold: int, compacted: list[str]
) -> None:
    """The reorg threshold is the stream's own, as the lake's state has it."""
    grow(place, 20, threshold=threshold)
    assert [found.table for found in compact(place, min_files=1000)] == compacted


def test_a_compaction_between_write_and_commit_does_not_disturb(place: LakeLocation) -> None:
    writer = grow(place, 12)
    rows = writer.update("-20001a -20000a -19999a 19999b 20000b")
    late = write_task([raw_batch(rows)], place, LakeSettings())
    compact(place, min_files=4)
    place.open("canonical").optimize.compact()  # what rule 1 forbids, and a MERGE survives
    assert LakeCommitter(place).commit([late]) is not None
    assert [number for number, _, _ in image(place.root).chain] == list(range(19_990, 20_001))


@pytest.mark.slow
def test_a_sorted_table_has_the_same_rows_in_files_of_few_values(place: LakeLocation) -> None:
    """A filter reads the files whose bounds hold its value: of 1.6 million logs 64 of 64 before, and 1 of 40 after."""
    noise = random.Random(3)
    writer = Script(values=lambda _: {f"{key:04}/{noise.randbytes(20).hex()}".encode(): b"" for key in range(4000)})
    for number in range(12):
        commit_batch(place, [writer.update(f"{number}a")])
    before = image(place.root)
    assert hit(place, "2000/") == 12
    done = compact(place, min_files=8, z_order={"payload": ["path"]}, target_bytes=300_000)
    assert {found.table for found in done} == {"payload", "events"}
    assert image(place.root) == before
    assert 3 <= len(place.open("payload").file_uris()) < 12
    assert hit(place, "2000/") <= 2


def hit(place: LakeLocation, path: str) -> int:
    """Files of ``payload`` in which paths may lie that begin so."""
    files = pa.table(place.open("payload").get_add_actions(flatten=True)).to_pylist()
    return sum(file["min.path"][: len(path)] <= path <= file["max.path"] for file in files)


@pytest.mark.parametrize(
    ("table", "column", "sentence"),
    [
        ("events", "seq", "no table 'events' to sort; it has payload"),
        ("logs", "address", "no table 'logs' to sort; it has payload"),
        ("payload", "address", "payload has no column 'address' to sort it by"),
    ],
)
def test_what_cannot_be_sorted_is_refused(place: LakeLocation, table: str, column: str, sentence: str) -> None:
    grow(place, 1)
    with pytest.raises(ConfigurationError, match=sentence):
        compact(place, z_order={table: [column]})


def test_clean_removes_orphans_and_nothing_that_is_read(place: LakeLocation) -> None:
    [first, second] = script("1a 2a | -2a 2b")
    commit_batch(place, [first])
    write_task([raw_batch(second)], place, LakeSettings())  # a task whose driver dies
    commit_batch(place, [second])
    files = set(Path(place.uri("payload")).glob("*.parquet"))
    assert len(files) == 3
    assert clean(place, retention_hours=0) >= 1
    assert len(set(Path(place.uri("payload")).glob("*.parquet"))) == 2
    assert image(place.root) == image_of(first + second)


def test_clean_keeps_what_is_younger_than_the_retention(place: LakeLocation) -> None:
    grow(place, 6)
    compact(place, min_files=4)
    assert clean(place, retention_hours=1) == 0
    files = len(list(Path(place.uri("payload")).glob("*.parquet")))
    assert files == 7
    # The tables' own logs may forget these files: they stay until an hour after they were first seen without a name.
    seen = Path(place.uri("payload"), "_cardinal_unnamed.json")
    assert len(json.loads(seen.read_text())) == 6
    assert clean(place, retention_hours=1) == 0
    seen.write_text(json.dumps(dict.fromkeys(json.loads(seen.read_text()), time.time() - 3601)))
    assert clean(place, retention_hours=1) == 6
    assert len(image(place.root).chain) == 6
    with pytest.raises(ConfigurationError, match="retention"):
        clean(place, retention_hours=-1)


def test_publishing_never_puts_an_old_state_behind_a_new_commit(
    place: LakeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver commits between publish's reading and its commit: publish must lose."""
    updates = script("1a 2a | 3a")
    commit_batch(place, [updates[0]])
    opened = LakeLocation.open

    def open_late(self: LakeLocation, table: str, version: int | None = None) -> object:
        found = opened(self, table, version)
        if table == "canonical" and version is not None:
            monkeypatch.setattr(LakeLocation, "open", opened)
            commit_batch(place, [updates[1]])
        return found

    monkeypatch.setattr(LakeLocation, "open", open_late)
    assert publish(place).seq == 3
    assert image(place.root) == image_of(list(chain(*updates)))


@pytest.mark.slow
def test_the_driver_joins_the_growing_partition_by_itself(place: LakeLocation) -> None:
    grow(place, 70)
    assert len(place.open("canonical").file_uris()) < 20
    assert len(image(place.root).chain) == 70


def test_a_missing_lake_is_reported(place: LakeLocation) -> None:
    for call in (compact, clean, publish):
        with pytest.raises(LakeError, match="there is no lake"):
            call(place)


@pytest.mark.slow
def test_the_driver_keeps_a_lake_small(place: LakeLocation, caplog: pytest.LogCaptureFixture) -> None:
    """It joins small files every so many batches and removes old ones every so many times."""
    caplog.set_level("INFO")
    grow(place, 162, LakeSettings(compact_every=10, retention_hours=1))
    assert {name: len(place.open(name).file_uris()) < 80 for name in ("payload", "events")} == {
        "payload": True,
        "events": True,
    }
    assert " removed" in caplog.text
    assert len(image(place.root).chain) == 162


def test_maintenance_that_fails_is_logged_and_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    upkeep(LakeLocation.of(str(tmp_path)), LakeSettings(compact_every=1), 0, 1)
    assert "will be retried: there is no lake" in caplog.text


@pytest.mark.parametrize("options", [{"compactevery": "often"}, {"retentionhours": "-1"}])
def test_a_setting_of_upkeep_that_is_no_number_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="must be a number of 0 or more"):
        LakeSettings.of(options)
