"""The transports under the contract, as fixtures; :mod:`rooms` says how each is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import rooms
from rooms import Room

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRANSPORTS = [
    "memory",
    "file",
    pytest.param("file-interval", marks=pytest.mark.slow),
    "mux",
    "websocket",
    pytest.param("websocket-narrow", marks=pytest.mark.slow),
    pytest.param("kafka", marks=pytest.mark.broker),
]


def _open(name: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Room]:
    match name:
        case "memory":
            with rooms.memory() as room:
                yield room
        case "kafka":
            yield rooms.kafka(request.getfixturevalue("cardinal_broker").bootstrap)
        case "file":
            yield rooms.file(folder)
        case "file-interval":
            yield rooms.file(folder, "&fsync=never")
        case "mux":
            yield rooms.mux(folder)
        case "websocket":
            with rooms.websocket() as room:
                yield room
        case "websocket-narrow":
            # A ring and a window that hold next to nothing: clients fall out of the one and fill the other.
            with rooms.websocket("?window.bytes=2000", buffer_bytes=2_000, catch_up_max=2) as room:
                yield room
        case _:
            yield Room("null://", rooms.names(), lambda *_: None, lambda: None, members=0)


@pytest.fixture(params=TRANSPORTS)
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    """Transports that give back what they are given."""
    for room in _open(request.param, request, tmp_path / "log"):
        yield room
        room.close()


@pytest.fixture(params=[*TRANSPORTS, "null"])
def any_room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    """All of them."""
    for room in _open(request.param, request, tmp_path / "log"):
        yield room
        room.close()
