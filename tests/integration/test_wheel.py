"""The built wheel with no extra and with each one: its help, and a command of each.

An environment is a folder of links to the distributions that the wheel requires, and to no others.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PRODUCE = ("produce", "--producer-id", "a", "--from", "dev://?blocks=3&reorg-rate=0", "--to", "null://")
LINE = """
import sys
from cardinal import Consumer, Producer
from cardinal.apps import get
from cardinal.apps.blob import Blob, payload
app, hashes = get("blob", chain_id=7), [bytes([number + 1]) * 32 for number in range(4)]
with Producer(sys.argv[1], app, producer_id="one") as producer:
    for number in range(1, 4):
        producer.add(payload(Blob(number, hashes[number], hashes[number - 1], {"key": b"value"}))).result()
with Consumer(sys.argv[1], app, start=1, until="end") as consumer:
    print(sum(len(update.added) for update in consumer), "blocks")
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"no wheel can be built here: {built.stderr.strip().splitlines()[-1]}")
    (file,) = folder.glob("*.whl")
    zipfile.ZipFile(file).extractall(folder / "unpacked")
    return folder / "unpacked"


def without(guest: str, wheel: Path, folder: Path) -> Path:
    """The wheel with a guest's folder and entry points deleted, and with nothing else done about it."""
    shutil.copytree(wheel, folder, ignore=shutil.ignore_patterns(guest))
    (points,) = folder.glob("*.dist-info/entry_points.txt")
    kept = [line for line in points.read_text().splitlines() if f"= {guest}" not in line]
    points.write_text("\n".join(kept))
    return folder


def requirements(of: Distribution, extras: frozenset[str]) -> list[Requirement]:
    """What a distribution requires here, with some extras."""
    found = [Requirement(text) for text in of.requires or ()]
    chosen = [{"extra": extra} for extra in (extras or {""})]
    return [one for one in found if one.marker is None or any(one.marker.evaluate(each) for each in chosen)]


def environment(wheel: Path, folder: Path, *extras: str) -> dict[str, str]:
    """The variables of a Python that sees the wheel and what it requires."""
    (metadata,) = wheel.glob("*.dist-info")
    due = [(Distribution.at(metadata), frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while due:
        of, wanted = due.pop()
        if (of.metadata["Name"], wanted) in seen:
            continue
        seen.add((of.metadata["Name"], wanted))
        for one in requirements(of, wanted):
            own = one.name == "cardinal-streams"
            due.append((of if own else distribution(one.name), frozenset(one.extras)))
        for name in {file.parts[0] for file in of.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(of.locate_file(name))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    return {**kept, "PYTHONPATH": str(folder)}


def run(variables: dict[str, str], *arguments: str) -> tuple[int, str]:
    """`cardinal` with these arguments outside of the clone: its status, and what it printed."""
    command = [sys.executable, "-S", "-m", "cardinal", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=variables, cwd=variables["PYTHONPATH"], timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def test_the_description_on_a_package_index_links_to_no_file_of_the_repository(wheel: Path) -> None:
    (metadata,) = wheel.glob("*.dist-info")
    description = Distribution.at(metadata).metadata["Description"]
    assert description.startswith("# Cardinal")
    assert "Operating · Upgrades · Ingest nodes · Consuming" in description
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", description)


@pytest.mark.parametrize(
    ("extras", "arguments", "printed"),
    [
        ((), ("topics", "kafka://127.0.0.1:1?cardinal.connect.timeout.ms=500"), "no Kafka broker answered"),
        ((), PRODUCE, "needs the extra 'evm': pip install 'cardinal-streams[evm]'"),
        ((), ("run", "nowhere:Nothing", "--from", "kafka://127.0.0.1:1"), "nowhere:Nothing cannot be imported"),
        ((), ("serve", "--from", "kafka://127.0.0.1:1"), "needs the extra 'server'"),
        ((), ("lake", "status", "nowhere"), "needs the extra 'spark'"),
        (("evm",), PRODUCE, "4 blocks"),
        (("abi",), ("topics", "kafka://127.0.0.1:1?cardinal.connect.timeout.ms=500"), "no Kafka broker answered"),
        (("arrow",), ("topics", "kafka://127.0.0.1:1?cardinal.connect.timeout.ms=500"), "no Kafka broker answered"),
        (("local",), ("broker", "status", "--data", "nowhere"), "no broker"),
        (("spark",), ("lake", "status", "nowhere"), "there is no lake at"),
        (("query",), ("lake", "query", "nowhere", "select 1"), "needs the extra 'spark'"),
        (("tables",), ("lake", "query", "nowhere", "select 1"), "there is no lake at"),
        (("ingest",), ("cluster", "keygen", "--help"), "Usage: cardinal cluster keygen"),
        (("server",), ("serve", "--help"), "Usage: cardinal serve"),
        (("evm", "server"), (*PRODUCE, "--metrics", "127.0.0.1:0"), "metrics at http://127.0.0.1:"),
    ],
)
def test_help_and_a_command_work_with_these_extras(
    wheel: Path, tmp_path: Path, extras: tuple[str, ...], arguments: tuple[str, ...], printed: str
) -> None:
    variables = environment(wheel, tmp_path, *extras)
    for asked in (("--help",), (), ("--version",)):
        status, text = run(variables, *asked)
        assert (status, "error:" in text) == (2 if asked == () else 0, False), text
    assert printed in run(variables, *arguments)[1]
    status, text = run(
        variables | {"_CARDINAL_COMPLETE": "bash_complete", "COMP_WORDS": "cardinal ", "COMP_CWORD": "1"}
    )
    assert (status, "plain,serve" in text) == (0, True)
    words = {"_CARDINAL_COMPLETE": "bash_complete", "COMP_WORDS": "cardinal serve --", "COMP_CWORD": "2"}
    status, text = run(variables | words)
    assert ("--listen" in text) == ("server" in extras)
    assert "error:" not in text


@pytest.mark.parametrize(
    ("guest", "commands"),
    [
        ("cardinal_ethereum", set()),
        ("cardinal_ingest", {"cluster", "ingest"}),
        ("cardinal_relay", {"serve"}),
        ("cardinal_devkit", {"broker", "demo", "dev-node", "faults"}),
        ("cardinal_spark", {"lake"}),
    ],
)
def test_a_guest_is_removed_by_deleting_its_folder_and_its_entry_points(
    wheel: Path, tmp_path: Path, guest: str, commands: set[str]
) -> None:
    (tmp_path / "seen").mkdir()
    rest = environment(without(guest, wheel, tmp_path / "rest"), tmp_path / "seen", "evm", "abi", "server", "spark")
    status, complete = run(environment(wheel, tmp_path), "--help")
    assert status == 0, complete
    status, printed = run(rest, "--help")
    assert status == 0, printed
    listed, all_listed = (set(re.findall(r"^  ([a-z-]+)  ", text, re.MULTILINE)) for text in (printed, complete))
    assert all_listed - listed == commands
    (tmp_path / "seen/line.py").write_text(LINE)
    folder = f"file://{tmp_path}/stream"
    done = subprocess.run(
        [sys.executable, "-S", "line.py", folder],
        capture_output=True,
        text=True,
        check=False,
        env=rest,
        cwd=tmp_path / "seen",
    )
    assert (done.returncode, done.stdout) == (0, "3 blocks\n"), done.stderr
    status, printed = run(rest, "tail", folder, "--app", "blob", "--start", "1", "--exit-at-end")
    assert (status, len(re.findall("0x[0-9a-f]{4}", printed))) == (0, 3), printed
