"""Several peers, some impaired: every body that a healthy peer has arrives, and an impaired peer costs its own link."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.protocols.diffusion import Close
from diffusing import Pool, id_of, make
from diffusion_world import IMPAIRMENTS, World, finish, invalid
from examples import examples

SIZES = (8, 23, 24, 300, 900, 1_900, 2_100, 3_990, 4_100, 19_000)
PATIENCE = 400
"""Seconds within which everything arrives: impaired peers use up their time, large objects theirs."""


def chain(random: Random, length: int) -> list[bytes]:
    return [make(number, random.randbytes(4), random.choice(SIZES)) for number in range(1, length + 1)]


def missing(world: World, bodies: set[bytes]) -> set[bytes]:
    return {body for body in bodies if id_of(body) not in world.pool.bodies}


Specs = dict[str, tuple[Pool, str | None]]
"""The pool and the impairment of each peer."""
HEALTHY = "peer 0"


def rejoin(world: World, specs: Specs) -> None:
    """Dial the peers whose bar is over."""
    for name, (pool, impairment) in specs.items():
        bars = [one.barred_until for one in world.closed if one.peer == name and one.barred_until is not None]
        if name not in world.links and world.now >= max(bars, default=0.0):
            world.join(name, pool, IMPAIRMENTS[impairment] if impairment else None)


HARMLESS = {None, "fetched by nobody", "silent"}
"""Impairments that break no rule. A blocking request has no time limit: keep-alive of the link finds a dead peer."""


@pytest.mark.parametrize("impairment", [*IMPAIRMENTS, None])
def test_an_impaired_peer_costs_its_own_link(impairment: str | None) -> None:
    random = Random(7)
    bodies = chain(random, 20)
    bad = Pool(*(invalid(number) for number in range(3))) if impairment == "invalid objects" else Pool(*bodies)
    world = World(7)
    world.join("bad", bad, IMPAIRMENTS[impairment] if impairment else None)
    world.join("good", Pool(*bodies))
    for _ in range(PATIENCE * 2):
        world.settle()
        world.pass_time(0.5)
    assert missing(world, set(bodies)) == set()
    violations = [one for one in world.closed if one.violation is not None]
    assert {one.peer for one in violations} == (set() if impairment in HARMLESS else {"bad"})
    finish(world)
    assert world.clean()


EXPECTED = {
    "silent": set(),
    "silent on objects": {"ExceededTimeLimit"},
    "extra ids": {"ObjectIdsNotRequested"},
    "repeated ids": {"ObjectIdsDuplicate"},
    "invented ids": {"ObjectsDifferentThanRequested", "ExceededSizeLimit"},
    "smaller size": {"ExceededSizeLimit"},
    "larger size": {"ObjectSizeMismatch"},
    "missing object": {"ObjectsDifferentThanRequested"},
    "additional object": {"ExceededSizeLimit"},
    "unreadable object": {"ObjectsDifferentThanRequested"},
    "endless ids": {"ExceededSizeLimit"},
    "endless objects": {"ExceededSizeLimit"},
    "other message": {"DecoderFailure"},
    "noise": {"DecoderFailure"},
    "unasked reply": {"UnexpectedReply", "DecoderFailure", "ObjectIdsAlreadyKnown"},
    "invalid objects": {"ObjectInvalid"},
}


@pytest.mark.parametrize("impairment", EXPECTED)
def test_the_violation_is_named(impairment: str) -> None:
    bad = Pool(*(invalid(n) for n in range(3))) if impairment == "invalid objects" else Pool(*chain(Random(1), 4))
    world = World(1)
    world.join("bad", bad, IMPAIRMENTS[impairment])
    for _ in range(60):
        world.settle()
        world.pass_time(0.5)
    named = {one.violation.violation for one in world.closed if one.violation is not None}
    assert named <= EXPECTED[impairment]
    assert bool(named) is bool(EXPECTED[impairment])


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, list[tuple[str | None, float]]]:
    """A seed, and an impairment or a delay for each of some peers; the first one is healthy."""
    impaired = st.tuples(
        st.one_of(st.none(), st.sampled_from(list(IMPAIRMENTS))), st.sampled_from([0.0, 0.3, 4.0, 12.0])
    )
    return draw(st.integers(0, 2**32)), [
        (None, draw(st.sampled_from([0.0, 0.3, 2.0]))),
        *draw(st.lists(impaired, max_size=4)),
    ]


def networked(world: World, bodies: list[bytes], peers: list[tuple[str | None, float]]) -> Specs:
    """Join the peers in any order. The first one is healthy and has half of the bodies, the others have some."""
    specs: Specs = {}
    for place in world.random.sample(range(len(peers)), len(peers)):
        impairment, delay = peers[place]
        some = world.random.sample(bodies, world.random.randrange(len(bodies) + 1))
        held = some if place else bodies[: len(bodies) // 2]
        more = [invalid(world.random.randrange(50))] if impairment == "invalid objects" else []
        specs[f"peer {place}"] = pool, _ = Pool(*held, *more), impairment
        world.join(f"peer {place}", pool, IMPAIRMENTS[impairment] if impairment else None, delay)
    return specs


def disturb(world: World, bodies: list[bytes]) -> None:
    """One event, and at times a body that arrives by another path, or an impaired peer that leaves."""
    world.step()
    body = world.random.choice(bodies)
    if world.random.random() < 0.03 and id_of(body) not in world.pool.bodies:
        world.pool.add(id_of(body), body)
    name = world.random.choice([*world.links, HEALTHY])
    if world.random.random() < 0.02 and name != HEALTHY:
        world.leave(name)


def run(seed: int, peers: list[tuple[str | None, float]]) -> None:
    world = World(seed)
    bodies = chain(world.random, world.random.randrange(1, 40))
    specs = networked(world, bodies, peers)
    healthy, late = specs[HEALTHY][0], bodies[len(bodies) // 2 :]
    for _ in range(300):
        disturb(world, bodies)
        if late and world.random.random() < 0.1:
            healthy.add(id_of(late[0]), late.pop(0))
    for body in late:
        healthy.add(id_of(body), body)
    while missing(world, set(bodies)):
        assert world.now < PATIENCE
        world.settle()
        world.pass_time(0.5)
        rejoin(world, specs)
    assert not [one for one in world.closed if one.peer == HEALTHY and one.violation is not None]
    finish(world)
    assert world.clean()


@given(networks())
@settings(max_examples=examples(60))
def test_every_body_of_a_healthy_peer_arrives(network: tuple[int, list[tuple[str | None, float]]]) -> None:
    run(*network)


@pytest.mark.soak
@given(networks())
@settings(max_examples=examples(5_000))
def test_every_body_of_a_healthy_peer_arrives_in_many_networks(
    network: tuple[int, list[tuple[str | None, float]]],
) -> None:
    run(*network)


@given(st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=examples(40))
def test_peers_that_leave_at_any_step_leave_nothing_behind(seed: int, peers: int) -> None:
    world, random = World(seed), Random(seed)
    bodies = chain(random, 30)
    for place in range(peers):
        world.join(f"peer {place}", Pool(*random.sample(bodies, 20)))
    for _ in range(200):
        world.step()
        if world.links and random.random() < 0.05:
            world.leave(random.choice(list(world.links)))
    for name in list(world.links):
        world.leave(name)
    while world.judge():
        pass
    assert world.closed == []
    assert world.clean()
    world.join("last", Pool(*bodies))
    for _ in range(100):
        world.settle()
        world.pass_time(0.5)
    assert missing(world, set(bodies)) == set()


def test_a_close_in_order_names_no_violation() -> None:
    world = World(3)
    world.join("a", Pool())
    finish(world)
    assert world.closed == [Close("a")]
