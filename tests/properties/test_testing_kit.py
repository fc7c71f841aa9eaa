"""The public kit: generated chains, and faults that any consumer must bear."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import (
    Batch,
    BlockRef,
    ChainUpdate,
    Follower,
    FollowerSettings,
    Payload,
    Record,
    Routed,
    decode,
)
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER
from cardinal_devkit.testing.faults import Faults, FaultSettings, TopicLog
from cardinal_devkit.testing.generator import SCHEMA, ChainGenerator, as_received, block_hash, block_name, block_number
from examples import examples

seeds = st.integers(0, 1 << 32)
faults = st.builds(
    FaultSettings,
    partitions=st.integers(1, 4),
    in_flight=st.integers(1, 8),
    duplicates=st.sampled_from([0.0, 0.05, 0.5]),
    failures=st.sampled_from([0.0, 0.1, 0.6]),
    restarts=st.sampled_from([0.0, 0.1, 0.5]),
)
CALM = FaultSettings(duplicates=0, failures=0, restarts=0)


def sent(chain: ChainGenerator, payloads: Sequence[Payload]) -> list[list[Routed]]:
    return [chain.messages(payload) for payload in payloads]


def follow(log: TopicLog, records: Sequence[Record]) -> list[ChainUpdate]:
    """A consumer that reads these records and reaches the end of the log."""
    follower = Follower(FollowerSettings("generated", "generated:0", prefixes=tuple(SCHEMA)))
    updates: list[ChainUpdate] = []
    at = dict.fromkeys(log.partitions, 0)
    for first in range(0, len(records), 50):
        part = records[first : first + 50]
        at |= {(record.topic, record.partition): record.offset + 1 for record in part}
        updates += follower.step(part, at, log.ends()).updates
    return updates


@given(seeds)
def test_equal_seeds_make_equal_chains_and_equal_accidents(seed: int) -> None:
    one, other = ChainGenerator(seed), ChainGenerator(seed)
    payloads = one.payloads(12)
    assert payloads == other.payloads(12)
    messages = sent(one, payloads)
    assert Faults(seed).records({"a": messages, "b": messages}) == Faults(seed).records({"a": messages, "b": messages})


@given(seeds)
def test_moves_replay_into_one_chain_of_known_payloads(seed: int) -> None:
    known: dict[bytes, Payload] = {}
    chain: list[BlockRef] = []
    for move in ChainGenerator(seed).moves(30):
        for payload in move.mined:
            assert payload.number == 0 or payload.parent in known
            known[payload.hash] = payload
        for ref in move.removed:
            assert chain.pop() == ref
        chain += move.added
        assert chain[-1] == move.mined[-1].ref
    assert [ref.number for ref in chain] == list(range(31))
    assert max(known.values(), key=lambda payload: payload.weight).ref == chain[-1]


def test_generated_payloads_hold_everything_that_payloads_can_hold() -> None:
    payloads = [payload for seed in range(5) for payload in ChainGenerator(seed).payloads(30)]
    entries = Counter[str]()
    for payload in payloads:
        messages = ChainGenerator().messages(payload)
        batch = decode(messages[-1].key, messages[-1].value)
        assert isinstance(batch, Batch)
        entries["empty block"] += not batch.updates
        entries["sub batches"] += len(payload.sub_batches)
        entries["two sub batches"] += len(payload.sub_batches) == 2
        entries["values"] += any(update.value for update in batch.updates.values())
        entries["deletes"] += any(update.delete for update in batch.updates.values())
        counted = [path for path, update in batch.updates.items() if update.count]
        entries["several prefixes of one expression"] += sum("/group/" in path for path in counted) > 1
        entries["prefix within prefix"] += any(a != b and a.startswith(b) for a in counted for b in counted)
        entries["counted deletes"] += any("/item/old" in path for path in payload.deletes)
        entries["empty values"] += any(not value for value in payload.updates.values())
        entries["not UTF-8"] += any(not path.isprintable() for path in payload.updates)
    assert len(entries) == 10
    assert all(entries.values()), entries


@settings(max_examples=examples(60), deadline=None)
@given(seeds, faults, st.integers(1, 3), st.integers(0, 3))
def test_whatever_happens_a_consumer_gets_the_payloads_and_the_heaviest_chain(
    seed: int, accidents: FaultSettings, producers: int, reader: int
) -> None:
    chain = ChainGenerator(seed)
    moves = chain.moves(16)
    payloads = {payload.hash: payload for move in moves for payload in move.mined}
    messages = sent(chain, list(payloads.values()))
    script = Faults(seed, accidents)
    log = script.publish({f"p{index}": messages for index in range(producers)}, unsealed={"p1"})
    updates = follow(log, script.deliver(log, reader=reader))
    left: list[bytes] = []
    for update in updates:
        for gone in update.removed:
            assert left.pop() == gone.hash
        for added in update.added:
            assert added == as_received(payloads[added.hash])
            left.append(added.hash)
    final: list[bytes] = []
    for move in moves:
        del final[len(final) - len(move.removed) :]
        final += [ref.hash for ref in move.added]
    assert left == final


@settings(max_examples=examples(60), deadline=None)
@given(seeds, faults, st.integers(1, 3))
def test_the_log_keeps_the_rules_of_sealing_and_of_partitions(
    seed: int, accidents: FaultSettings, producers: int
) -> None:
    chain = ChainGenerator(seed)
    payloads = chain.payloads(10)
    messages = sent(chain, payloads)
    log = Faults(seed, accidents).publish({f"p{index}": messages for index in range(producers)})
    places: dict[bytes, tuple[str, int]] = {}
    seen: set[tuple[bytes, bytes]] = set()
    sealed: set[tuple[bytes, bytes]] = set()
    parents = {payload.hash: payload.parent for payload in payloads}
    content = {payload.hash: block[:-1] for payload, block in zip(payloads, messages, strict=True)}
    everything = sorted((record for part in log.partitions.values() for record in part), key=lambda r: r.timestamp_ms)
    for record in everything:
        if not record.key:
            assert record.offset == 0
            continue
        assert places.setdefault(record.key, (record.topic, record.partition)) == (record.topic, record.partition)
        headers = dict(record.headers)
        who = headers[PRODUCER_HEADER]
        if SEALED_HEADER in headers:
            block = record.key[1:33]
            assert all((who, message.key) in seen for message in content[block])
            assert (who, parents[block]) in sealed or parents[block] not in parents
            sealed.add((who, block))
        seen.add((who, record.key))
    assert sealed == {(f"p{index}".encode(), block) for index in range(producers) for block in parents}


@settings(max_examples=examples(40), deadline=None)
@given(seeds, st.integers(0, 5), st.data())
def test_delivery_keeps_each_partitions_order_and_loses_nothing(seed: int, reader: int, data: st.DataObject) -> None:
    chain = ChainGenerator(seed)
    log = Faults(seed).publish({"a": sent(chain, chain.payloads(8))})
    start = {where: data.draw(st.integers(0, end)) for where, end in log.ends().items()}
    delivered: dict[tuple[str, int], list[Record]] = {where: [] for where in log.partitions}
    for record in Faults(seed).deliver(log, reader=reader, start=start):
        delivered[record.topic, record.partition].append(record)
    assert delivered == {where: records[start[where] :] for where, records in log.partitions.items()}


def test_accidents_do_happen() -> None:
    chain = ChainGenerator(1)
    messages = sent(chain, chain.payloads(30))
    calm = Faults(1, CALM).publish({"a": messages})
    rough = Faults(1, FaultSettings(duplicates=0.2, failures=0.3, restarts=0.2)).publish({"a": messages})
    count = sum(map(len, messages))
    assert sum(calm.ends().values()) == count + len(calm.partitions)
    assert sum(rough.ends().values()) > 1.2 * count
    orders = {tuple(record[:3] for record in Faults(1).deliver(calm, reader=reader)) for reader in range(4)}
    assert len(orders) == 4


def test_shapes_of_ones_own() -> None:
    chain = ChainGenerator(3)
    payloads = chain.fork("1a 2a 3a | 1a 2b 3b 4b", weights={"2b": 9})
    assert [block_name(payload.hash) for payload in payloads] == ["1a", "2a", "3a", "2b", "3b", "4b"]
    assert [block_name(payload.parent) for payload in payloads] == ["0a", "1a", "2a", "1a", "2b", "3b"]
    assert [payload.weight for payload in payloads] == [1, 2, 3, 9, 3, 4]
    assert payloads[0] == chain.block("1a", "0a")
    assert block_hash("") == bytes(32)
    assert block_number("12ab") == 12
    for wrong in ("1a 3a", "a1", "1a 2a 2b"):
        with pytest.raises(ConfigurationError):
            chain.fork(wrong)
    with pytest.raises(ConfigurationError):
        block_hash("1" * 32 + "a")


def test_invalid_input_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        FaultSettings(partitions=0)
    with pytest.raises(ConfigurationError):
        FaultSettings(failures=1.0)
    with pytest.raises(ConfigurationError):
        Faults().publish({"a": [ChainGenerator().messages(ChainGenerator().block("1a", "0a"))[:0]]})


@pytest.mark.process
def test_the_kit_needs_no_test_framework() -> None:
    code = (
        "import sys, cardinal_devkit.testing.generator, cardinal_devkit.testing.faults\n"
        "sys.exit(any(name in sys.modules for name in ('pytest', 'hypothesis', 'confluent_kafka')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
