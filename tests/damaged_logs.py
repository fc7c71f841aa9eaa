"""Folders of several segments, and what may happen to them."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from blocks import DEADLINE
from cardinal.errors import LogDamagedError
from cardinal.producer import Producer
from cardinal.transports import open_source
from cardinal.transports.file.container import SYNC_SIZE, read_header
from cardinal.transports.file.folders import numbers_of, path_of

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.protocols.streams import Record
    from cardinal.protocols.streams.payload import Payload

COUNT = 40
"""Blocks that a folder has at least."""

LATER = 4
"""Segments that it has at least, and Avro blocks of the newest one."""


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


def middle(folder: Path) -> Path:
    """Bits of a segment in the middle are others."""
    path = path_of(folder, numbers_of(folder)[2])
    places = _places(path)
    _flip(path, (places[-2] + places[-1]) // 2)
    return path


def header(folder: Path) -> Path:
    """Bits of the header of a segment in the middle are others."""
    path = path_of(folder, numbers_of(folder)[2])
    _flip(path, 3)
    return path


def torn(folder: Path) -> Path:
    """A segment in the middle is cut off in its last record."""
    path = path_of(folder, numbers_of(folder)[2])
    os.truncate(path, path.stat().st_size - 9)
    return path


def newest(folder: Path) -> Path:
    """Bits of the newest segment are others, and whole records follow."""
    path = path_of(folder, numbers_of(folder)[-1])
    places = _places(path)
    _flip(path, (places[1] + places[2]) // 2)
    return path


def recording(folder: Path, app: Application, payloads: list[Payload]) -> str:
    """A stream in a folder, on several segments, of which the newest has several Avro blocks; its URL."""
    url = f"file://{folder}?segment.bytes=4000&fsync=never"
    with Producer(url, app, producer_id="one") as producer:
        for payload in payloads:
            producer.add(payload).result(DEADLINE)
            numbers = numbers_of(folder)
            if payload.number > COUNT and len(numbers) > LATER and len(_places(path_of(folder, numbers[-1]))) > LATER:
                return f"file://{folder}"
    raise AssertionError(numbers)


def read_before(url: str, app: Application) -> list[Record]:
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
