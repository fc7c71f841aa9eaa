"""Laws of object diffusion: bytes, client against server, one fetcher and several servers, some impaired."""

from __future__ import annotations

from io import BytesIO
from itertools import combinations
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols.diffusion import (
    Announcement,
    Client,
    Close,
    Decoder,
    DiffusionSettings,
    Fetcher,
    Message,
    MsgDone,
    MsgInit,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    Send,
    Server,
    State,
    TooLarge,
    Verify,
    decode,
    encode,
)
from diffusing import IMPAIRMENTS, Pool, World, finish, id_of, identify, invalid, make
from examples import examples

EDGES = [0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1]


def words(bits: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, 2**bits - 1), st.sampled_from([edge for edge in EDGES if edge < 2**bits]))


IDS = st.builds(ObjectId, words(64), st.binary(min_size=32, max_size=32))
OBJECTS = st.one_of(st.binary(max_size=30), st.sampled_from([b"x" * size for size in (23, 24, 255, 256, 65_536)]))
ANNOUNCEMENTS = st.lists(st.builds(Announcement, IDS, words(32)), max_size=6).map(tuple)

MESSAGES: st.SearchStrategy[tuple[State, Message]] = st.one_of(
    st.tuples(st.just(State.INIT), st.builds(MsgInit, words(64))),
    st.tuples(st.just(State.IDLE), st.builds(MsgRequestObjectIds, st.booleans(), words(16), words(16))),
    st.tuples(st.just(State.IDLE), st.builds(MsgRequestObjects, st.lists(IDS, max_size=6).map(tuple))),
    st.tuples(st.just(State.IDLE), st.just(MsgDone())),
    st.tuples(st.just(State.NON_BLOCKING), st.builds(MsgReplyObjectIds, ANNOUNCEMENTS)),
    st.tuples(st.just(State.BLOCKING), st.builds(MsgReplyObjectIds, ANNOUNCEMENTS.filter(bool))),
    st.tuples(st.just(State.OBJECTS), st.builds(MsgReplyObjects, st.lists(OBJECTS, max_size=4).map(tuple))),
)


def outcome(state: State, data: bytes) -> Message | str:
    """The message of a closed frame, or the name of the rule that it breaks."""
    try:
        return decode(state, data)
    except ViolationError as error:
        assert error.violation in ("DecoderFailure", "ExceededSizeLimit", "Incomplete")  # noqa: PT017 - all that there is
        return error.violation


def in_pieces(state: State, pieces: list[bytes]) -> Message | str:
    """The outcome of the same bytes, fed in pieces."""
    decoder, message = Decoder(state), None
    try:
        for piece in pieces:
            if message is not None and piece:
                return "DecoderFailure"
            message = decoder.feed(piece) if message is None else message
    except ViolationError as error:
        return error.violation
    if message is not None and decoder.rest:
        return "DecoderFailure"
    return message or "Incomplete"


@given(MESSAGES)
def test_a_message_survives_the_round_trip(case: tuple[State, Message]) -> None:
    state, message = case
    assert decode(state, encode(message)) == message


@given(MESSAGES)
def test_a_message_is_one_only_in_its_states(case: tuple[State, Message]) -> None:
    home, message = case
    for state in State:
        both = isinstance(message, MsgReplyObjectIds) and {state, home} == {State.BLOCKING, State.NON_BLOCKING}
        if state is not home and not both:
            assert outcome(state, encode(message)) == "DecoderFailure"


SMALL = [
    (State.INIT, MsgInit(18_000_000)),
    (State.IDLE, MsgRequestObjectIds(blocking=False, ack=3, req=50)),
    (State.IDLE, MsgRequestObjects((ObjectId(24, b"h" * 32),))),
    (State.BLOCKING, MsgReplyObjectIds((Announcement(ObjectId(2**16, b"h" * 32), 310_000),) * 2)),
    (State.OBJECTS, MsgReplyObjects((b"abc", b"", b"d" * 24))),
    (State.IDLE, MsgDone()),
]


@pytest.mark.parametrize(("state", "message"), SMALL)
@pytest.mark.parametrize("after", [b"", b"\x00"])
def test_every_split_in_two_and_three_pieces_reads_the_same(state: State, message: Message, after: bytes) -> None:
    data = encode(message) + after
    expected = outcome(state, data)
    assert expected == ("DecoderFailure" if after else message)
    for first, second in combinations(range(len(data) + 1), 2):
        assert in_pieces(state, [data[:first], data[first:]]) == expected
        assert in_pieces(state, [data[:first], data[first:second], data[second:]]) == expected
    assert in_pieces(state, [data[at : at + 1] for at in range(len(data))]) == expected


@pytest.mark.parametrize(("state", "message"), SMALL)
def test_every_prefix_is_incomplete(state: State, message: Message) -> None:
    data = encode(message)
    assert {outcome(state, data[:end]) for end in range(len(data))} == {"Incomplete"}


@given(MESSAGES, st.data())
@settings(max_examples=examples(400))
def test_mutations_raise_the_documented_errors_alone_whatever_the_pieces(
    case: tuple[State, Message], data: st.DataObject
) -> None:
    state, message = case
    mutated = bytearray(encode(message)[:400])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated)))
        end = data.draw(st.integers(at, min(len(mutated), at + 4)))
        mutated[at:end] = data.draw(st.binary(max_size=4))
    state = data.draw(st.sampled_from([state, state, *State]))
    cut = data.draw(st.integers(0, len(mutated)))
    frame = bytes(mutated)
    assert outcome(state, frame) == in_pieces(state, [frame[:cut], frame[cut:]])


@given(st.sampled_from(list(State)), st.binary(max_size=60))
def test_noise_raises_the_documented_errors_alone(state: State, noise: bytes) -> None:
    found = outcome(state, noise)
    if not isinstance(found, str):
        assert decode(state, encode(found)) == found


# --- cbor2 as oracle ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cbor2() -> ModuleType:
    return pytest.importorskip("cbor2", reason="the oracle of these tests is cbor2, of the extra 'dev'")


def term_of(message: Message) -> list[Any]:
    """The message as a CBOR term."""
    match message:
        case MsgInit(lowest):
            return [0, lowest] if lowest else [0]
        case MsgRequestObjectIds(blocking, ack, req):
            return [1, blocking, ack, req]
        case MsgReplyObjectIds(announcements):
            return [2, [[one.number, one.hash, size] for one, size in announcements]]
        case MsgRequestObjects(ids):
            return [3, [list(one) for one in ids]]
        case MsgReplyObjects(objects):
            return [4, list(objects)]
    return [5]


def composed(cbor2: ModuleType, message: Message) -> bytes:
    """The bytes as the oracle writes their parts; it cannot write the outer array definite and the inner one not."""
    head, *fields = term_of(message)
    parts = [bytes((0x80 | 1 + len(fields),)), cbor2.dumps(head)]
    for field in fields:
        if isinstance(field, list):
            parts += [b"\x9f", *map(cbor2.dumps, field), b"\xff"]
        else:
            parts.append(cbor2.dumps(field))
    return b"".join(parts)


def listed(term: object) -> object:
    return [listed(one) for one in term] if isinstance(term, (list, tuple)) else term


@given(MESSAGES)
def test_the_bytes_are_those_of_cbor2(cbor2: ModuleType, case: tuple[State, Message]) -> None:
    _, message = case
    data = encode(message)
    assert data == composed(cbor2, message)
    stream = BytesIO(data)
    assert listed(cbor2.load(stream)) == term_of(message)
    assert stream.read() == b""


@given(MESSAGES, st.data())
@settings(max_examples=examples(300))
def test_what_reads_here_reads_the_same_in_cbor2(
    cbor2: ModuleType, case: tuple[State, Message], data: st.DataObject
) -> None:
    state, message = case
    mutated = bytearray(encode(message)[:400])
    for _ in range(data.draw(st.integers(0, 2))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    found = outcome(state, bytes(mutated))
    if not isinstance(found, str):
        read = listed(cbor2.loads(bytes(mutated)))
        assert read in (term_of(found), [0, 0] if found == MsgInit() else None)


# --- client against server ------------------------------------------------------------------------------------------


WINDOWS = st.builds(
    DiffusionSettings,
    max_unacked=st.integers(1, 12),
    ids_per_request=st.integers(1, 15),
    objects_per_request=st.integers(1, 5),
    reply_limit=st.integers(1, 3_000),
    peer_bytes=st.integers(1, 4_000),
    total_bytes=st.integers(4_000, 8_000),
)


@given(WINDOWS, st.integers(0, 30), st.integers(0, 2**32))
@settings(max_examples=examples(100))
def test_everything_arrives_in_order(windows: DiffusionSettings, count: int, seed: int) -> None:
    random = Random(seed)
    bodies = [make(number, random.randbytes(3), random.randrange(8, 1_500)) for number in range(count)]
    source, pool = Pool(*bodies[: count // 2]), Pool()
    late = bodies[count // 2 :]
    server, fetcher = Server(source, windows), Fetcher(pool, identify, windows)
    to_server, to_client, verifying, now = bytearray(), bytearray(), list[Verify](), 0.0
    delivered: list[bytes] = []
    actions = fetcher.join("a", 0, now)
    for _ in range(20_000):
        for action in actions:
            if isinstance(action, Send):
                to_server += action.data
            else:
                assert isinstance(action, Verify)
                verifying.append(action)
                delivered.append(action.body)
        assert len(server.outstanding) <= windows.max_unacked
        actions = []
        match random.randrange(5):
            case 0:
                cut = random.randrange(len(to_server) + 1)
                server.receive(bytes(to_server[:cut]))
                del to_server[:cut]
            case 1:
                to_client += server.send() or b""
            case 2:
                cut = random.randrange(min(len(to_client), 700) + 1)
                actions = fetcher.receive("a", bytes(to_client[:cut]), now)
                del to_client[:cut]
            case 3 if verifying:
                actions = fetcher.verified(verifying.pop(0), now, valid=True)
            case _:
                now += 0.01
                actions = fetcher.tick(now)
                if late and random.random() < 0.2:
                    source.add(id_of(late[0]), late.pop(0))
        idle = not (to_server or to_client or verifying or late or actions)
        if idle and len(pool.bodies) == count and not source.pinned:
            break
    assert list(pool.bodies.values()) == delivered == bodies
    assert fetcher.outstanding("a") == server.outstanding == []
    assert not fetcher.loads()
    server.close()
    assert source.pinned == 0


@given(WINDOWS, st.integers(1, 25), st.data())
@settings(max_examples=examples(100))
def test_any_choice_of_requests_that_the_rules_allow_is_answered(
    windows: DiffusionSettings, count: int, data: st.DataObject
) -> None:
    """The mirror and the queue agree, whatever the client chooses to request, acknowledge and leave out."""
    bodies = [make(number, size=20) for number in range(count)]
    pool = Pool(*bodies)
    server, client = Server(pool, windows), Client("a", identify, windows)
    server.receive(encode(MsgInit()))
    seen: list[ObjectId] = []
    got: list[ObjectId] = []
    wanted: list[ObjectId] = []
    for _ in range(30):
        before = list(client.offers)
        unsent = [one for one in before if not client.offers[one].requested]
        if unsent and not client.full and data.draw(st.booleans(), label="objects"):
            request = client.request_objects((data.draw(st.sampled_from(unsent)),), 0.0)
            wanted.append(next(one for one in unsent if client.offers[one].requested))
        else:
            done = set(before[: data.draw(st.integers(0, len(before)), label="settled")])
            asked = client.next_ids(done.__contains__, 0.0, follows_objects=data.draw(st.booleans(), label="polls"))
            request = b"" if asked is None else asked
        server.receive(request)
        if client.in_flight and not data.draw(st.booleans(), label="pipelines"):
            reply = b"".join(iter(server.send, None))
            actions = list(client.feed(reply, 0.0))
            assert not [one for one in actions if isinstance(one, TooLarge)]
            got += [one.id for one in actions if isinstance(one, Verify)]
            seen += [one for one in client.offers if one not in seen]
            assert list(client.offers) == server.outstanding
        if client.blocked and len(seen) == count:
            break
    assert seen == [id_of(body) for body in bodies][: len(seen)]
    assert got == wanted[: len(got)]
    server.close()
    assert pool.pinned == 0


# --- several peers --------------------------------------------------------------------------------------------------


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
