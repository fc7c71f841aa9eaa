"""The law of the lake: any cuts, any replays and any kills leave what an uninterrupted write leaves."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeError
from cardinal_spark.lake import AsOf, last_committed
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.maintenance import compact
from cardinal_spark.lake.opened import OpenTables
from cardinal_spark.lake.seqs import SeqRuns
from cardinal_spark.lake.state import find_state
from cardinal_spark.testing import Script, commit_batch, image, image_of
from examples import examples

if TYPE_CHECKING:
    from cardinal_spark.rows import RawRow

COMMITS = 5
"""Transactions of a batch at most: the fence and the cut of a table that goes on; payload, events, canonical."""


class Killed(Exception):  # noqa: N818 - what stands for a kill is no error of the lake
    """The driver dies after a transaction."""


class Stream:
    """Updates that a source could emit: growth, reorgs to longer and shorter chains, blocks that come back."""

    def __init__(self, draw: st.DrawFn | st.DataObject) -> None:
        self._draw = draw.draw if isinstance(draw, st.DataObject) else draw
        self._forks = 0
        self.texts: list[str] = []
        self.updates: list[list[RawRow]] = []
        self._script = Script()
        self._left: list[str] = []

    def go_on(self) -> None:
        """Draw one more update."""
        names = self._script.chain
        kind = self._draw(st.sampled_from(("grow", "grow", "fork", "return"))) if names else "grow"
        depth = 0 if kind == "grow" else self._draw(st.integers(1, len(names)))
        kept, removed = names[: len(names) - depth], names[len(names) - depth :]
        added = self._returning(len(kept)) if kind == "return" else []
        if not added:
            self._forks += 1
            added = [f"{len(kept) + 1 + index}f{self._forks}" for index in range(self._draw(st.integers(1, 3)))]
        self._left = removed
        self._take(" ".join([*(f"-{name}" for name in reversed(removed)), *added]))

    def forget_after(self, count: int) -> None:
        """Drop the updates after some: a source that restarts from the sink may see other forks."""
        texts = self.texts[:count]
        self.texts, self.updates, self._script, self._left = [], [], Script(), []
        for text in texts:
            self._take(text)

    def _returning(self, height: int) -> list[str]:
        """The blocks that left last time, where they link to the one at ``height`` again."""
        links = self._left and int(self._left[0].partition("f")[0]) == height + 1
        return self._left if links else []

    def _take(self, text: str) -> None:
        self.texts.append(text)
        self.updates.append(self._script.update(text))


def flat(updates: list[list[RawRow]]) -> list[RawRow]:
    return list(chain.from_iterable(updates))


def split(rows: list[RawRow], tasks: int) -> list[list[RawRow]]:
    """The rows of a batch over some tasks, as partitions would have them."""
    return [rows[index::tasks] for index in range(tasks)]


@settings(
    max_examples=examples(25),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_cuts_replays_and_kills_leave_no_trace(data: st.DataObject) -> None:
    """Batches of any size, kills after any transaction, replays under the old and under new checkpoints.

    Two drivers take turns, each with the tables that it has kept open; small files are joined between batches.
    """
    stream = Stream(data)
    for _ in range(data.draw(st.integers(1, 7), label="updates")):
        stream.go_on()
    with tempfile.TemporaryDirectory() as folder:
        place = LakeLocation.of(folder)
        position, kills = 0, 0
        drivers = [OpenTables(), OpenTables()]
        while position < len(stream.updates):
            end = position + data.draw(st.integers(1, len(stream.updates) - position), label="cut")
            rows = flat(stream.updates[position:end])
            kill_after = data.draw(st.integers(1, COMMITS + 2), label="kill after") if kills < 4 else COMMITS + 1
            which = data.draw(st.integers(0, 1), label="driver")
            if survives(place, rows, data.draw(st.integers(1, 3), label="tasks"), kill_after, drivers[which]):
                position = end
                if data.draw(st.sampled_from((False, False, True)), label="compact"):
                    compact(place, min_files=2)
                continue
            kills += 1
            drivers[which] = OpenTables()
            assert_readable(place, stream)
            restart = data.draw(st.sampled_from(("same", "from start", "from sink")), label="restart")
            if restart == "from start":
                position = 0
            elif restart == "from sink":
                position = updates_held(place, stream)
                stream.forget_after(position)
                if data.draw(st.booleans(), label="other forks") or position == len(stream.updates):
                    stream.go_on()
        assert image(folder) == image_of(flat(stream.updates))


def survives(place: LakeLocation, rows: list[RawRow], tasks: int, kill_after: int, opened: OpenTables) -> bool:
    """Commit a batch; False where the driver was killed after that many transactions, or came second."""
    done = 0

    def count(table: str) -> None:
        nonlocal done
        del table
        done += 1
        if done == kill_after:
            raise Killed

    try:
        commit_batch(place, split(rows, tasks), on_commit=count, opened=opened)
    except Killed:
        return False
    except LakeError as error:
        if "another query committed" not in str(error):
            raise
        return False
    return True


def updates_held(place: LakeLocation, stream: Stream) -> int:
    """How many updates the ledger holds: what ``restartFrom=sink`` goes on after."""
    held = last_committed(place.root)
    return 0 if held is None else sum(update[-1].seq <= held.seq for update in stream.updates)


def assert_readable(place: LakeLocation, stream: Stream) -> None:
    """Whatever was killed, readers see exactly the state after some update."""
    state = find_state(place)
    if state is not None:
        rows = [row for row in flat(stream.updates) if row.seq <= state.seq]
        assert image(place.root) == image_of(rows)


@settings(max_examples=examples(15), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_lake_shows_every_state_that_it_ever_had(data: st.DataObject) -> None:
    """As of any seq: what was there after the last whole update. As of a block: when it had just joined."""
    stream = Stream(data)
    for _ in range(data.draw(st.integers(2, 7), label="updates")):
        stream.go_on()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        row._replace(published_at=_micros(start + timedelta(seconds=row.update_id))) for row in flat(stream.updates)
    ]
    with tempfile.TemporaryDirectory() as folder:
        place = LakeLocation.of(folder)
        cut = data.draw(st.integers(1, len(stream.updates)), label="cut")
        border = sum(map(len, stream.updates[:cut]))
        commit_batch(place, [rows[:border]])
        commit_batch(place, [rows[border:]])
        for update in stream.updates:
            first, last = update[0].seq, update[-1].seq
            there = image_of(rows[:last])
            assert image(folder, AsOf(seq=last)) == there
            if last > first > 1:
                assert image(folder, AsOf(seq=last - 1)) == image_of(rows[: first - 1])
            assert image(folder, AsOf(time=start + timedelta(seconds=first))) == there
        assert image(folder, AsOf(seq=rows[-1].seq + 5)) == image(folder) == image_of(rows)
        for number, block_hash, seq in image(folder).chain:
            then = image(folder, AsOf(block=number))
            assert then == image_of(rows[:seq])
            assert then.chain[-1] == (number, block_hash, seq)
        with pytest.raises(LakeError, match="no block published by then"):
            image(folder, AsOf(time=start))
        with pytest.raises(LakeError, match="has no block"):
            image(folder, AsOf(block=10_000))


def _micros(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"asofseq": "x"}, "asOfSeq must be a number"),
        ({"asofblock": "-1"}, "asOfBlock must be a number"),
        ({"asoftime": "noon"}, "write the time as of which to read as"),
        ({"asoftime": "2026-01-31T12:00:00"}, "needs its zone"),
        ({"asofseq": "1", "asofblock": "1"}, "choose one of asOfSeq"),
    ],
)
def test_a_state_that_cannot_be_meant_is_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        AsOf.of(given)


@given(st.sets(st.integers(0, 60)), st.lists(st.integers(-5, 70)))
def test_runs_of_seqs_hold_what_they_were_made_of(seqs: set[int], queried: list[int]) -> None:
    runs = SeqRuns.of(np.array(sorted(seqs, key=lambda seq: -seq), np.int64))
    assert runs.holds(np.array(queried, np.int64)).tolist() == [seq in seqs for seq in queried]
    assert len(runs.firsts) == len({seq for seq in seqs if seq - 1 not in seqs})
