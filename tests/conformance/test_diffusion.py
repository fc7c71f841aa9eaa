"""The vectors of object diffusion: bytes of every message, and exchanges with a server and with a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols.diffusion import (
    Announcement,
    Client,
    DiffusionSettings,
    Message,
    MsgDone,
    MsgInit,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    Server,
    State,
    Verify,
    decode,
    encode,
)
from diffusing import Pool, id_of, identify, verify, written
from vectors import Case, load

CASES = load("diffusion.json")
EXCHANGES = load("diffusion.json", "exchanges")

raw = bytes.fromhex


def object_id(fields: Case) -> ObjectId:
    return ObjectId(fields["number"], raw(fields["hash"]))


BUILD: dict[str, Callable[[Case], Message]] = {
    "MsgInit": lambda m: MsgInit(m["from"]),
    "MsgRequestObjectIds": lambda m: MsgRequestObjectIds(m["blocking"], m["ack"], m["req"]),
    "MsgReplyObjectIds": lambda m: MsgReplyObjectIds(
        tuple(Announcement(object_id(one), one["size"]) for one in m["ids"])
    ),
    "MsgRequestObjects": lambda m: MsgRequestObjects(tuple(map(object_id, m["ids"]))),
    "MsgReplyObjects": lambda m: MsgReplyObjects(tuple(map(raw, m["objects"]))),
    "MsgDone": lambda _: MsgDone(),
}


def built(fields: Case) -> Message:
    return BUILD[fields["type"]](fields)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_bytes_read_and_write_as_in_the_vector(case: Case) -> None:
    state, data = State(case["state"]), raw(case["hex"])
    if "error" in case:
        with pytest.raises(ViolationError) as refused:
            decode(state, data, limit=case.get("limit"))
        assert refused.value.violation == case["error"]
        return
    message = built(case["message"])
    assert decode(state, data, limit=case.get("limit")) == message
    assert decode(state, encode(message)) == message
    assert (encode(message) == data) is case["canonical"]


def by_role(role: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in EXCHANGES if case["role"] == role]


@pytest.mark.parametrize("case", by_role("server"))
def test_a_server_answers_as_in_the_vector(case: Case) -> None:
    limit = case.get("reply_limit", 2_500_000)
    pool = Pool(*map(raw, case["pool"]))
    server = Server(pool, DiffusionSettings(max_unacked=case["max_unacked"], reply_limit=limit))
    for step in case["steps"]:
        out = step["out"]
        if isinstance(out, dict) and "violation" in out:
            with pytest.raises(ViolationError) as refused:
                server.receive(encode(built(step["in"])))
            assert refused.value.violation == out["violation"]
            server.close()
            break
        if "add" in step:
            pool.add(id_of(raw(step["add"])), raw(step["add"]))
        else:
            server.receive(encode(built(step["in"])))
        state, reply = server.state, written(server)
        if isinstance(out, dict):
            assert decode(state, reply) == built(out)
        else:
            assert reply == b""
            assert out is None or server.state is State.BLOCKING
    server.close()
    assert pool.pinned == 0


def receive(client: Client, message: Message) -> str | None:
    """The rule that a reply breaks, verification included."""
    try:
        copies = [one for one in client.receive(message, 0.0) if isinstance(one, Verify)]
    except ViolationError as error:
        return error.violation
    return None if all(verify(copy.body) for copy in copies) else "ObjectInvalid"


def send(client: Client, message: Message) -> bytes:
    match message:
        case MsgRequestObjectIds(blocking, ack, req):
            return client.request_ids(ack, req, 0.0, blocking=blocking)
        case MsgRequestObjects(ids):
            return client.request_objects(ids, 0.0)
        case MsgInit(lowest):
            return client.open(lowest)
    raise AssertionError(message)


@pytest.mark.parametrize("case", by_role("client"))
def test_a_client_judges_as_in_the_vector(case: Case) -> None:
    client = Client("a", identify)
    for step in case["steps"]:
        if "sent" in step:
            message = built(step["sent"])
            assert send(client, message) == encode(message)
        else:
            assert receive(client, built(step["received"])) == step["violation"]
        if not step.get("violation"):
            assert list(client.offers) == list(map(object_id, step["fifo"]))
