"""`cardinal lake check` is silent about a lake that is right, and finds what was planted."""

from __future__ import annotations

import json
import shutil
from itertools import chain, count
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cardinal import apps
from cardinal.producer import Producer
from cardinal_devkit.devchain import DevSettings
from cardinal_devkit.testing.memory import MemoryBroker
from cardinal_spark.cli import lake
from cardinal_spark.lake import Snapshot
from cardinal_spark.lake.check import Check, stream_chain
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.tables import LakeSettings
from cardinal_spark.testing import commit_batch, script
from dev_rows import DevRows
from examples import few

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHAIN_ID = 7
NAMES = count()


class Made:
    """A lake of a development chain with reorgs, and the broker with the stream that it was made of."""

    def __init__(self, folder: Path, settings: LakeSettings | None = None) -> None:
        self.broker = MemoryBroker(f"check-{next(NAMES)}")
        self.app = apps.get("evm", chain_id=CHAIN_ID, reorg_threshold=8)
        self.path = str(folder / "lake")
        made = DevRows(
            DevSettings(seed=5, blocks=24, reorg_rate=0.3, transactions=3, chain_id=CHAIN_ID), reorg_threshold=8
        )
        self.chain = [made.payloads[block.hash] for block in made.chain]
        with Producer(self.broker.url, self.app, producer_id="one") as producer:
            for payload in made.payloads.values():
                producer.add(payload)
        rows = list(chain.from_iterable(made.updates))
        commit_batch(LakeLocation.of(self.path), [rows[:30], rows[30:]], settings=settings)

    def differences(self, *, stream: bool = False) -> list[str]:
        checking = Check(Snapshot.at(self.path))
        found = [str(difference) for difference in checking.tables()]
        if stream:
            found += map(str, checking.stream(stream_chain(self.broker.url, Snapshot.at(self.path).state.app)))
        return found

    def plant(self, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
        """Change the rows of a table where they lie."""
        place = LakeLocation.of(self.path)
        snapshot = Snapshot.of(place)
        first, *others = [f"{self.path}/{table}/{file}" for file in snapshot.files(table).files]
        rows = pa.concat_tables([pq.read_table(file, partitioning=None) for file in (first, *others)])
        kinds = {"binary_view": pa.binary(), "string_view": pa.string()}
        rows = rows.cast(pa.schema([(each.name, kinds.get(str(each.type), each.type)) for each in rows.schema]))
        changed = change(rows)
        pq.write_table(changed, first)
        for file in others:
            pq.write_table(changed.slice(0, 0), file)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("check"))


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Made:
    """The lake once more, to plant something in."""
    other = object.__new__(Made)
    other.__dict__.update(made.__dict__)
    other.path = str(tmp_path / "lake")
    shutil.copytree(made.path, other.path)
    return other


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [LakeSettings("string"), LakeSettings("decimal", senders=False), LakeSettings("binary")]
)
def test_a_lake_that_is_right_has_no_difference(tmp_path: Path, settings: LakeSettings) -> None:
    assert Made(tmp_path, settings).differences(stream=True) == []


def test_a_lake_without_typed_tables_is_checked_too(tmp_path: Path) -> None:
    place = LakeLocation.of(str(tmp_path / "lake"))
    for update in script("1a 2a 3a | -3a -2a 2b 3b | 4b"):
        commit_batch(place, [update])
    assert list(Check(Snapshot.of(place)).tables()) == []


def without(at: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: pa.concat_tables([rows.slice(0, at), rows.slice(at + 1)])


def twice(at: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: pa.concat_tables([rows, rows.slice(at, 1)])


def with_value(column: str, at: int, value: object) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        values = rows.column(column).to_pylist()
        values[at] = value
        field = rows.schema.get_field_index(column)
        return rows.set_column(field, rows.schema.field(column), pa.array(values, rows.schema.field(column).type))

    return change


def shifted(column: str, at: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: with_value(column, at, rows.column(column)[at].as_py() + 1)(rows)


PLANTED = {
    "a height of another block": ("canonical", with_value("hash", 3, b"x" * 32), "canonical: block"),
    "a height that is missing": ("canonical", without(2), "is missing"),
    "a height too many": ("canonical", shifted("number", -1), "is not in the chain of the ledger"),
    "a row of the ledger that is missing": ("events", without(9), "does not follow seq"),
    "a row of the ledger that stands twice": ("events", twice(4), "is there twice"),
    "a row of the ledger of another block": ("events", with_value("hash", 1, b"y" * 32), "events: block"),
    "a path that is missing": ("payload", without(11), "row is missing"),
    "a row of a block that never joined": ("payload", shifted("_seq", 5), "did not join under this seq"),
    "a typed row that is missing": ("logs", without(0), "logs: block"),
    "a typed row that stands twice": ("transactions", twice(3), "1 should not be there"),
    "a typed value": ("receipts", shifted("gas_used", 2), "receipts: block"),
    "a typed text": ("transactions", with_value("to_address", 2, "0x00"), "transactions: block"),
}


@pytest.mark.parametrize("name", few(6, PLANTED))
def test_what_was_planted_is_found(copy: Made, name: str) -> None:
    table, change, sentence = PLANTED[name]

    def on_the_chain(rows: pa.Table) -> pa.Table:
        """Rows in order, those of blocks that have left last: there nobody looks."""
        if table in ("canonical", "events"):
            return change(rows.sort_by("number" if table == "canonical" else "seq"))
        chain = pa.array([payload.hash for payload in copy.chain], rows.schema.field("_block_hash").type)
        left = pc.invert(pc.is_in(rows.column("_block_hash"), value_set=chain))
        order = [("left", "ascending"), ("_seq", "ascending")]
        return change(rows.append_column("left", left).sort_by(order).drop_columns("left"))

    copy.plant(table, on_the_chain)
    found = copy.differences(stream=True)
    assert found, name
    assert any(sentence in each for each in found), found


def test_content_that_is_not_the_streams_is_found(copy: Made) -> None:
    """Typed rows are made of no path of this kind: only the stream can tell."""

    def change(rows: pa.Table) -> pa.Table:
        paths = rows.column("path").to_pylist()
        at = next(index for index, path in enumerate(paths) if "/n/" in path or path.endswith("/d"))
        return with_value("value", at, b"other")(rows)

    copy.plant("payload", change)
    (found,) = [each for each in copy.differences(stream=True) if each.startswith("payload")]
    assert "1 row is missing, 1 should not be there" in found


def test_a_stream_of_another_chain_is_found(made: Made) -> None:
    other = MemoryBroker(f"check-{next(NAMES)}")
    with Producer(other.url, made.app, producer_id="one") as producer:
        others = DevRows(DevSettings(seed=6, blocks=12, reorg_rate=0, transactions=3, chain_id=CHAIN_ID))
        for payload in others.payloads.values():
            producer.add(payload)
    checking = Check(Snapshot.at(made.path))
    assert list(checking.tables()) == []
    found = list(checking.stream(stream_chain(other.url, Snapshot.at(made.path).state.app)))
    assert found
    assert all("the stream has 0x" in each.what for each in found)


def test_the_command_reports_what_differs(made: Made, copy: Made) -> None:
    run = CliRunner().invoke(lake, ["check", made.path, "--from", made.broker.url], catch_exceptions=False)
    assert (run.exit_code, run.stdout) == (
        0,
        f"no differences; {len(made.chain)} blocks compared, {len(made.chain)} with the stream\n",
    )
    copy.plant("canonical", without(2))
    run = CliRunner().invoke(lake, ["check", copy.path, "--json"], catch_exceptions=False)
    assert run.exit_code == 1
    assert [json.loads(line)["what"] for line in run.stdout.splitlines()] == ["is missing"]
    assert "1 difference;" in run.stderr
