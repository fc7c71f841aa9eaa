"""Schedules of a simulated cluster, by name in connectors/cardinal_ingest/docs/replication.md, section 12."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cardinal_ingest.errors import ClaimLogDivergedError
from cardinal_ingest.protocols.replication import (
    Acknowledged,
    Action,
    Append,
    Block,
    Broadcast,
    Candidate,
    Claim,
    ClaimRefused,
    Denial,
    Denied,
    Divergence,
    Header,
    Propose,
    Refusal,
    claim_bytes,
    decode_record,
    encode,
    saved_bytes,
    seal_header,
)
from model.cluster_node import Disk, Node, membership, signature
from model.cluster_schedule import agreed, grow, promoting, slow_links, started
from model.cluster_world import CALM, RULES, Chaos, Cluster

seeds = pytest.mark.parametrize("seed", range(3))


def watched(cluster: Cluster, kind: type[Action]) -> list[tuple[str, Action]]:
    """Actions of a kind, as they come."""
    seen: list[tuple[str, Action]] = []

    def watch(node: Node, action: Action) -> bool:
        if isinstance(action, kind):
            seen.append((node.name, action))
        return False

    cluster.watch = watch
    return seen


def claims(actions: list[tuple[str, Action]]) -> list[Claim]:
    records = [decode_record(action.record) for _, action in actions if isinstance(action, Append)]
    return [record for record in records if isinstance(record, Claim)]


# --- leaders --------------------------------------------------------------------------------------------------------


def test_duel() -> None:
    duels = 0
    for seed in range(12):
        cluster = started(seed, chaos=replace(CALM, latency=(0.05, 0.3)))
        cluster.nodes["b"].replica._turns.adopt(2)
        seen = watched(cluster, Append)
        chain = grow(cluster, 6)
        cluster.run(cluster.now + 3)
        cluster.heal()
        assert agreed(cluster, *chain)
        of_number: dict[int, set[str]] = {}
        for claim in claims(seen):
            of_number.setdefault(claim.header.num, set()).add(claim.claimer)
        duels += any(len(claimers) > 1 for claimers in of_number.values())
    assert duels


@seeds
def test_links_slower_than_timers(seed: int) -> None:
    slow_links(seed)


def dies(cluster: Cluster, moment: Callable[[Action], bool], *, performed: bool) -> list[Node]:
    """The first node that comes to a moment dies for good, before or after its action."""
    dead: list[Node] = []

    def kill(node: Node) -> None:
        if node.up:
            node.dead = True
            cluster.kill(node.name)

    def watch(node: Node, action: Action) -> bool:
        if dead or not moment(action):
            return False
        dead.append(node)
        if performed:
            cluster.after(0.0, kill, node)
            return False
        kill(node)
        return True

    cluster.watch = watch
    return dead


MOMENTS: dict[str, tuple[Callable[[Action], bool], bool]] = {
    "propose": (lambda action: isinstance(action, Broadcast) and isinstance(action.message, Propose), True),
    "candidate": (lambda action: isinstance(action, Broadcast) and isinstance(action.message, Candidate), True),
    "quorum": (lambda action: isinstance(action, Append), False),
    "claim": (lambda action: isinstance(action, Append), True),
}


@seeds
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("size", [3, 4, 5])
def test_leader_dies_after(moment: str, size: int, seed: int) -> None:
    cluster = started(seed, size)
    dead = dies(cluster, MOMENTS[moment][0], performed=MOMENTS[moment][1])
    chain = grow(cluster, 3)
    cluster.settle()
    assert len(dead) == 1
    assert agreed(cluster, *chain)


@seeds
def test_a_certified_candidate_is_claimed_unchanged_by_the_next_leader(seed: int) -> None:
    cluster = started(seed)
    headers: list[Header] = []
    moment = MOMENTS["quorum"][0]

    def certified(action: Action) -> bool:
        if isinstance(action, Append):
            headers.extend(claim.header for claim in claims([("", action)]))
        return moment(action)

    dies(cluster, certified, performed=False)
    grow(cluster, 3)
    cluster.settle()
    assert cluster.laws.agreed[1] == headers[0]


# --- the log --------------------------------------------------------------------------------------------------------


@seeds
@pytest.mark.parametrize(
    "chaos",
    [
        pytest.param(replace(CALM, claim_lost=0.7), id="missed"),
        pytest.param(replace(CALM, claim_doubled=1.0), id="doubled"),
        pytest.param(replace(CALM, claim_late=0.8), id="delayed"),
    ],
)
def test_claim(chaos: Chaos, seed: int) -> None:
    cluster = started(seed, chaos=chaos)
    chain: list[Block] = []
    for _ in range(3):
        chain += grow(cluster, 2, chain[-1] if chain else None)
        cluster.settle()
    assert agreed(cluster, *chain)


@seeds
def test_reader_lags(seed: int) -> None:
    cluster = started(seed, chaos=replace(CALM, read=(0.5, 4.0)))
    chain: list[Block] = []
    for _ in range(3):
        chain += grow(cluster, 3, chain[-1] if chain else None)
        cluster.settle()
    assert agreed(cluster, *chain)


@pytest.mark.slow
def test_kafka_away_a_day() -> None:
    cluster = started(0, claim_timeout=300.0)
    chain = grow(cluster, 3)
    cluster.settle()
    cluster.kafka.up = False
    chain += grow(cluster, 30, chain[-1])
    cluster.run(cluster.now + 86_400)
    assert all(block.hash in cluster.laws.acknowledged for block in chain)
    cluster.laws.bounded()
    batches = len(cluster.laws.agreed)
    for node in cluster.living:
        assert len(node.disk.candidates) <= 2
    cluster.heal()
    assert agreed(cluster, *chain)
    assert len(cluster.laws.agreed) - batches <= 30 // RULES.max_blocks + 2


@seeds
def test_log_trimmed(seed: int) -> None:
    cluster = started(seed)
    chain = grow(cluster, 16)
    cluster.settle()
    checkpoints = [at for at, value in enumerate(cluster.kafka.claims) if value[1:2] == b"\x02"]
    cluster.kill("c")
    cluster.kafka.first = checkpoints[0]
    cluster.nodes["c"].disk = Disk()
    cluster.boot("c")
    chain += grow(cluster, 6, chain[-1])
    cluster.settle()
    assert agreed(cluster, *chain)
    state = cluster.nodes["c"].replica.state
    assert state == cluster.nodes["a"].replica.state
    assert state is not None


def test_log_recreated() -> None:
    cluster = started(0)
    grow(cluster, 4)
    cluster.settle()
    cluster.kill("c")
    cluster.kafka.claims.reverse()
    with pytest.raises(ClaimLogDivergedError):
        cluster.boot("c")
    del cluster.kafka.claims[1:]
    cluster.nodes["c"].up = False
    with pytest.raises(ClaimLogDivergedError):
        cluster.boot("c")


def test_wrong_epoch() -> None:
    cluster = started(0)
    seen = watched(cluster, ClaimRefused)
    chain = grow(cluster, 2)
    cluster.settle()
    other = membership(3, b"\xc2" * 32)
    state, first = cluster.nodes["a"].replica.state, cluster.laws.agreed[1]
    assert state is not None
    items = tuple(item._replace(number=item.number + 2, hash=item.hash[::-1]) for item in first.items)
    header = seal_header(
        other.cluster, other.stream, state.num + 1, state.hash, state.digest, state.head.hash, 9, items
    )
    saved = saved_bytes(other.cluster, other.stream, header.num, header.hash)
    certificate = tuple((name, signature(key, saved)) for name, key in other.members.items())
    claim = Claim(header, "a", 0, certificate, b"")
    signed = replace(claim, signature=signature(other.members["a"], claim_bytes(other.cluster, claim)))
    cluster.appended(encode(signed), cluster.now)
    chain += grow(cluster, 2, chain[-1])
    cluster.settle()
    assert agreed(cluster, *chain)
    assert [action.reason for _, action in seen if isinstance(action, ClaimRefused)] == 3 * [Refusal.OTHER_CLUSTER]


# --- blocks ---------------------------------------------------------------------------------------------------------


@seeds
def test_body_delayed(seed: int) -> None:
    cluster = started(seed, chaos=replace(CALM, body=(2.0, 4.0)))
    chain = grow(cluster, 8)
    cluster.settle()
    assert agreed(cluster, *chain)


@seeds
def test_tie_of_heads(seed: int) -> None:
    cluster = started(seed)
    base = grow(cluster, 2)
    cluster.settle()
    left, right = cluster.publish(base[-1].hash, hold=True), cluster.publish(base[-1].hash, hold=True)
    cluster.offer(left, "a")
    cluster.offer(right, "b")
    cluster.offer(left, "c")
    cluster.settle()
    assert agreed(cluster, left) != agreed(cluster, right)
    loser = right if agreed(cluster, left) else left
    top = cluster.publish(loser.hash)
    cluster.settle()
    assert agreed(cluster, left, right, top)


@seeds
def test_deep_fork(seed: int) -> None:
    cluster = started(seed)
    chain = grow(cluster, 16)
    cluster.settle()
    seen = watched(cluster, Denied)
    fork = cluster.publish(chain[2].hash, weight=99, hold=True)
    for name in cluster.nodes:
        node = cluster.nodes[name]
        cluster.step(node, node.replica.admit([fork], cluster.now))
    chain += grow(cluster, 2, chain[-1])
    cluster.settle()
    assert agreed(cluster, *chain)
    assert not agreed(cluster, fork)
    assert [action.reason for _, action in seen if isinstance(action, Denied)] == 3 * [Denial.FORK_TOO_DEEP]


@seeds
def test_reorg_and_back(seed: int) -> None:
    cluster = started(seed)
    chain = grow(cluster, 5)
    cluster.settle()
    fork = grow(cluster, 3, chain[1], weight=2)
    cluster.settle()
    back = grow(cluster, 4, chain[-1])
    cluster.settle()
    assert agreed(cluster, *chain, *fork, *back)
    state = cluster.nodes["a"].replica.state
    assert state is not None
    assert state.head.hash == back[-1].hash


@seeds
def test_a_heavier_branch_is_agreed_though_its_first_batch_is_lighter(seed: int) -> None:
    cluster = started(seed)
    chain = grow(cluster, 6)
    cluster.settle()
    fork = grow(cluster, 9, chain[0])
    cluster.settle()
    assert agreed(cluster, *fork)


@seeds
def test_poison_block(seed: int) -> None:
    cluster = started(seed)
    base = grow(cluster, 2)
    cluster.settle()
    poison = cluster.publish(base[-1].hash, hold=True)
    cluster.content = lambda _, block: None if block is poison else block.content
    above = cluster.publish(poison.hash, hold=True)
    for node in cluster.laws.nodes:
        cluster.offer(poison, node.name)
        cluster.step(node, node.replica.admit([above], cluster.now))
    chain = grow(cluster, 3, base[-1])
    cluster.run(cluster.now + 20)
    assert agreed(cluster, *chain)
    assert not agreed(cluster, poison)
    assert poison.hash not in cluster.laws.acknowledged
    assert above.hash not in cluster.laws.acknowledged


@seeds
def test_divergent_content(seed: int) -> None:
    cluster = started(seed)
    seen = watched(cluster, Divergence)
    block = cluster.publish(hold=True)
    cluster.content = lambda node, block: b"\xee" * 32 if node.name == "c" else block.content
    for name in cluster.nodes:
        cluster.offer(block, name)
    cluster.content = lambda _, block: block.content
    cluster.run(cluster.now + 20)
    assert {name for name, _ in seen} >= {"c"}
    cluster.settle()
    assert agreed(cluster, block)
    assert cluster.nodes["c"].replica.pool.blocks[block.hash].content == block.content


@seeds
def test_divergent_content_without_a_majority_halts_at_the_block(seed: int) -> None:
    cluster = started(seed)
    first = grow(cluster, 1)
    cluster.settle()
    block = cluster.publish(first[0].hash, hold=True)
    cluster.content = lambda node, _: node.name.encode() * 32
    for name in cluster.nodes:
        cluster.offer(block, name)
    cluster.run(cluster.now + 30)
    assert not agreed(cluster, block)
    assert block.hash not in cluster.laws.acknowledged


@seeds
def test_a_block_sent_again_at_any_time_is_appended_once(seed: int) -> None:
    cluster = started(seed)
    chain = grow(cluster, 3)
    for _ in range(3):
        for block in chain:
            for node in cluster.laws.nodes:
                cluster.step(node, node.replica.admit([block], cluster.now))
        cluster.run(cluster.now + 1)
        chain += grow(cluster, 3, chain[-1])
    cluster.settle()
    assert agreed(cluster, *chain)


@seeds
def test_a_block_of_the_leader_alone_is_agreed_under_it(seed: int) -> None:
    cluster = started(seed)
    for _ in range(3):
        leader = cluster.nodes["a"].replica.leader
        assert leader is not None
        above = max(cluster.laws.order, key=cluster.laws.order.__getitem__, default=None)
        block = cluster.publish(above, hold=True)
        cluster.offer(block, leader)
        cluster.run(cluster.now + 0.5)
        assert agreed(cluster, block)


# --- promotion ------------------------------------------------------------------------------------------------------


@seeds
def test_promoter_zombie(seed: int) -> None:
    cluster = started(seed)
    chain = grow(cluster, 4)
    cluster.settle()
    promoter = next(node for node in cluster.living if node.promoter.producer is not None)
    cluster.stalled = promoter
    chain += grow(cluster, 8, chain[-1])
    cluster.settle()
    assert cluster.kafka.markers[-1].writer != promoter.name
    cluster.stalled = None
    chain += grow(cluster, 4, chain[-1])
    cluster.run(cluster.now + 2)
    cluster.settle()
    assert cluster.laws.stats["FencedError"] == 1
    assert cluster.laws.stats["doubled"] == 0


@seeds
def test_delayed_end_of_a_commit(seed: int) -> None:
    promoting(seed, replace(CALM, late=0.8, unclear=0.2, latency=(0.002, 0.05)))


@seeds
def test_delayed_end_of_an_abort(seed: int) -> None:
    cluster = promoting(seed, replace(CALM, abort=0.3, latency=(0.002, 0.05)))
    assert cluster.laws.stats["doubled"] == 0


@seeds
def test_fence_war(seed: int) -> None:
    promoting(seed, replace(CALM, latency=(0.1, 0.3)), 5, promote_wait=0.05)


@seeds
def test_all_down_after_claim(seed: int) -> None:
    cluster = started(seed)
    chain = grow(cluster, 3)
    while len(cluster.kafka.claims) == 1:
        cluster.run(cluster.now + 0.01)
    for name in cluster.nodes:
        cluster.kill(name)
    cluster.run(cluster.now + 5)
    for name in cluster.nodes:
        cluster.boot(name)
    cluster.settle()
    assert agreed(cluster, *chain)


# --- members and disks ----------------------------------------------------------------------------------------------


@seeds
@pytest.mark.parametrize("size", [3, 5])
def test_minority_dead(size: int, seed: int) -> None:
    cluster = started(seed, size)
    chain = grow(cluster, 2)
    cluster.settle()
    for name in cluster.random.sample(sorted(cluster.nodes), size // 2):
        cluster.nodes[name].dead = True
        cluster.kill(name)
    for _ in range(3):
        chain += grow(cluster, 4, chain[-1])
        cluster.settle()
    assert agreed(cluster, *chain)


@seeds
@pytest.mark.parametrize("size", [2, 4])
def test_even_n(size: int, seed: int) -> None:
    cluster = started(seed, size)
    chain = grow(cluster, 2)
    cluster.settle()
    half = cluster.random.sample(sorted(cluster.nodes), size // 2)
    for name in half:
        cluster.kill(name)
    batches = len(cluster.laws.agreed)
    more = grow(cluster, 3, chain[-1])
    cluster.run(cluster.now + 20)
    assert len(cluster.laws.agreed) == batches
    assert not cluster.laws.acknowledged.keys() & {block.hash for block in more}
    for name in half:
        cluster.boot(name)
    cluster.settle()
    assert agreed(cluster, *chain, *more)


@seeds
@pytest.mark.parametrize("restored", [False, True], ids=["lost", "restored"])
def test_disk(seed: int, *, restored: bool) -> None:
    cluster = started(seed)
    chain = grow(cluster, 3)
    cluster.settle()
    backup = cluster.nodes["b"].disk.copy()
    chain += grow(cluster, 6, chain[-1])
    cluster.run(cluster.now + cluster.random.uniform(0, 0.3))
    cluster.kill("b")
    cluster.laws.lost = 1
    cluster.nodes["b"].disk = backup if restored else Disk()
    cluster.boot("b")
    chain += grow(cluster, 3, chain[-1])
    cluster.settle()
    assert agreed(cluster, *chain)
    assert cluster.nodes["b"].replica.state == cluster.nodes["a"].replica.state


@seeds
def test_disk_full(seed: int) -> None:
    cluster = started(seed, pool_bytes=400)
    seen = watched(cluster, Denied)
    chain = grow(cluster, 30)
    cluster.settle()
    assert agreed(cluster, *chain)
    assert {action.reason for _, action in seen if isinstance(action, Denied)} == {Denial.POOL_FULL}
    for node in cluster.living:
        assert node.replica.pool.size <= 400 + 50 * RULES.max_blocks


@seeds
def test_split_2_1(seed: int) -> None:
    cluster = started(seed)
    apart = [(one, other) for one in "ab" for other in "c"] + [("c", one) for one in "ab"]
    cluster.blocked.update(apart)
    for pair in apart:
        cluster.cut(*pair)
    chain = grow(cluster, 6)
    cluster.run(cluster.now + 10)
    batches = len(cluster.laws.agreed)
    assert agreed(cluster, *chain)
    assert batches >= 2
    cluster.blocked.clear()
    cluster.settle()
    assert cluster.nodes["c"].replica.wanted == []


@seeds
def test_one_way_link(seed: int) -> None:
    cluster = started(seed)
    pair = cluster.random.sample("abc", 2)
    cluster.blocked.add((pair[0], pair[1]))
    cluster.cut(*pair)
    chain: list[Block] = []
    for _ in range(4):
        chain += grow(cluster, 4, chain[-1] if chain else None)
        cluster.settle()
    assert agreed(cluster, *chain)


def test_one_node_takes_the_same_path() -> None:
    cluster = started(0, 1)
    seen = watched(cluster, Acknowledged)
    chain = grow(cluster, 9)
    cluster.settle()
    assert agreed(cluster, *chain)
    assert {ref for _, action in seen if isinstance(action, Acknowledged) for ref in action.refs} >= {
        b.ref for b in chain
    }
