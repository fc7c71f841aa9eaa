"""Replay of a damaged recording: everything before the damage arrives, and then the damage is reported."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest
from commands import run_here

from blocks import Blocks, hash_of, line
from cardinal import apps
from cardinal.errors import LogDamagedError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import SEALED_HEADER
from cardinal.testing.memory import MemoryBroker
from cardinal.transports.file.folders import numbers_of, path_of
from damaged_logs import COUNT, LATER, header, middle, newest, read_before, recording, torn
from recordings import play_all, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cardinal.protocols.streams import Record

CHAIN = 7


@pytest.fixture
def other() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"there-{uuid.uuid4().hex}", partitions=2) as broker:
        yield broker


DAMAGES = pytest.mark.parametrize("damaged", [middle, header, torn, newest])


def _sealed(records: list[Record]) -> set[bytes]:
    return {record.key for record in records if SEALED_HEADER in dict(record.headers)}


@DAMAGES
@pytest.mark.parametrize("as_they_are", [True, False])
def test_records_before_a_damage_are_replayed_before_it_is_reported(
    other: MemoryBroker, tmp_path: Path, damaged: Callable[[Path], Path], *, as_they_are: bool
) -> None:
    url = recording(tmp_path, Blocks(), line(1, 2 * COUNT))
    path = damaged(tmp_path)
    before = read_before(url, Blocks())
    assert len(_sealed(before)) > LATER
    with pytest.raises(LogDamagedError, match=str(path)):
        play_all(tmp_path, other.url, as_they_are=as_they_are)
    played = [record for record in other.records() if record.key]
    assert sorted(record.key for record in played) == sorted(record.key for record in before)
    assert _sealed(played) == _sealed(before)


@DAMAGES
def test_replay_prints_its_records_and_the_damage(
    tmp_path: Path, damaged: Callable[[Path], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    app = apps.get("evm", chain_id=CHAIN)
    stem = f"c/{CHAIN:x}/b"
    payloads = [
        Payload(
            number,
            hash_of(f"{number}a"),
            hash_of(f"{number - 1}a"),
            number,
            {f"{stem}/{number}a/{kind}": b"%d" % number for kind in ("h", "t/0", "t/1", "r/0", "l/0/0")},
        )
        for number in range(1, 2 * COUNT)
    ]
    url, target = recording(tmp_path / "one", app, payloads), f"file://{tmp_path}/two"
    path = damaged(tmp_path / "one")
    before = read_before(url, app)
    status, _, said = run_here(capfd, "replay", "--from", url, "--to", target)
    assert status == 1, said
    assert f", {len(_sealed(before))} blocks sealed, " in said
    assert said.splitlines()[-1].startswith(f"error: {path} is damaged at byte ")
    status, lines, said = run_here(capfd, "replay", "--from", url)
    assert status == 1, said
    assert f"error: {path} is damaged at byte " in said
    assert _sealed(records_of(target, app)) == _sealed(before)
    assert sum("cardinal-sealed" in printed for printed in lines.splitlines()) == len(_sealed(before))


def test_a_torn_record_at_the_end_counts_as_the_end(other: MemoryBroker, tmp_path: Path) -> None:
    url = recording(tmp_path, Blocks(), line(1, 2 * COUNT))
    segment = path_of(tmp_path, numbers_of(tmp_path)[-1])
    os.truncate(segment, segment.stat().st_size - 9)
    before = [record for record in records_of(url) if record.key]
    play_all(tmp_path, other.url)
    played = [record for record in other.records() if record.key]
    assert sorted(record.key for record in played) == sorted(record.key for record in before)
    assert _sealed(played) == _sealed(before)
