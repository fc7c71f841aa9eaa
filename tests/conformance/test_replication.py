"""Worked bytes of replication, with real keys: state, batch, Saved, claim, the next state. Seeds are 32 × 1, 2, 3."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from cardinal_ingest.protocols.replication import (
    NO_HASH,
    Block,
    Candidate,
    Claim,
    ClaimLog,
    Epoch,
    Head,
    Header,
    Marker,
    Membership,
    Observed,
    Position,
    Proposal,
    Propose,
    Ref,
    Rules,
    Saved,
    State,
    claim_bytes,
    decode,
    decode_agreed,
    decode_marker,
    decode_record,
    encode,
    encode_agreed,
    read_header,
    record_bytes,
    saved_bytes,
    seal_header,
)
from cardinal_ingest.protocols.replication.claims import Applied, Opened
from cardinal_ingest.protocols.replication.types import Answer, Item

signing = pytest.importorskip("nacl.signing")
KEYS = {name: signing.SigningKey(bytes([seed]) * 32) for name, seed in (("a", 1), ("b", 2), ("c", 3))}
CLUSTER = bytes.fromhex("20a30ab4fed3f5482dde2993083cb794bbecae4d51b9394d42e168cc1f9537e4")
MEMBERS = Membership(CLUSTER, "eth", {name: bytes(key.verify_key) for name, key in KEYS.items()})
RULES = Rules(start=100, window=128, max_blocks=500)
STATE = State.build(RULES, CLUSTER, "eth", 0, NO_HASH, Head(99, b"\x63" * 32, 0x63), 99, {b"\x63" * 32: 99})
ITEMS = (Item(100, b"\x64" * 32, b"\xd1" * 32), Item(101, b"\x65" * 32, b"\xd2" * 32))


def sign(name: str, data: bytes) -> bytes:
    return bytes(KEYS[name].sign(data).signature)


def verify(key: bytes, data: bytes, signature: bytes) -> bool:
    try:
        signing.VerifyKey(key).verify(data, signature)
    except Exception:  # noqa: BLE001 - the library has several
        return False
    return True


def header() -> Header:
    return seal_header(CLUSTER, "eth", 1, NO_HASH, STATE.digest, b"\x63" * 32, 0x65, ITEMS)


def claim() -> Claim:
    batch = header()
    signed = saved_bytes(CLUSTER, "eth", 1, batch.hash)
    unsigned = Claim(batch, "a", 0, tuple((name, sign(name, signed)) for name in "ab"), b"")
    return replace(unsigned, signature=sign("a", claim_bytes(CLUSTER, unsigned)))


def short(data: bytes) -> str:
    return f"{data[:4].hex()}…{data[-4:].hex()}"


def test_state_and_batch() -> None:
    assert short(STATE.digest) == "06744aac…df0aabcd"
    batch = header()
    assert len(batch.raw) == 304
    assert batch.hash.hex() == "9fa262838279947b6867524ff2dde4533fa93e71d49e9becf2f747da73e4b208"
    assert read_header(batch.raw) == batch
    assert State.read(STATE.raw, RULES) == (CLUSTER, "eth", STATE)


def test_saved() -> None:
    signed = saved_bytes(CLUSTER, "eth", 1, header().hash)
    assert short(sign("a", signed)) == "b8e24f6f…094fba03"
    assert short(sign("b", signed)) == "2c8fcf30…f9100907"


def test_claim_and_next_state() -> None:
    record = encode(claim())
    assert len(record) == 517
    assert short(hashlib.sha256(record).digest()) == "c90e7cf1…f12a0787"
    assert decode_record(record) == claim()
    log = ClaimLog(MEMBERS, verify, Position(state=STATE, rules=RULES))
    verdict = log.read(0, record)
    assert isinstance(verdict, Applied)
    assert short(verdict.state.digest) == "56df8e75…781d1691"
    assert verdict.state.head == Head(101, b"\x65" * 32, 0x65)


def test_an_epoch_opens_the_log_for_the_first_claim() -> None:
    keys = tuple(sorted(MEMBERS.members.items()))
    app = hashlib.sha256(b"evm:1").digest()
    epoch = Epoch("demo", 0, NO_HASH, app, keys, "eth", 100, 128, 500, STATE.raw, "b", b"")
    epoch = replace(epoch, signature=sign("b", record_bytes(CLUSTER, epoch)))
    assert decode_record(encode(epoch)) == epoch
    log = ClaimLog(MEMBERS, verify)
    assert log.read(0, encode(epoch)) == Opened(STATE)
    assert isinstance(log.read(1, encode(claim())), Applied)


def test_messages() -> None:
    for kind, message, payload in (
        (
            1,
            Observed("eth", (Block(100, b"\x64" * 32, b"\x63" * 32, 0x64, b"\xd1" * 32, 310_000),)),
            f"82 63657468 81 86 1864 5820{'64' * 32} 5820{'63' * 32} 4164 5820{'d1' * 32} 1a0004baf0",
        ),
        (2, Propose("eth", 1, NO_HASH, 7, 2), f"85 63657468 01 5820{'00' * 32} 07 02"),
        (
            3,
            Proposal("eth", 1, 7, Answer.VOTE, (Ref(100, b"\x64" * 32),)),
            f"85 63657468 01 07 00 81 82 1864 5820{'64' * 32}",
        ),
        (3, Proposal("eth", 1, 7, Answer.BEHIND, ()), "85 63657468 01 07 01 80"),
        (4, Candidate("eth", header()), f"82 63657468 590130 {header().raw.hex()}"),
        (5, Saved("eth", 1, header().hash, b"\x05" * 64), f"84 63657468 01 5820{header().hash.hex()} 5840{'05' * 64}"),
    ):
        assert encode(message) == bytes.fromhex(payload)
        assert decode(kind, bytes.fromhex(payload)) == message


def test_marker_and_position() -> None:
    marker = Marker(CLUSTER, "eth", 1, 2, header().hash, "c")
    payload = bytes.fromhex(f"87 01 5820{CLUSTER.hex()} 63657468 01 02 5820{header().hash.hex()} 6163")
    assert encode(marker) == payload
    assert decode_marker(payload) == marker
    assert encode_agreed(1, 2).hex() == "0000000000000001" + "00000002"
    assert decode_agreed(encode_agreed(1, 2)) == (1, 2)
