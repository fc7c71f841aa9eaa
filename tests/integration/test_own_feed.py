"""The worked example of a feed, installed as a package of its own and used by the commands."""

from __future__ import annotations

import os
import subprocess
import tomllib
from typing import TYPE_CHECKING

import pytest
from ledger import CHAIN_ID, Ledger

from cardinal import Consumer, apps
from cardinal.apps.blob import read
from pages import ROOT, SCRIPTS, environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

EXAMPLE = ROOT / "docs" / "examples" / "ledger"


def installed(folder: Path) -> dict[str, str]:
    """The environment of a machine on which the package is installed: what `pip install` would write into it."""
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]["cardinal.feeds"]
    info = folder / "ledger_feed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ledger-feed\nVersion: 1\n")
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    (info / "entry_points.txt").write_text("".join(["[cardinal.feeds]\n", *lines]))
    inherited = environment()
    path = [str(folder), str(EXAMPLE), *filter(None, [inherited.get("PYTHONPATH")])]
    return {**inherited, "PYTHONPATH": os.pathsep.join(path)}


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("evm", "block 0 holds nothing that belongs on cardinal-11, but 'k/"),
        ("blob", "block 6 follows block 4: a chain's numbers are consecutive"),
    ],
)
def test_a_chain_that_consumers_could_not_read_is_refused(tmp_path: Path, app: str, says: str) -> None:
    environ = installed(tmp_path)
    with Ledger() as ledger:
        for block in ledger.chain[5:]:
            block["number"] += 1  # as of a ledger that leaves numbers out
        command = [SCRIPTS / "cardinal", "produce", "--app", app, "--from", ledger.url, "--producer-id", "one"]
        running = [*command, "--to", f"file://{tmp_path / 'stream'}"]
        done = subprocess.run(running, env=environ, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert says in done.stderr


def test_a_feed_of_a_package_publishes_its_ledger_and_continues_after_a_reorg(tmp_path: Path) -> None:
    command = [SCRIPTS / "cardinal", "produce", "--app", "blob", "--producer-id", "one"]
    url = f"file://{tmp_path / 'stream'}"
    environ = installed(tmp_path)
    with Ledger() as ledger:
        for stop in (9, 12):
            running = [*command, "--from", ledger.url, "--to", url, "--stop", str(stop)]
            subprocess.run(running, env=environ, check=True, timeout=120)
            ledger.add(6, depth=3)
        expected = [block["hash"] for block in ledger.chain[:10]]
    with Consumer(url, apps.get("blob", chain_id=CHAIN_ID), until="end") as consumer:
        chain = {block.number: block for update in consumer for block in update.added}
    assert [chain[number].hash.hex() for number in range(10)] == expected
    assert all(read(block).keys == {"account/ann": number.to_bytes(4)} for number, block in chain.items())  # type: ignore[arg-type]
