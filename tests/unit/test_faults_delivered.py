"""What the drills' consumer stores is read as it was given, right or wrong."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.events import ChainUpdate
from cardinal.server.faults import delivered
from cardinal.testing.generator import ChainGenerator
from cardinal.testing.history import Delivery, History, check, mined

BLOCKS = ChainGenerator(1).fork("1a 2a 3a 4a")
CURSOR = Cursor(bytes(16), "generated", "generated:1", 0, (), 0, {}, {}, (), ())
UPDATES = [ChainUpdate(seq, (), (block,), None, lambda: CURSOR) for seq, block in enumerate(BLOCKS, 1)]


def stored(folder: Path, updates: list[ChainUpdate]) -> list[Delivery]:
    database = folder / "delivered.sqlite"
    store = delivered.opened(database)
    for update in updates:
        delivered.add(store, update, ())
    store.close()
    return delivered.deliveries(database)


def test_updates_that_came_in_the_wrong_order_are_seen_in_that_order(tmp_path: Path) -> None:
    given = [UPDATES[0], UPDATES[2], UPDATES[1], UPDATES[3]]
    found = stored(tmp_path, given)
    assert found == [Delivery.of(update) for update in given]
    wrong = check(History(mined(BLOCKS), BLOCKS[-1].hash, frozenset(), {}, found))
    assert wrong[0] == "missing: update 3..3 follows 1"


def test_the_head_is_what_was_added_last(tmp_path: Path) -> None:
    stored(tmp_path, [UPDATES[0], UPDATES[2], UPDATES[1]])
    assert delivered.head(tmp_path / "delivered.sqlite") == BLOCKS[1].number


def test_an_update_that_is_given_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=r"updates\.seq"):
        stored(tmp_path, [UPDATES[0], UPDATES[0]])
