"""The worked bytes of the mesh: hashes, signed bytes and frames of a cluster of three, with real signatures."""

from __future__ import annotations

from hashlib import sha256
from types import ModuleType

import pytest

from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols.mesh import (
    Ack,
    Begin,
    Cluster,
    Heartbeat,
    Hello,
    Identity,
    Member,
    Message,
    Signed,
    Welcome,
    decode,
    signed_bytes,
)

CLUSTER = "20a30ab4fed3f5482dde2993083cb794bbecae4d51b9394d42e168cc1f9537e4"
SESSION = "c057958d0bdcd899facb0d3f89ef817dd294ef10f27a61d08664fd46a427693d"
MESSAGE = (
    "000000498504010542010258400ff7a669343100a7570c7d2730622e1501df3bba45c14c000ed7248cdf15ebda24ceb41d39ec528b740f"
    "b3d8d5953c2c57c840f836eac6476603be4ebd14a202"
)
HELLO_NONCE, WELCOME_NONCE = bytes(range(16)), bytes(range(16, 32))


@pytest.fixture(scope="module")
def nacl() -> ModuleType:
    return pytest.importorskip("nacl.signing", reason="Ed25519 of these tests is PyNaCl, of the extra 'ingest'")


@pytest.fixture(scope="module")
def nodes(nacl: ModuleType) -> dict[str, Identity]:
    keys = {name: nacl.SigningKey(bytes([seed]) * 32) for seed, name in enumerate("abc", 1)}
    members = tuple(Member(name, bytes(key.verify_key)) for name, key in keys.items())
    cluster = Cluster("demo", 0, sha256(b"evm:1").digest(), members[::-1])

    def verify(key: bytes, data: bytes, signature: bytes) -> bool:
        try:
            nacl.VerifyKey(key).verify(data, signature)
        except nacl.exc.BadSignatureError:
            return False
        return True

    return {
        name: Identity(cluster, name, lambda data, key=key: key.sign(data).signature, verify)
        for name, key in keys.items()
    }


def test_the_cluster_and_the_session_have_the_worked_hashes(nodes: dict[str, Identity]) -> None:
    cluster = nodes["a"].cluster
    assert cluster.digest.hex() == CLUSTER
    assert cluster.session("a", "b", HELLO_NONCE, WELCOME_NONCE).hex() == SESSION


def test_addresses_are_not_in_the_hash_and_everything_else_is(nodes: dict[str, Identity]) -> None:
    cluster = nodes["a"].cluster
    moved = tuple(Member(each.id, each.key, "10.0.0.1:7000") for each in cluster.members)
    assert Cluster("demo", 0, cluster.app, moved).digest == cluster.digest
    others = [
        Cluster("demo2", 0, cluster.app, cluster.members),
        Cluster("demo", 1, cluster.app, cluster.members),
        Cluster("demo", 0, bytes(32), cluster.members),
        Cluster("demo", 0, cluster.app, cluster.members[:2]),
        Cluster("demo", 0, cluster.app, (*cluster.members[:2], Member("c", bytes(32)))),
        Cluster("demo", 0, cluster.app, (*cluster.members[:2], Member("d", cluster.members[2].key))),
    ]
    assert len({each.digest for each in (cluster, *others)}) == 7


def test_a_message_has_the_worked_bytes(nodes: dict[str, Identity]) -> None:
    session = bytes.fromhex(SESSION)
    message = Message(1, 5, b"\x01\x02")
    expected = "836f63617264696e616c2f6d6573682f315820" + SESSION + "84040105420102"
    assert signed_bytes(message, session).hex() == expected
    assert nodes["a"].signed(message, session).hex() == MESSAGE
    frame = decode(bytes.fromhex(MESSAGE))
    assert isinstance(frame, Message)
    assert (frame.seq, frame.kind, frame.payload) == (1, 5, b"\x01\x02")
    nodes["b"].check(frame, session, "a")


@pytest.mark.parametrize(
    ("sender", "frame", "size", "signature"),
    [
        ("a", Hello(bytes.fromhex(CLUSTER), "a", "b", (1,), HELLO_NONCE), 129, "db89458f 52b3b300"),
        ("b", Welcome("b", "a", 1, WELCOME_NONCE), 94, "9022b966 ad349105"),
        ("a", Begin(), 72, "cae9b594 faf37904"),
        ("a", Message(1, 5, b"\x01\x02"), 77, "0ff7a669 bd14a202"),
        ("a", Heartbeat(2), 73, "739c43eb 419eed08"),
        ("b", Ack(2), 73, "bef4e9f2 a0abd209"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, (str, int)) else None,
)
def test_frames_have_the_worked_sizes_and_signatures(
    nodes: dict[str, Identity], sender: str, frame: Signed, size: int, signature: str
) -> None:
    context = bytes.fromhex(CLUSTER if isinstance(frame, Hello) else SESSION)
    data = nodes[sender].signed(frame, context)
    assert len(data) == size
    read = decode(data)
    assert f"{read.signature[:4].hex()} {read.signature[-4:].hex()}" == signature
    nodes["c"].check(read, context, sender)


def test_a_signature_counts_for_its_sender_its_context_and_its_fields_alone(nodes: dict[str, Identity]) -> None:
    session = bytes.fromhex(SESSION)
    frame = decode(bytes.fromhex(MESSAGE))
    reverse = nodes["a"].cluster.session("b", "a", HELLO_NONCE, WELCOME_NONCE)
    swapped = nodes["a"].cluster.session("a", "b", WELCOME_NONCE, HELLO_NONCE)
    sig = frame.signature
    for other, context, sender in (
        (frame, session, "b"),
        (frame, reverse, "a"),
        (frame, swapped, "a"),
        (frame, bytes.fromhex(CLUSTER), "a"),
        (Message(2, 5, b"\x01\x02", sig), session, "a"),
        (Message(1, 6, b"\x01\x02", sig), session, "a"),
        (Message(1, 5, b"\x01\x03", sig), session, "a"),
        (Heartbeat(1, sig), session, "a"),
        (Message(1, 5, b"\x01\x02", sig[:-1] + b"\x01"), session, "a"),
    ):
        with pytest.raises(ViolationError, match="BadSignature"):
            nodes["c"].check(other, context, sender)
