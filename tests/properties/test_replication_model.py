"""The simulated cluster keeps its laws for every seed, and breaks them without one of the rules that they rest on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from cardinal.protocols.replication import Block, Header, Refusal, State
from cardinal.protocols.replication.pool import Pool
from cluster_scenes import late_ends, slow_links
from model.__main__ import main
from model.cluster_laws import Broken
from model.cluster_schedule import run_cluster, run_seed
from model.cluster_world import Cluster


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
        monkeypatch.setattr("cardinal.protocols.replication.turns.doubled", lambda wait, *_: wait)
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
    monkeypatch.setattr("cardinal.protocols.replication.observers.Observers.majority", lambda *_: True)
    assert any("acknowledged on" in line for line in broken_by(run_seed, range(12)))


def test_the_command_runs_clusters() -> None:
    result = CliRunner().invoke(main, ["--cluster", "--seeds", "4"])
    assert result.exit_code == 0
    assert result.output.startswith("4 schedules of cluster: 0 differ")


def test_the_command_names_what_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal.protocols.replication.observers.Observers.majority", lambda *_: True)
    result = CliRunner().invoke(main, ["--cluster", "--seeds", "12"])
    assert result.exit_code == 1
    assert "cluster seed " in result.output
