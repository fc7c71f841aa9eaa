"""Checker of histories, and the store of the cases' consumer: each kind of damage is named."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from faults import store
from faults.history import Delivery, History, Ledger, Seen, check, content, mined
from faults.process import variables

from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.events import ChainUpdate
from cardinal_devkit.testing.generator import ChainGenerator, as_received

if TYPE_CHECKING:
    from pathlib import Path

Damage = Callable[[History], History]


@pytest.fixture
def history() -> History:
    """Every block of a chain with reorgs, acknowledged, stored, and delivered move by move."""
    moves = ChainGenerator(7).moves(40)
    blocks = {payload.hash: as_received(payload) for move in moves for payload in move.mined}
    deliveries, seq = [], 0
    for move in moves:
        removed, added = (tuple(blocks[ref.hash] for ref in part) for part in (move.removed, move.added))
        seq += len(removed) + len(added)
        deliveries.append(Delivery.of(ChainUpdate(seq, removed, added)))
    return History(
        mined=mined(blocks.values()),
        head=moves[-1].added[-1].hash,
        acknowledged=frozenset(blocks),
        stored={block: content(payload) for block, payload in blocks.items()},
        delivered=deliveries,
    )


def test_a_true_history_holds(history: History) -> None:
    assert any(update.removed for update in history.delivered)
    assert check(history) == []


def lose(history: History) -> History:
    block = sorted(history.acknowledged)[3]
    return replace(history, stored={key: value for key, value in history.stored.items() if key != block})


def store_of(history: History, block: bytes) -> History:
    return replace(history, stored={**history.stored, block: b"other"})


def delivered(history: History, *updates: Delivery) -> History:
    return replace(history, delivered=list(updates))


def each(history: History, change: Callable[[Delivery], Delivery]) -> History:
    return delivered(history, *map(change, history.delivered))


def with_last(history: History, *updates: Delivery) -> History:
    """Other updates in the place of the last one."""
    return delivered(history, *history.delivered[:-1], *updates)


def with_content(history: History, digest: bytes) -> History:
    last = history.delivered[-1]
    return with_last(history, last._replace(added=tuple(block._replace(digest=digest) for block in last.added)))


def add_a_stranger(history: History) -> History:
    last = history.delivered[-1]
    stranger = Delivery(last.seq + 1, last.seq + 1, (), (Seen(41, b"?" * 32, b"other"),))
    return with_last(history, last, stranger)


def begin_late(history: History) -> History:
    first = next(index for index, move in enumerate(history.delivered) if index and not move.removed)
    return delivered(history, *history.delivered[first:])


DAMAGE: dict[str, tuple[Damage, str]] = {
    "lose": (lose, "lost"),
    "spoil stored": (lambda h: store_of(h, h.head), "invented"),
    "store a stranger": (lambda h: store_of(h, b"?" * 32), "invented"),
    "double": (lambda h: delivered(h, *h.delivered[:5], *h.delivered[4:]), "doubled"),
    "skip": (lambda h: delivered(h, *h.delivered[:5], *h.delivered[6:]), "missing"),
    "begin with another number": (
        lambda h: each(h, lambda one: one._replace(first_seq=one.first_seq + 5, seq=one.seq + 5)),
        "missing",
    ),
    "renumber": (lambda h: with_last(h, h.delivered[-1]._replace(seq=h.delivered[-1].seq + 1)), "numbers"),
    "removed backwards": (lambda h: each(h, lambda one: one._replace(removed=one.removed[::-1])), "order"),
    "added backwards": (lambda h: each(h, lambda one: one._replace(added=one.added[::-1])), "order"),
    "change content": (lambda h: with_content(h, b"other"), "invented"),
    "take content away": (lambda h: with_content(h, b""), "empty"),
    "add a stranger": (add_a_stranger, "invented"),
    "stop early": (with_last, "chain"),
    "begin late": (begin_late, "chain"),
    "deliver nothing": (delivered, "chain"),
}


@pytest.mark.parametrize(("damage", "kind"), DAMAGE.values(), ids=DAMAGE)
def test_each_damage_is_named(history: History, damage: Damage, kind: str) -> None:
    found = check(damage(history))
    assert found
    assert kind in {sentence.split(":")[0] for sentence in found}


def test_a_block_that_was_never_acknowledged_may_be_missing(history: History) -> None:
    unsure = replace(lose(history), acknowledged=frozenset())
    assert check(unsure) == []


def test_content_is_the_same_however_it_travels_and_differs_by_everything() -> None:
    payload = next(
        p for p in ChainGenerator(3).payloads(20) if p.updates and p.deletes and as_received(p).updates != p.updates
    )
    assert content(payload) == content(as_received(payload))
    path = next(iter(payload.updates))
    others = [
        replace(payload, weight=payload.weight + 1),
        replace(payload, updates={**payload.updates, path: payload.updates[path] + b"1"}),
        replace(payload, updates={**payload.updates, "more": b""}),
        replace(payload, deletes=frozenset()),
        replace(payload, deletes=payload.deletes | {"more"}),
        replace(payload, sub_batches={}),
        replace(payload, parent=b"p" * 32),
    ]
    assert len({content(payload), *map(content, others)}) == len(others) + 1


@pytest.mark.process
def test_a_ledger_holds_what_a_killed_process_had_written(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from faults.history import Ledger
ledger = Ledger(Path(sys.argv[1]))
for number in range(10**9):
    ledger.write(number.to_bytes(32, "big"))
    print(number, flush=True)
"""
    ledger = Ledger(tmp_path / "ledger")
    assert (len(ledger), ledger.read()) == (0, frozenset())
    with subprocess.Popen(
        [sys.executable, "-c", script, ledger.path], stdout=subprocess.PIPE, text=True, env=variables()
    ) as writer:
        assert writer.stdout is not None
        said = -1
        while said < 100:
            said = int(writer.stdout.readline())
        writer.kill()
    written = ledger.read()
    assert len(ledger) == len(written)
    assert written == {number.to_bytes(32, "big") for number in range(len(written))}
    assert len(written) > said


# --- the consumer's store -------------------------------------------------------------------------------------

BLOCKS = ChainGenerator(1).fork("1a 2a 3a 4a")
CURSOR = Cursor(bytes(16), "generated", "generated:1", 0, (), 0, {}, {}, (), ())
UPDATES = [ChainUpdate(seq, (), (block,), None, lambda: CURSOR) for seq, block in enumerate(BLOCKS, 1)]


def stored(folder: Path, updates: list[ChainUpdate]) -> list[Delivery]:
    database = folder / "delivered.sqlite"
    with closing(store.opened(database)) as connection:
        for update in updates:
            store.add(connection, update, ())
    return store.deliveries(database)


def test_updates_that_came_in_the_wrong_order_are_seen_in_that_order(tmp_path: Path) -> None:
    given = [UPDATES[0], UPDATES[2], UPDATES[1], UPDATES[3]]
    found = stored(tmp_path, given)
    assert found == [Delivery.of(update) for update in given]
    wrong = check(History(mined(BLOCKS), BLOCKS[-1].hash, frozenset(), {}, found))
    assert wrong[0] == "missing: update 3..3 follows 1"


def test_the_head_is_what_was_added_last(tmp_path: Path) -> None:
    stored(tmp_path, [UPDATES[0], UPDATES[2], UPDATES[1]])
    assert store.head(tmp_path / "delivered.sqlite") == BLOCKS[1].number


def test_an_update_that_is_given_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=r"updates\.seq"):
        stored(tmp_path, [UPDATES[0], UPDATES[0]])
