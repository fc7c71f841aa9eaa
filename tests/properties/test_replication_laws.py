"""Laws of replication: bytes, the claim log as a function of its records, clusters in any weather, their rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols.replication import (
    KINDS,
    Answer,
    Applied,
    Block,
    Candidate,
    Checkpoint,
    Claim,
    ClaimLog,
    Close,
    Epoch,
    Header,
    Item,
    Marker,
    Message,
    Observed,
    Position,
    Proposal,
    Propose,
    Record,
    Ref,
    Refusal,
    Replica,
    Saved,
    State,
    decode,
    decode_marker,
    decode_record,
    encode,
    seal_header,
)
from cardinal_ingest.protocols.replication.pool import Pool
from examples import examples
from model.__main__ import main
from model.cluster_laws import Broken
from model.cluster_node import verify
from model.cluster_schedule import blocks, cuts, kills, late_ends, run_cluster, run_seed, slow_links
from model.cluster_world import Chaos, Cluster
from replicating import FIRST, MEMBERS, batch, block, claimed

hashes = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
numbers = st.integers(0, 2**64 - 1)
small = st.integers(0, 2**32 - 1)
texts = st.text(max_size=8)
weights = st.integers(0, 2**200)
refs = st.builds(Ref, numbers, hashes)
headers: st.SearchStrategy[Header] = st.builds(
    seal_header, hashes, texts, numbers, hashes, hashes, hashes, weights,
    st.lists(st.builds(Item, numbers, hashes, hashes), max_size=3),
)  # fmt: skip
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Observed,
        texts,
        st.lists(st.builds(Block, numbers, hashes, hashes, weights, hashes, numbers), max_size=3).map(tuple),
    ),
    st.builds(Propose, texts, numbers, hashes, numbers, small),
    st.builds(Proposal, texts, numbers, numbers, st.sampled_from(Answer), st.lists(refs, max_size=3).map(tuple)),
    st.builds(Candidate, texts, headers),
    st.builds(Saved, texts, numbers, hashes, signatures),
)
certificates = st.lists(st.tuples(texts, signatures), max_size=3).map(tuple)
members = st.lists(st.tuples(texts, hashes), max_size=3).map(tuple)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        Epoch, texts, numbers, hashes, hashes, members, texts, numbers, numbers, numbers, st.binary(), texts, signatures
    ),
    st.builds(Claim, headers, texts, small, certificates, signatures),
    st.builds(Checkpoint, st.binary(), texts, signatures),
    st.builds(Close, st.binary(), texts, signatures),
)


@given(messages)
def test_messages_are_read_as_they_were_written(message: Message) -> None:
    assert decode(KINDS[type(message)], encode(message)) == message


@given(records)
def test_records_are_read_as_they_were_written(record: Record) -> None:
    assert decode_record(encode(record)) == record


@given(st.builds(Marker, hashes, texts, numbers, numbers, hashes, texts))
def test_markers_are_read_as_they_were_written(marker: Marker) -> None:
    assert decode_marker(encode(marker)) == marker


@given(st.data())
def test_bytes_are_refused_or_have_one_meaning(data: st.DataObject) -> None:
    original = encode(data.draw(messages | records))
    at = data.draw(st.integers(0, len(original)))
    damaged = original[:at] + data.draw(st.binary(max_size=3)) + original[at + data.draw(st.integers(0, 3)) :]
    for kind in KINDS.values():
        try:
            assert encode(decode(kind, damaged)) == damaged
        except ViolationError:
            continue
    try:
        assert encode(decode_record(damaged)) == damaged
    except ViolationError:
        return


# --- the claim log ----------------------------------------------------------------------------------------------------


def log_of(values: list[bytes]) -> tuple[ClaimLog, list[int]]:
    """A reader of these records, and the offsets of the claims that it applied."""
    log = ClaimLog(MEMBERS, verify)
    return log, [at for at, value in enumerate(values) if isinstance(log.read(at, value), Applied)]


@given(st.data())
def test_a_log_means_what_its_valid_claims_mean(data: st.DataObject) -> None:
    """Leaders claim over what they know, late, twice, in any order: all readers apply the same records."""
    values: list[bytes] = []
    states: list[State] = []
    log, applied, before = ClaimLog(MEMBERS, verify), [], Position()

    def append(value: bytes) -> None:
        nonlocal before
        before = log.position
        if isinstance(log.read(len(values), value), Applied):
            applied.append(len(values))
        values.append(value)
        assert log.state is not None
        states.append(log.state)

    append(FIRST)
    for _ in range(data.draw(st.integers(1, 12))):
        over, past = data.draw(st.sampled_from(states)), st.sampled_from(values[:])
        parent = data.draw(st.sampled_from(sorted(over.ring) or [b"99a".ljust(32, b".")]))
        number = over.ring.get(parent, 99) + 1
        letter = data.draw(st.sampled_from("abc"))
        run = [block(f"{number}{letter}", parent.rstrip(b".").decode(), data.draw(st.integers(1, 9)))]
        value = claimed(
            batch(over, run), data.draw(st.sampled_from("abc")), data.draw(st.sampled_from(["ab", "bc", "a"]))
        )
        for one in data.draw(st.sampled_from([[value], [value, value], [b"junk", value], [value, data.draw(past)]])):
            append(one)
    valid, again = log_of([FIRST, *(values[at] for at in applied)])
    assert again == list(range(1, len(again) + 1))
    assert valid.state == log.state
    resumed = ClaimLog(MEMBERS, verify, before)
    resumed.confirm(0, len(values), values[-2])
    resumed.read(len(values) - 1, values[-1])
    assert resumed.position == log.position


# --- clusters ---------------------------------------------------------------------------------------------------------

chances = st.sampled_from([0.0, 0.05, 0.3])
seconds = st.sampled_from([0.2, 0.5, 2.0])
weather = st.builds(
    Chaos,
    block_every=st.sampled_from([0.05, 0.2]),
    fork=chances,
    latency=st.sampled_from([(0.001, 0.01), (0.01, 0.3)]),
    crash=st.sampled_from([0.0, 0.02]),
    kill=seconds,
    cut=seconds,
    away=chances,
    claim_lost=chances,
    claim_doubled=chances,
    claim_late=chances,
    abort=chances,
    unclear=chances,
    late=chances,
    disks=chances,
    read=st.sampled_from([(0.005, 0.05), (0.2, 1.0)]),
    body=st.sampled_from([(0.005, 0.05), (0.2, 1.0)]),
)


@settings(max_examples=examples(25))
@given(st.integers(0, 999), st.integers(1, 5), weather)
def test_agreement_durability_certificates_once_order_and_progress(seed: int, size: int, chaos: Chaos) -> None:
    cluster = Cluster(seed, size, chaos)
    for name in cluster.nodes:
        cluster.boot(name)
    for call in (blocks, kills, cuts):
        cluster.after(0.0, call, cluster)
    cluster.after(0.2, cluster.push)
    cluster.run(1.0)
    cluster.heal()
    for node in cluster.living:
        live = node.replica
        again = Replica(node.name, node.members, live._sign, verify, node.settings, rows=node.disk.rows())
        assert again.state == live.state
        assert again.pool.blocks == live.pool.blocks
        assert again.winners == live.winners
        assert again.promoted == live.promoted
        assert again.wanted == live.wanted
        committed = [message for message in live.snapshot("z") if not isinstance(message, Propose)]
        assert [m for m in again.snapshot("z") if isinstance(m, Saved)] == [
            m for m in committed if isinstance(m, Saved)
        ]
        assert {b for m in again.snapshot("z") if isinstance(m, Observed) for b in m.blocks} == {
            b for m in committed if isinstance(m, Observed) for b in m.blocks
        }


# --- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(60)),
        pytest.param(range(60, 3_060), marks=pytest.mark.slow),
        pytest.param(range(1_000_000), marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
    ],
    ids=len,
)
def test_a_cluster_keeps_its_laws(seeds: range) -> None:
    assert [broken for seed in seeds if (broken := run_cluster(seed))] == []


@pytest.mark.parametrize("seed", [403, 1267, 61_921])
def test_seeds_that_were_broken_once(seed: int) -> None:
    assert run_cluster(seed) is None


def test_equal_seeds_run_alike() -> None:
    one, other = run_seed(7), run_seed(7)
    assert one.kafka.claims == other.kafka.claims
    assert one.laws.stats == other.laws.stats


def broken_by(run: Callable[[int], object], seeds: range) -> list[str]:
    found: list[str] = []
    for seed in seeds:
        try:
            run(seed)
        except Broken as broken:
            found.append(str(broken))
    return found


@pytest.fixture(params=[False, True], ids=["kept", "removed"])
def removed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_marker_last(monkeypatch: pytest.MonkeyPatch, *, removed: bool) -> None:
    monkeypatch.setattr(Cluster, "marker_first", removed)
    found = broken_by(late_ends, range(8))
    assert any("promoted and not on the topics" in line for line in found) is removed


def test_no_producer_is_used_after_an_abort(monkeypatch: pytest.MonkeyPatch, *, removed: bool) -> None:
    monkeypatch.setattr(Cluster, "reuse", removed)
    found = broken_by(late_ends, range(8))
    assert any("promoted and not on the topics" in line for line in found) is removed


def test_timers_double(monkeypatch: pytest.MonkeyPatch, *, removed: bool) -> None:
    if removed:
        monkeypatch.setattr("cardinal_ingest.protocols.replication.leader_schedule.doubled", lambda wait, *_: wait)
    found = broken_by(lambda seed: slow_links(seed, 300.0), range(4))
    assert bool(found) is removed


def test_no_block_twice(monkeypatch: pytest.MonkeyPatch, *, removed: bool) -> None:
    """Agreed blocks are neither voted for nor accepted; without that a block that is sent again is agreed again."""
    if removed:
        refusal, link = State.refusal, Pool._link_of

        def lenient(state: State, header: Header) -> Refusal | None:
            reason = refusal(state, header)
            return None if reason is Refusal.TWICE else reason

        def forgetful(pool: Pool, block: Block, state: State) -> object:
            ring = {one: number for one, number in state.ring.items() if one != block.hash}
            return link(pool, block, State.build(state.rules, b"", "", state.num, b"", state.head, state.highest, ring))

        monkeypatch.setattr(State, "refusal", lenient)
        monkeypatch.setattr(Pool, "_link_of", forgetful)
    found = broken_by(run_seed, range(12))
    assert any("in two batches" in line for line in found) is removed


def test_a_faulty_quorum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the members are no quorum: those of even n do not intersect."""
    monkeypatch.setattr("cardinal_ingest.protocols.replication.observers.Observers.majority", lambda *_: True)
    assert any("acknowledged on" in line for line in broken_by(run_seed, range(12)))


def test_the_command_names_what_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal_ingest.protocols.replication.observers.Observers.majority", lambda *_: True)
    result = CliRunner().invoke(main, ["--cluster", "--seeds", "12"])
    assert result.exit_code == 1
    assert "cluster seed " in result.output
