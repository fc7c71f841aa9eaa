"""`cardinal lake` on a lake that is there: query, status, maintain."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet
from rich.console import Console

from cardinal.errors import CardinalError, ConfigurationError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.types import BlockRef
from cardinal_devkit.devchain import DevSettings
from cardinal_spark.cli import lake
from cardinal_spark.errors import LakeError
from cardinal_spark.lake import read
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.pipeline import BatchStatus, PipelineJob, batches, check, failure, source_options
from cardinal_spark.printing import write_table
from cardinal_spark.session import java_error
from cardinal_spark.source.offsets import offset_of
from cardinal_spark.spinner import Spinner
from cardinal_spark.testing import block_hash, commit_batch, script
from dev_rows import DevRows

if TYPE_CHECKING:
    from collections.abc import Callable

UPDATES = script("1a 2a 3a | -3a -2a 2b 3b | 4b")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("cli") / "lake")
    for update in UPDATES:
        commit_batch(LakeLocation.of(folder), [update])
    return folder


def lake_command(*arguments: str) -> Result:
    return CliRunner().invoke(lake, arguments, catch_exceptions=True)


def error_of(*arguments: str) -> CardinalError:
    found = lake_command(*arguments)
    assert found.exit_code != 0
    assert isinstance(found.exception, CardinalError)
    return found.exception


def test_sql_runs_over_the_current_views(path: str) -> None:
    sql = "SELECT _block_number n, count(*) rows FROM current_payload GROUP BY 1 ORDER BY 1"
    found = lake_command("query", path, sql, "--format", "json")
    assert [json.loads(line) for line in found.stdout.splitlines()] == [{"n": n, "rows": 5} for n in (1, 2, 3, 4)]
    found = lake_command("query", path, "SELECT number, hash FROM canonical WHERE number = 3", "--format", "csv")
    assert found.stdout == f"number,hash\n3,0x{block_hash('3b').hex()}\n"
    found = lake_command("query", path, "SELECT [hash] hashes FROM canonical WHERE number = 3", "--format", "csv")
    assert found.stdout == f"""hashes\n"[""0x{block_hash("3b").hex()}""]"\n"""


def test_a_table_prints_without_sql(path: str) -> None:
    ends = ("--from-block", "2", "--to-block", "3")
    found = lake_command("query", path, "--table", "current_payload", *ends, "--columns", "_block_number,path")
    lines = found.stdout.splitlines()
    assert lines[0].split() == ["_block_number", "path"]
    assert {line.split()[0] for line in lines[1:]} == {"2", "3"}
    assert len(lines) == 1 + 10
    found = lake_command("query", path, "--table", "events", "--limit", "4", "--format", "json")
    assert len(found.stdout.splitlines()) == 4


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A lake with more rows than a person reads: 42 blocks, and 210 rows of payload."""
    folder = str(tmp_path_factory.mktemp("many") / "lake")
    for update in script(" ".join(f"{number}a" for number in range(1, 43))):
        commit_batch(LakeLocation.of(folder), [update])
    return folder


ROWS = 210


@pytest.mark.parametrize("shape", ["csv", "json"])
@pytest.mark.parametrize("asked", [("--table", "payload"), ("select * from payload",)])
def test_every_row_is_written_unless_a_limit_is_named(many: str, shape: str, asked: tuple[str, ...]) -> None:
    found = lake_command("query", many, *asked, "--format", shape)
    assert (len(found.stdout.splitlines()) - (shape == "csv"), found.stderr) == (ROWS, "")
    found = lake_command("query", many, *asked, "--format", shape, "--limit", "150")
    assert (len(found.stdout.splitlines()) - (shape == "csv"), found.stderr) == (150, "")


@pytest.mark.parametrize("asked", [("--table", "payload"), ("select * from payload",)])
def test_a_table_ends_after_what_a_person_reads_and_counts_the_rows(many: str, asked: tuple[str, ...]) -> None:
    found = lake_command("query", many, *asked)
    assert len(found.stdout.splitlines()) == 1 + 100
    assert found.stderr.startswith(f"100 of {ROWS} rows: ")
    found = lake_command("query", many, *asked, "--limit", "205")
    assert (len(found.stdout.splitlines()), found.stderr) == (1 + 205, "")
    found = lake_command("query", many, "--table", "payload", "--to-block", "3")
    assert (len(found.stdout.splitlines()), found.stderr) == (1 + 15, "")
    assert lake_command("query", many, *asked, "--vertical").stdout.count("path ") == 100


@pytest.mark.parametrize(
    ("name", "options"), [("rows.parquet", ()), ("rows", ("--format", "parquet")), ("rows.csv", ()), ("rows.txt", ())]
)
def test_a_file_has_every_row(many: str, tmp_path: Path, name: str, options: tuple[str, ...]) -> None:
    path = tmp_path / name
    path.write_text("older")
    found = lake_command("query", many, "--table", "payload", "--output", str(path), *options)
    assert (found.exit_code, found.output) == (0, "")
    if "parquet" in (name, *options, path.suffix[1:]):
        read = parquet.read_table(path)
        assert (read.num_rows, read.schema.names[0]) == (ROWS, "_seq")
    else:
        assert len(path.read_text().splitlines()) == 1 + ROWS
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_query_that_fails_leaves_the_file_as_it_was(many: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("older")
    sql = "select case when i > 300000 then error('ended') else i end i from range(500000) t(i)"
    assert "ended" in str(error_of("query", many, sql, "--output", str(path)))
    assert path.read_text() == "older"
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]
    assert "No such file" in str(error_of("query", many, "select 1", "--output", str(tmp_path / "none" / "x.csv")))


def test_an_output_without_a_format_or_with_two_is_refused(many: str, tmp_path: Path) -> None:
    found = lake_command("query", many, "select 1", "--output", str(tmp_path / "rows.xml"))
    assert (found.exit_code, "names no format" in found.stderr) == (2, True)
    found = lake_command("query", many, "select 1", "--vertical", "--format", "csv")
    assert (found.exit_code, "leave out --format csv" in found.stderr) == (2, True)


@pytest.mark.process
def test_parquet_goes_into_a_pipe_and_a_reader_may_close_it(many: str) -> None:
    command = [sys.executable, "-m", "cardinal", "lake", "query", many, "--format"]
    found = subprocess.run([*command, "parquet", "--table", "payload"], capture_output=True, check=True, timeout=60)
    assert (parquet.read_table(io.BytesIO(found.stdout)).num_rows, found.stderr) == (ROWS, b"")
    rows = "select * from payload, range(10000)"
    with subprocess.Popen([*command, "csv", rows], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline().startswith(b"_seq,")
        running.stdout.close()
        assert (running.stderr.read(), running.wait(60)) == (b"", 0)


def test_nothing_is_shortened_in_a_pipe(path: str) -> None:
    found = lake_command("query", path, "select repeat('a', 500) a, repeat('b', 500) b")
    assert found.stdout.splitlines()[1] == f"{'a' * 500}  {'b' * 500}"


def test_columns_that_do_not_fit_a_terminal_are_named() -> None:
    table = pa.table({"number": [1], "hash": ["0x" + "ab" * 32], "input": ["c" * 500], "index": [3]})
    text = io.StringIO()
    assert write_table(table.to_reader(), text, width=85) == ["input"]
    assert text.getvalue().splitlines()[1].split() == ["1", "0x" + "ab" * 32, "3"]
    text = io.StringIO()
    assert write_table(table.select(["input"]).to_reader(), text, width=85) == [], "one column is always there"
    assert {len(line.rstrip()) for line in text.getvalue().splitlines()[1:]} == {85}


def test_text_of_the_chain_does_not_reach_the_terminal_as_commands() -> None:
    text = io.StringIO()
    write_table(pa.table({"name": ["\x1b[2Ja\nb", "字"], "n": [1, 2]}).to_reader(), text)
    assert text.getvalue().splitlines()[1:] == ["\\x1b[2Ja\\nb  1", "字           2"]


def test_columns_of_one_name_and_integers_of_any_size_are_printed(path: str) -> None:
    sql = f"select 1 a, 2 a, {2**255}::bignum b, [{2**127 - 1}::bignum] c, uhugeint '{2**128 - 1}' d"
    found = lake_command("query", path, sql, "--format", "json")
    expected = {"a": 1, "a_1": 2, "b": str(2**255), "c": [str(2**127 - 1)], "d": str(2**128 - 1)}
    assert json.loads(found.stdout) == expected


@pytest.mark.parametrize("number", [0, 1, 10**18, 2**64 - 1, 2**127, 2**128 - 1, 2**128, 10**54 - 1, 2**256 - 1])
def test_a_word_is_a_number_of_any_size(path: str, number: int) -> None:
    word = f"{number:064x}"
    sql = f"""select uint256('0x{word}') a, uint256('{word.upper()}') b, uint256(unhex('{word}')) c,
        uint256('0x{number:x}') d, sum(uint256('0x{word}')) over () + sum(uint256('0x{word}')) over () e"""
    found = json.loads(lake_command("query", path, sql, "--format", "json").stdout)
    assert found == {**dict.fromkeys("abcd", str(number)), "e": str(2 * number)}


def test_what_is_no_word_is_null(path: str) -> None:
    for text in ("null", "'0x'", "''", "'12'", "'no'", f"'0x{'f' * 65}'"):
        found = lake_command("query", path, f"select uint256({text}) a, address({text}) b", "--format", "json")
        words = {"a": None, "b": f"0x{'f' * 40}" if "f" in text else None}
        assert json.loads(found.stdout) == words


def test_an_address_is_the_end_of_its_word(path: str) -> None:
    word = "00" * 12 + "AB" * 20
    sql = f"select address('0x{word}') a, address(unhex('{word}')) b, address('0x{word[24:]}') c"
    found = json.loads(lake_command("query", path, sql, "--format", "json").stdout)
    assert found == dict.fromkeys("abc", "0x" + "ab" * 20)


def test_sql_without_duckdb_names_what_to_install(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert "pip install duckdb" in str(error_of("query", path, "SELECT 1"))
    assert lake_command("query", path, "--table", "canonical").exit_code == 0


def test_without_the_extra_the_error_names_what_to_install(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert "pip install 'cardinal-streams[spark]'" in str(error_of("status", path))


def test_a_lake_is_queried_as_it_was(path: str) -> None:
    sql = "SELECT DISTINCT _block_number n, _seq s FROM current_payload ORDER BY 1"
    for options in (("--as-of-seq", "3"), ("--as-of-seq", "5")):
        found = lake_command("query", path, sql, "--format", "csv", *options)
        assert found.stdout == "n,s\n1,1\n2,2\n3,3\n"
    found = lake_command(
        "query", path, "SELECT number, seq FROM canonical ORDER BY 1", "--as-of-block", "3", "--format", "csv"
    )
    assert found.stdout == "number,seq\n1,1\n2,6\n3,7\n"
    assert "has no block 9" in str(error_of("query", path, sql, "--as-of-block", "9"))


def test_a_query_that_cannot_run_is_reported_in_one_sentence(path: str, tmp_path: Path) -> None:
    assert "no table 'log'" in str(error_of("query", path, "--table", "log"))
    assert "refused" in str(error_of("query", path, "SELECT nothing FROM canonical"))
    assert "there is no lake" in str(error_of("status", str(tmp_path / "nowhere")))
    assert "name=value" in str(error_of("status", path, "--option", "x"))
    assert lake_command("query", path).exit_code == 2


def test_status_reports_the_position_of_the_lake(path: str) -> None:
    found = json.loads(lake_command("status", path, "--json").stdout)
    assert (found["seq"], found["number"], found["hash"]) == (8, 4, f"0x{block_hash('4b').hex()}")
    assert "current_payload" in found["tables"]
    assert (found["oldest"]["number"], found["oldest"]["hash"]) == (1, f"0x{block_hash('1a').hex()}")
    assert (found["head"]["number"], found["head"]["hash"]) == (4, found["hash"])
    assert found["oldest"]["time"] < found["head"]["time"]


def test_status_counts_what_is_stored(path: str) -> None:
    sizes = json.loads(lake_command("status", path, "--json").stdout)["sizes"]
    for table in ("events", "payload", "canonical"):
        assert sizes[table]["rows"] == read(path, table).num_rows
        files = set(Path(path, table).rglob("*.parquet"))
        assert 0 < sizes[table]["files"] <= len(files)
        assert 0 < sizes[table]["bytes"] <= sum(file.stat().st_size for file in files)
    head, oldest, _, *rows, _, views = lake_command("status", path).stdout.splitlines()
    assert head.split()[:3] == ["head", "4", f"0x{block_hash('4b').hex()}"]
    assert oldest.split() == ["oldest", "1", f"0x{block_hash('1a').hex()}", "2023-11-14", "22:13:32", "UTC"]
    assert [row.split()[:2] for row in rows] == [[name, str(sizes[name]["rows"])] for name in sizes]
    assert views == "views: current_payload"


def test_a_lake_is_registered_in_a_catalog(path: str) -> None:
    found = lake_command("catalog", path, "--schema", "main.eth").stdout.splitlines()
    assert found[0] == "CREATE SCHEMA IF NOT EXISTS main.eth;"
    assert found[1] == f"CREATE TABLE IF NOT EXISTS main.eth.events USING delta LOCATION '{path}/events';"
    assert found[-1].startswith("CREATE OR REPLACE VIEW main.eth.current_payload AS SELECT")


def test_maintain_reports_what_it_did(path: str) -> None:
    assert lake_command("maintain", path, "--min-files", "2", "--no-clean").stdout.splitlines() == [
        "events: 3 files became 1",
        "payload: 3 files became 1",
    ]
    found = lake_command("maintain", path, "--min-files", "2").stdout.splitlines()
    assert found == ["nothing to compact", "removed 0 files"]


def test_an_order_names_tables_and_columns(path: str) -> None:
    assert "table=column, not 'payload'" in str(error_of("maintain", path, "--z-order", "payload"))
    order = ("--z-order", "payload=path,payload=_seq", "--z-order", "logs=address")
    assert "no table 'logs'" in str(error_of("maintain", path, *order))
    assert lake_command("maintain", path, *order[:2]).stdout.splitlines()[0] == "payload: 1 file became 1"


def test_a_lake_decides_the_chain_where_the_server_has_several(tmp_path: Path) -> None:
    made = DevRows(DevSettings(chain_id=7, blocks=3))
    commit_batch(LakeLocation.of(str(tmp_path)), made.updates)
    assert source_options(PipelineJob("kafka://b", str(tmp_path)))["chainId"] == "7"
    assert "chainId" not in source_options(PipelineJob("kafka://b", str(tmp_path), options={"chainid": "7"}))
    with pytest.raises(ConfigurationError, match=r"the lake .* holds chain 7, not 8"):
        source_options(PipelineJob("kafka://b", str(tmp_path), options={"chainid": "8"}))


def test_a_lake_without_a_checkpoint_restarts_from_the_sink(path: str, tmp_path: Path) -> None:
    assert source_options(PipelineJob("kafka://b", str(tmp_path / "new"))) == {"url": "kafka://b", "table": "raw"}
    assert source_options(PipelineJob("kafka://b", path))["restartFrom"] == "sink"
    assert source_options(PipelineJob("kafka://b", path, "s3a://bucket/checkpoint"))["restartFrom"] == "sink"
    with pytest.raises(ConfigurationError, match="needs --checkpoint"):
        check(PipelineJob("kafka://b", "s3://bucket/lake"))


class EndedQuery:
    """A query whose batches are all done when they are first looked at."""

    lastProgress = None  # noqa: N815 - Spark's name

    def __init__(self, progress: list[dict[str, Any]]) -> None:
        self.recentProgress = progress

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's name
        del timeout
        return True


@pytest.mark.parametrize("encode", [json.dumps, dict])
def test_a_batch_reports_its_own_end_though_later_ones_are_in_the_lake(
    path: str, encode: Callable[[dict[str, Any]], object]
) -> None:
    ends = [(3, "3a"), (8, "4b")]
    progress = [
        {
            "batchId": batch,
            "numInputRows": seq,
            "durationMs": {"triggerExecution": 1500},
            "sources": [{"endOffset": encode(offset_of(cursor_of(seq, name)))}],
        }
        for batch, (seq, name) in enumerate(ends)
    ]
    idle = progress[-1] | {"batchId": 2, "numInputRows": 0}
    query: Any = EndedQuery([*progress, idle])
    found = [status for status in batches(query, PipelineJob("kafka://b", path)) if status is not None]
    assert found == [
        BatchStatus(batch, seq, 1.5, seq, int(name[0]), f"0x{block_hash(name).hex()}")
        for batch, (seq, name) in enumerate(ends)
    ]


def cursor_of(seq: int, name: str) -> Cursor:
    head = BlockRef(int(name[0]), block_hash(name))
    return Cursor(b"l" * 16, "evm", "evm:1", seq, (head,), 1, start=head)


def test_a_wait_is_one_line_without_a_terminal_and_seconds_on_one() -> None:
    text = io.StringIO()
    with Spinner("Spark starts", Console(file=text, force_terminal=False)):
        pass
    assert text.getvalue() == "Spark starts …\n"
    text = io.StringIO()
    with Spinner("Spark starts", Console(file=text, force_terminal=True, width=80)) as spinner:
        spinner.stop()
    assert "Spark starts" in text.getvalue()
    assert "0:00:00" in text.getvalue()


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (
            (
                b'WARNING: Using incubator modules: x\nException in thread "main" a.SparkException: Master must'
                b" be yarn\n\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)\n"
            ),
            "Master must be yarn",
        ),
        (
            b"Error occurred during initialization of VM\nCould not reserve enough space\n",
            "Could not reserve enough space",
        ),
        (b"WARNING: x\n", ""),
        (b"", ""),
    ],
)
def test_a_java_that_ended_is_reported_by_its_error(printed: bytes, reason: str) -> None:
    assert java_error(io.BytesIO(printed)) == reason


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a\nTraceback\ncardinal.errors.LakeError: the lake ends\n SQLSTATE", "the lake ends"),
        ("a\nValueError: no\n", "no"),
        ("gone", "the Spark query failed: gone"),
        ("", "the Spark query failed: no reason given"),
    ],
)
def test_a_failure_is_its_last_sentence(text: str, sentence: str) -> None:
    found = failure(text)
    assert isinstance(found, LakeError)
    assert str(found) == sentence


def test_a_worker_that_died_is_named() -> None:
    """Spark's words for a committer and a task's worker, and its silence about the planner (all seen)."""
    frames = (
        "\n\tat java.base/java.io.DataInputStream.readInt(D.java:386)\n\tat org.x.PythonStreamingSourceRunner.init(P:2)"
    )
    committer = "[STREAM_FAILED] Query terminated with exception: Python worker exited unexpectedly (crashed). Consider"
    task = f"Job aborted: Task 0 failed 4 times, most recent:\norg.apache.spark.SparkException: {committer[47:]}"
    silence, end = "[STREAM_FAILED] terminated with exception: ", f"Caused by: java.io.EOFException{frames}"
    for found in (failure(committer), failure(task), failure(silence, end)):
        assert str(found).startswith("a Python worker died, ")
    assert str(failure("cardinal.errors.LakeError: the lake ends", end)) == "the lake ends", "the planner's own error"
    missing = "org.apache.spark.SparkException: Python worker failed to connect back."
    assert str(failure(missing, f"Caused by: {missing}{frames}")) == missing.partition(": ")[2], "it never lived"
