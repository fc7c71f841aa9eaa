"""`cardinal produce --from archive://…`: what it says of blocks that the archive does not hold, and what it makes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import fresh_chain_id, run_here
from ethereum_blocks import grow
from feeding import asynchronous, everything

from cardinal.errors import ConfigurationError
from cardinal.transports import list_topics
from cardinal_ethereum.archive.feed import ArchiveFeed

if TYPE_CHECKING:
    from cardinal_devkit.kafka import EmbeddedKafka

HOLE = (*range(2, 6), *range(8, 11))
"""Blocks 2 to 5 and 8 to 10."""


def archive(folder: Path, numbers: Iterable[int]) -> Path:
    """Files of these blocks of one chain."""
    folder.mkdir()
    chain = grow(None, max(numbers) + 1)
    for number in numbers:
        content = {"block": chain[number].block, "receipts": chain[number].receipts}
        (folder / f"{number}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    return folder


def produce(capfd: pytest.CaptureFixture[str], folder: Path, to: str, chain: int, *args: str) -> tuple[int, str]:
    status, _, said = run_here(
        capfd, *("produce", "--from", f"archive://{folder}?chain-id={chain}", "--to", to, "--producer-id", "a", *args)
    )
    return status, said


def test_a_read_only_target_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, said = produce(capfd, archive(tmp_path / "archive", (2, 3)), "ws://127.0.0.1:1", fresh_chain_id())
    assert status == 1
    assert "ws:// is read only" in said


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--start", "11"), "holds blocks 2 to 5, 8 to 10, not block 11: start with one that it holds"),
        (("--start", "99999"), "not block 99999"),
        (("--start", "0"), "holds blocks 2 to 5, 8 to 10, not block 0"),
        (("--start", "1"), "not block 1:"),
        (("--start", "6"), "not block 6:"),
        (("--stop", "1"), "a stream from block 2 cannot stop at block 1"),
        (("--start", "5", "--stop", "4"), "a stream from block 5 cannot stop at block 4"),
    ],
)
def test_a_start_outside_the_archive_is_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, args: tuple[str, ...], says: str
) -> None:
    folder = archive(tmp_path / "archive", HOLE)
    status, said = produce(capfd, folder, f"file://{tmp_path}/log", 1337, *args)
    assert status == 2, said
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "log").exists()


@pytest.mark.broker
def test_a_refused_start_creates_no_topics(
    cardinal_broker: EmbeddedKafka, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, chain = archive(tmp_path / "archive", HOLE), fresh_chain_id()
    to = f"kafka://{cardinal_broker.bootstrap}"
    for number in (0, 7, 11):
        status, said = produce(capfd, folder, to, chain, "--start", str(number))
        assert (status, f"not block {number}:" in said) == (2, True), said
    assert not [topic for topic in list_topics(to) if str(chain) in topic]


def test_blocks_before_a_gap_of_the_archive_are_published_and_the_gap_is_reported(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, to = archive(tmp_path / "archive", HOLE), f"file://{tmp_path}/log"
    status, said = produce(capfd, folder, to, 1337)
    assert status == 1, said
    assert "lacks block 6" in said
    assert "4 blocks, " in said
    status, said = produce(capfd, folder, to, 1337, "--start", "2")
    assert status == 1, said
    assert "continues after block 5" in said
    assert "lacks block 6" in said


def test_start_is_ignored_for_an_existing_stream(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, to = archive(tmp_path / "archive", range(4)), f"file://{tmp_path}/log"
    status, said = produce(capfd, folder, to, 1337, "--start", "0")
    assert status == 0, said
    for number in range(3):
        (folder / f"{number}.json.gz").unlink()
    status, said = produce(capfd, folder, to, 1337, "--start", "0")
    assert status == 0, said
    assert "continues after block 3" in said


@asynchronous
async def test_an_archive_cannot_continue_a_stream_that_begins_elsewhere(tmp_path: Path) -> None:
    feed = ArchiveFeed(archive(tmp_path / "archive", (1, 3, 5, 7, 8)), chain_id=1337)
    for start, until, says in (
        (0, None, "holds blocks 1, 3, 5 and others up to 8, not block 0"),
        (9, None, "not block 9"),
        (7, 6, "a stream from block 7 cannot stop at block 6"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            await everything(feed.follow(start=start, until=until))
        with pytest.raises(ConfigurationError, match=says):
            await feed.check_beginning(start, until)
        assert feed.target is None, "nothing will come"
    assert [payload.number for payload in await everything(feed.follow(start=7))] == [7, 8]
    await feed.check_beginning(7, None)
