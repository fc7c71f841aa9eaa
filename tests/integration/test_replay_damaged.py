"""Playing a recording that is damaged: what stands before the damage arrives whole, and then the damage is told."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from commands import Processes

from blocks import DEADLINE, Blocks, hash_of, line
from cardinal import apps
from cardinal.errors import LogDamagedError
from cardinal.producer import Producer
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import SEALED_HEADER
from cardinal.testing.memory import MemoryBroker
from cardinal.transports import open_source
from cardinal.transports.file.container import SYNC_SIZE, read_header
from cardinal.transports.file.folders import numbers_of, path_of
from recordings import play_all, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.protocols.streams import Record

COUNT = 40
CHAIN = 7
LATER = 4
"""Avro blocks of the newest segment."""


@pytest.fixture
def other() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"there-{uuid.uuid4().hex}", partitions=2) as broker:
        yield broker


def _places(path: Path) -> list[int]:
    """Where the Avro blocks of a segment begin, and its end."""
    data = path.read_bytes()
    with path.open("rb") as file:
        header = read_header(file)
    places, at = [header.size], header.size
    while (at := data.find(header.sync, at)) >= 0:
        at += SYNC_SIZE
        places.append(at)
    return places


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def _middle(folder: Path) -> Path:
    """Bits of a segment in the middle are others."""
    path = path_of(folder, numbers_of(folder)[2])
    places = _places(path)
    _flip(path, (places[-2] + places[-1]) // 2)
    return path


def _torn(folder: Path) -> Path:
    """A segment in the middle is cut off in its last record."""
    path = path_of(folder, numbers_of(folder)[2])
    os.truncate(path, path.stat().st_size - 9)
    return path


def _newest(folder: Path) -> Path:
    """Bits of the newest segment are others, and whole records follow."""
    path = path_of(folder, numbers_of(folder)[-1])
    places = _places(path)
    _flip(path, (places[1] + places[2]) // 2)
    return path


DAMAGES = pytest.mark.parametrize("damaged", [_middle, _torn, _newest])


def _recording(folder: Path, app: Application, payloads: list[Payload]) -> str:
    """A stream in a folder, on several segments, of which the newest has several Avro blocks; its URL."""
    url = f"file://{folder}?segment.bytes=4000&fsync=never"
    with Producer(url, app, producer_id="one") as producer:
        for payload in payloads:
            producer.add(payload).result(DEADLINE)
            numbers = numbers_of(folder)
            if payload.number > COUNT and len(numbers) > LATER and len(_places(path_of(folder, numbers[-1]))) > LATER:
                return f"file://{folder}"
    raise AssertionError(numbers)


def _before(url: str, app: Application) -> list[Record]:
    """What can be read before the damage."""
    source = open_source(url, app)
    source.assign(dict.fromkeys(source.partitions(), 0))
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    with contextlib.suppress(LogDamagedError):
        while True:
            assert time.monotonic() < deadline, "nothing is said of the damage"
            found += source.poll(100, 0.05)
    source.close()
    return [record for record in found if record.key]


def _sealed(records: list[Record]) -> set[bytes]:
    return {record.key for record in records if SEALED_HEADER in dict(record.headers)}


@DAMAGES
@pytest.mark.parametrize("as_they_are", [True, False])
def test_what_stands_before_the_damage_is_played_whole_and_then_the_damage_is_told(
    other: MemoryBroker, tmp_path: Path, damaged: Callable[[Path], Path], *, as_they_are: bool
) -> None:
    url = _recording(tmp_path, Blocks(), line(1, 2 * COUNT))
    path = damaged(tmp_path)
    before = _before(url, Blocks())
    assert len(_sealed(before)) > LATER
    with pytest.raises(LogDamagedError, match=str(path)):
        play_all(tmp_path, other.url, as_they_are=as_they_are)
    played = [record for record in other.records() if record.key]
    assert sorted(record.key for record in played) == sorted(record.key for record in before)
    assert _sealed(played) == _sealed(before)


@DAMAGES
def test_the_command_says_what_it_played_and_what_is_damaged(tmp_path: Path, damaged: Callable[[Path], Path]) -> None:
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
    url, target = _recording(tmp_path / "one", app, payloads), f"file://{tmp_path}/two"
    path = damaged(tmp_path / "one")
    before = _before(url, app)
    with Processes(tmp_path) as processes:
        status, _, said = processes.run("replay", url, "--to", target)
        assert status == 1, said
        assert f", {len(_sealed(before))} blocks sealed, " in said
        assert said.splitlines()[-1].startswith(f"error: {path} is damaged at byte ")
        status, lines, said = processes.run("replay", url)
        assert status == 1, said
        assert f"error: {path} is damaged at byte " in said
    assert _sealed(records_of(target, app)) == _sealed(before)
    assert sum("cardinal-sealed" in printed for printed in lines.splitlines()) == len(_sealed(before))


def test_a_torn_record_at_the_end_is_what_a_crash_leaves_and_ends_a_recording(
    other: MemoryBroker, tmp_path: Path
) -> None:
    url = _recording(tmp_path, Blocks(), line(1, 2 * COUNT))
    newest = path_of(tmp_path, numbers_of(tmp_path)[-1])
    os.truncate(newest, newest.stat().st_size - 9)
    before = [record for record in records_of(url) if record.key]
    play_all(tmp_path, other.url)
    played = [record for record in other.records() if record.key]
    assert sorted(record.key for record in played) == sorted(record.key for record in before)
    assert _sealed(played) == _sealed(before)
