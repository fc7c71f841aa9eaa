"""Cases on which mature peers failed, each on the streams core as a consumer drives it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.protocols.streams import (
    Batch,
    ChainUpdate,
    Cursor,
    Divergence,
    Event,
    Follower,
    FollowerSettings,
    Payload,
    Record,
    Routed,
    decode,
    encode,
)
from cardinal.protocols.streams.wire.messages import Update
from streams import SCHEMA, Log, block, chain, messages, name

SETTINGS = FollowerSettings("test", "test:1", prefixes=tuple(SCHEMA), reorg_threshold=8)


class Reader:
    """A consumer with a store: the chain as its updates make it."""

    def __init__(self, log: Log, settings: FollowerSettings = SETTINGS) -> None:
        self.log = log
        self.settings = settings
        self.store: list[str] = []
        self.seq = 0
        self.updates: list[ChainUpdate] = []
        self.events: list[Event] = []
        self.heights: list[int] = []
        self.follower = Follower(settings)
        self.at = dict.fromkeys(log.partitions, 0)

    def read(self, seed: int = 0, limit: int | None = None) -> list[ChainUpdate]:
        """Reads what is there, or so many records of it, one by one, partitions interleaved."""
        before = len(self.updates)
        for record in self.log.read(seed, self.at)[:limit]:
            self.give([record])
        return self.updates[before:]

    def give(self, records: Sequence[Record]) -> None:
        self.at |= {(record.topic, record.partition): record.offset + 1 for record in records}
        for item in self.follower.step(records, self.at, self.log.ends()).items:
            if isinstance(item, ChainUpdate):
                self.apply(item)
            else:
                self.events.append(item)

    def apply(self, update: ChainUpdate) -> None:
        """One transaction: both sides of a reorg, and the cursor."""
        assert update.first_seq == self.seq + 1
        for gone in update.removed:
            assert self.store.pop() == name(gone.hash)
        self.store += [name(added.hash) for added in update.added]
        self.seq = update.seq
        self.updates.append(update)
        self.heights.append(len(self.store))

    def restart(self, cursor: Cursor | str | None = None) -> None:
        """A new process with the stored cursor, by default the last update's, as text."""
        text = str(cursor if cursor is not None else self.updates[-1].cursor)
        self.follower = Follower(self.settings, Cursor.parse(text))
        self.at = self.follower.begin_at({where: (0, end) for where, end in self.log.ends().items()})


def publish(log: Log, payloads: Iterable[Payload]) -> None:
    for payload in payloads:
        log.append(messages(payload))


def blocks(shape: str, **weights: int) -> dict[str, Payload]:
    return {
        name(payload.hash): payload for payload in chain(shape, {key[1:]: weight for key, weight in weights.items()})
    }


def removed(update: ChainUpdate) -> list[str]:
    return [name(gone.hash) for gone in update.removed]


def added(update: ChainUpdate) -> list[str]:
    return [name(one.hash) for one in update.added]


seeds = st.integers(0, 999)


@given(seeds)
def test_a_reorg_during_a_rollback_is_undone_from_the_chain_that_was_delivered(seed: int) -> None:
    """While the consumer undoes 3a 2a for b, chain c overtakes b below the same ancestor."""
    there = blocks("1a 2a 3a | 1a 2b 3b 4b | 1a 2c 3c 4c 5c")
    log = Log()
    publish(log, (there[key] for key in ("1a", "2a", "3a")))
    reader = Reader(log)
    reader.read(seed)
    publish(log, (there[key] for key in ("2b", "3b", "4b", "2c", "3c", "4c", "5c")))
    reader.read(seed)
    assert reader.store == ["1a", "2c", "3c", "4c", "5c"]
    for update in reader.updates:
        assert not update.removed or removed(update)[-1] in {"2a", "2b"}


def test_a_reorg_that_comes_when_a_rollback_was_stored_only_in_half_repeats_the_whole_rollback() -> None:
    """The store did not commit the switch to b; resumed, it gets one update to c that removes what it holds."""
    there = blocks("1a 2a 3a | 1a 2b 3b 4b | 1a 2c 3c 4c 5c")
    log = Log()
    publish(log, (there[key] for key in ("1a", "2a", "3a")))
    reader = Reader(log)
    reader.read()
    stored, store, seq = str(reader.updates[-1].cursor), list(reader.store), reader.seq
    publish(log, (there[key] for key in ("2b", "3b", "4b")))
    assert removed(reader.read()[-1])[-1] == "2a"
    reader.store, reader.seq = store, seq
    publish(log, (there[key] for key in ("2c", "3c", "4c", "5c")))
    reader.restart(stored)
    switched = [update for update in reader.read(5) if update.removed]
    assert removed(switched[0]) == ["3a", "2a"]
    assert reader.store == ["1a", "2c", "3c", "4c", "5c"]


@given(seeds)
def test_a_reorg_of_a_block_that_is_queued_but_not_applied_never_shows_it(seed: int) -> None:
    """3a waits for 2a, which is incomplete; by the time 2a comes, b has won."""
    there = blocks("1a 2a 3a | 1a 2b 3b 4b")
    log = Log()
    late, *rest = messages(there["2a"])
    publish(log, [there["1a"]])
    reader = Reader(log)
    reader.read(seed)
    log.append(rest)
    publish(log, [there["3a"]])
    reader.read(seed)
    assert reader.store == ["1a"]
    publish(log, (there[key] for key in ("2b", "3b", "4b")))
    reader.read(seed)
    log.append([late])
    reader.read(seed)
    assert reader.store == ["1a", "2b", "3b", "4b"]
    assert all(not update.removed for update in reader.updates)


@given(seeds)
def test_a_height_after_a_reorg_to_a_shorter_chain_is_the_new_heads(seed: int) -> None:
    """A heavier chain may be shorter: the old height 4 must not stand."""
    there = blocks("1a 2a 3a 4a | 1a 2b 3b", w3b=99, w2b=3)
    log = Log()
    publish(log, (there[key] for key in ("1a", "2a", "3a", "4a")))
    reader = Reader(log)
    reader.read(seed)
    publish(log, (there[key] for key in ("2b", "3b")))
    reader.read(seed)
    assert reader.store == ["1a", "2b", "3b"]
    assert reader.follower.orderer.head == there["3b"].ref
    cursor = Cursor.parse(str(reader.updates[-1].cursor))
    assert cursor.head == there["3b"].ref
    assert all(ref.number <= 3 for ref in cursor.ring)
    reader.restart()
    assert reader.read(seed) == []
    publish(log, [block("4b", "3b", 100)])
    assert added(reader.read(seed)[-1]) == ["4b"]


@given(seeds)
def test_a_lagging_producer_makes_no_false_deep_reorg(seed: int) -> None:
    """A node far behind publishes old orphans and repeats the old chain; the head stays, and nothing is removed."""
    there = blocks("1a 2a 3a 4a 5a 6a 7a 8a 9a 10a 11a 12a | 1a 2b 3b 4b")
    log = Log()
    ahead = [there[f"{number}a"] for number in range(1, 13)]
    publish(log, ahead)
    reader = Reader(log)
    reader.read(seed)
    publish(log, [*ahead[:6], there["2b"], there["3b"], there["4b"], *ahead[:4]])
    reader.read(seed)
    assert reader.store == [f"{number}a" for number in range(1, 13)]
    assert all(not update.removed for update in reader.updates)


def without_logs(payload: Payload) -> list[Routed]:
    """A producer's block of a null answer: the same block, a count of 0 where there are logs, and no logs."""
    *content, sealed = messages(payload)
    batch = decode(sealed.key, sealed.value)
    assert isinstance(batch, Batch)
    entries = {path: Update() if path.endswith("/l/") else entry for path, entry in batch.updates.items()}
    assert entries != dict(batch.updates)
    key, value = encode(Batch(batch.hash, batch.number, batch.weight, batch.parent, entries))
    return [*(message for message in content if message.topic != "logs"), Routed(sealed.topic, key, value)]


@pytest.mark.parametrize("null_first", [True, False])
def test_a_null_answer_taken_for_no_logs_is_reported(null_first: bool) -> None:  # noqa: FBT001 - a case's name
    payload = block("1a", "0g")
    said = [without_logs(payload), messages(payload)]
    log = Log()
    for part in said if null_first else reversed(said):
        log.append(part)
    reader = Reader(log)
    reader.read()
    reports = [event for event in reader.events if isinstance(event, Divergence)]
    assert reader.store == ["1a"]
    assert any(event.key[:1] == b"\0" and event.block == payload.hash for event in reports)


def test_no_logs_of_one_producer_alone_is_an_empty_prefix_and_no_empty_value() -> None:
    payload = block("1a", "0g")
    log = Log()
    log.append(without_logs(payload))
    reader = Reader(log)
    reader.read()
    got = reader.updates[0].added[0]
    assert isinstance(got, Payload)
    assert not any("/l/" in path for path in got.updates)


@given(seeds)
def test_both_sides_of_a_reorg_are_one_update_so_that_no_reader_sees_a_hole(seed: int) -> None:
    """After every transaction the store is a whole chain, and never lower than the ancestor of a switch."""
    there = blocks("1a 2a 3a | 1a 2b 3b 4b | 1a 2c 3c 4c 5c | 1a 2a 3a 4a 5a 6a")
    log = Log()
    order = [there[key] for key in there if key != "1a"]
    random.Random(seed).shuffle(order)
    publish(log, [there["1a"]])
    reader = Reader(log)
    reader.read(seed)
    for payload in order:
        publish(log, [payload])
        reader.read(seed)
    assert reader.store == ["1a", "2a", "3a", "4a", "5a", "6a"]
    for update, height in zip(reader.updates, reader.heights, strict=True):
        assert update.added
        assert not update.removed or update.added[0].number == update.removed[-1].number
        assert height == update.added[-1].number
