"""Client against server in one thread, under random windows, pipelining and pieces: received = sent, in order."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.protocols.diffusion import (
    Client,
    DiffusionSettings,
    Fetcher,
    MsgInit,
    ObjectId,
    Send,
    Server,
    TooLarge,
    Verify,
    encode,
)
from diffusing import Pool, id_of, identify, make
from examples import examples

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
