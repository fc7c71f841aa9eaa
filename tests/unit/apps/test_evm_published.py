"""Checks of a published block: each lie is refused by the check that is made for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cardinal.errors import ApplicationError
from cardinal.protocols.streams import Payload
from cardinal.protocols.streams.payload import SubBatch
from cardinal_ethereum import chain_of, payload_from_rpc, rlp, verify_payload
from cardinal_ethereum.chains import Chain
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.state import StateDelta
from evm_blocks import DEPOSIT, NO_UNCLES, STATE_SYNC, Json, canonical, receipts_of, sealed, signed, state_sync, text
from evm_generated import KEYS

CHAIN = chain_of(1337)
ADDRESS = text(b"\x22" * 20)
LOG = {"address": ADDRESS, "topics": [text(b"\x44" * 32)], "data": "0x05"}
NAME = (b"\x77" * 32).hex()
CODE = b"\x60\x00"
WITHDRAWAL = {"index": "0x1", "validatorIndex": "0x2", "address": ADDRESS, "amount": "0x3"}
HEADER: Json = {
    "parentHash": text(b"p" * 32),
    "sha3Uncles": NO_UNCLES,
    "miner": ADDRESS,
    "stateRoot": text(b"s" * 32),
    "difficulty": "0x0",
    "number": "0x5",
    "gasLimit": "0xffff",
    "timestamp": "0x64",
    "extraData": "0x",
    "mixHash": text(b"m" * 32),
    "nonce": "0x" + "00" * 8,
    "baseFeePerGas": "0x7",
}
STATE = StateDelta(
    {f"c/539/a/{NAME}/d": b"1", f"c/539/c/{keccak(CODE).hex()}": CODE},
    frozenset({f"c/539/a/{NAME}"}),
    {f"c/539/a/{NAME}/s/{NAME}": b"2"},
)


def transaction(to: str | None, nonce: int, chain_id: int = 1337) -> Json:
    shown: Json = {"type": "0x2", "nonce": hex(nonce), "gas": "0x5208", "value": "0x1", "to": to, "input": "0x"}
    shown |= {"maxPriorityFeePerGas": "0x1", "maxFeePerGas": "0x9", "chainId": hex(chain_id), "accessList": []}
    return signed(shown, KEYS[0], chain_id)


def block(header: Json | None = None, transactions: list[Json] | None = None, **more: Any) -> Payload:  # noqa: ANN401
    """A block with a call, a creation, logs, a withdrawal, an uncle and a state delta."""
    header = HEADER | {"withdrawals": [WITHDRAWAL]} if header is None else header
    transactions = [transaction(ADDRESS, 0), transaction(None, 1)] if transactions is None else transactions
    outcomes: list[Json] = [{"gasUsed": "0x7", "logs": [LOG, LOG], "status": "0x1"} for _ in transactions]
    uncle = HEADER | {"transactionsRoot": text(b"t" * 32), "receiptsRoot": text(b"r" * 32), "gasUsed": "0x0"}
    uncles = [uncle | {"logsBloom": "0x" + "00" * 256}]
    made, receipts = sealed(header, transactions, receipts_of(transactions, outcomes), uncles)
    chain: Chain = more.get("chain", CHAIN)
    return payload_from_rpc(made, receipts, chain_id=chain.chain_id, uncles=uncles, **({"state": STATE} | more))


HONEST = block()
OWN = f"c/539/b/{HONEST.hash.hex()}/"


def with_value(payload: Payload, path: str, value: bytes | None) -> Payload:
    updates = {name: was for name, was in payload.updates.items() if name != path}
    return replace(payload, updates=updates if value is None else updates | {path: value})


def value(path: str, change: Callable[[Any], object]) -> Callable[[Payload], Payload]:
    """The values of one entry, changed in place."""

    def lie(payload: Payload) -> Payload:
        was = payload.updates[path]
        kind = was[:1] if was[0] < 0xC0 else b""
        items = rlp.decode_list(was[len(kind) :])
        change(items)
        return with_value(payload, path, kind + rlp.encode(items))

    return lie


def entry(path: str, new: bytes | None) -> Callable[[Payload], Payload]:
    return lambda payload: with_value(payload, path, new)


def moved(path: str, to: str) -> Callable[[Payload], Payload]:
    return lambda payload: with_value(with_value(payload, path, None), to, payload.updates[path])


def put(at: int, new: rlp.Item) -> Callable[[Any], object]:
    return lambda items: items.__setitem__(at, new)


def sub_batch(**fields: object) -> Callable[[Payload], Payload]:
    def lie(payload: Payload) -> Payload:
        ((batch_id, part),) = payload.sub_batches.items()
        assert part is not None
        return replace(payload, sub_batches={batch_id: replace(part, **fields)})  # type: ignore[arg-type]

    return lie


LIES: list[tuple[str, Callable[[Payload], Payload]]] = [
    ("hash", value(OWN + "h", put(9, b"\1"))),
    ("lacks its header", entry(OWN + "h", None)),
    ("number and parent", lambda payload: replace(payload, parent=b"q" * 32)),
    ("number and parent", lambda payload: replace(payload, number=6, weight=payload.weight + 1)),
    ("weight", lambda payload: replace(payload, weight=payload.weight + 1)),
    ("weight", entry(OWN + "d", b"\5")),
    ("its difficulty", entry(OWN + "d", None)),
    ("entries", entry(OWN + "x", b"1")),
    ("entries", entry("more", b"1")),
    ("entries", entry("c/1/n/5", HONEST.hash)),
    ("entries", entry("c/539/n/5", None)),
    ("entries", entry("c/539/n/5", b"q" * 32)),
    ("entries", entry("c/539/n/6", HONEST.hash)),
    ("entries", entry("c/539/n/safe", None)),
    ("entries", entry("c/539/n/finalized", b"\0\1")),
    ("entries", entry("c/539/n/finalized", b"\1" * 9)),
    ("entries", entry("c/539/a/77/d", b"1")),
    ("entries", entry(f"c/539/c/{keccak(CODE).hex()}", CODE + CODE)),
    ("entries", lambda payload: replace(payload, deletes=frozenset({"c/539/a/"}))),
    ("entries", lambda payload: replace(payload, sub_batches={b"i" * 32: SubBatch("c/539/s", {}, frozenset())})),
    ("entries", sub_batch(path="c/539/t")),
    ("entries", sub_batch(updates={"c/539/n/5": HONEST.hash})),
    ("entries", sub_batch(deletes=frozenset({"c/539"}))),
    ("transactions root", value(OWN + "t/0", put(6, b"\2"))),
    ("transactions root", entry(OWN + "t/1", None)),
    ("transactions root", moved(OWN + "t/1", OWN + "t/2")),
    ("receipt order", entry(OWN + "r/1", None)),
    ("receipt order", moved(OWN + "r/1", OWN + "r/2")),
    ("log order", entry(OWN + "l/1/3", None)),
    ("log order", moved(OWN + "l/0/1", OWN + "l/1/1")),
    ("log order", moved(OWN + "l/1/3", OWN + "l/1/4")),
    ("log order", value(OWN + "r/1", put(6, b"\1"))),
    ("log order", entry(OWN + "bl/2/5", HONEST.updates[OWN + "l/1/3"])),
    ("receipts root", value(OWN + "r/0", put(1, b"\6"))),
    ("receipts root", value(OWN + "r/0", put(3, bytes(256)))),
    ("receipts root", value(OWN + "r/0", put(4, b""))),
    ("receipts root", value(OWN + "l/0/0", put(0, b"\x23" * 20))),
    ("receipts root", value(OWN + "l/0/0", put(1, []))),
    ("receipts root", value(OWN + "l/0/0", put(2, b"6"))),
    ("state sync", entry(OWN + "br/2", bytes(256))),
    ("state sync", entry(OWN + "bl/2/4", HONEST.updates[OWN + "l/1/3"])),
    ("gas", value(OWN + "r/0", put(2, b"\6"))),
    ("contracts", value(OWN + "r/0", put(0, b"\x23" * 20))),
    ("contracts", value(OWN + "r/1", put(0, bytes(20)))),
    ("withdrawals root", value(OWN + "w", lambda items: items[0].__setitem__(3, b"\4"))),
    ("withdrawals root", entry(OWN + "w", None)),
    ("withdrawals root", entry(OWN + "w", b"\xc0")),
    ("uncles hash", value(OWN + "u/0", put(9, b"\1"))),
    ("uncles hash", entry(OWN + "u/0", None)),
]


def refused(payload: Payload, check: str, chain: Chain = CHAIN) -> None:
    with pytest.raises(ApplicationError, match=check):
        verify_payload(payload, chain)


def test_an_honest_block_with_every_part_is_accepted() -> None:
    verify_payload(HONEST, CHAIN)
    assert {path.removeprefix(OWN).partition("/")[0] for path in HONEST.updates if path.startswith(OWN)} == set(
        "hdwutrl"
    )


@pytest.mark.parametrize(("check", "lie"), LIES)
def test_a_lie_is_refused_by_its_check(check: str, lie: Callable[[Payload], Payload]) -> None:
    payload = lie(HONEST)
    assert payload != HONEST
    refused(payload, check)


def test_a_block_of_another_chain_is_refused() -> None:
    refused(HONEST, "on chain 1$", chain_of(1))


# --- roots that are the publisher's own: a header that fits its lies -----------------------------------------------


def with_header(payload: Payload, at: int, new: bytes) -> Payload:
    """The payload under another header, and so of another block."""
    old = f"c/539/b/{payload.hash.hex()}/"
    items = rlp.decode_list(payload.updates[old + "h"])
    items[at] = new
    header = rlp.encode(items)
    made = keccak(header)
    moved_to = f"c/539/b/{made.hex()}/"
    updates = {path.replace(old, moved_to): was for path, was in payload.updates.items()}
    return replace(payload, hash=made, updates=updates | {moved_to + "h": header, "c/539/n/5": made})


@pytest.mark.parametrize(
    ("check", "field", "new"),
    [
        ("number and parent", 0, b"q" * 32),
        ("number and parent", 8, b"\6"),
        ("bloom", 6, bytes(256)),
        ("gas", 10, b"\1"),
        ("uncles hash", 1, bytes(32)),
        ("receipts root", 5, bytes(32)),
        ("transactions root", 4, bytes(32)),
        ("withdrawals root", 16, bytes(32)),
        ("weight", 7, b"\1"),
    ],
)
def test_a_header_that_contradicts_the_parts_is_refused(check: str, field: int, new: bytes) -> None:
    verify_payload(with_header(HONEST, 9, b"\1"), CHAIN)
    refused(with_header(HONEST, field, new), check)


def test_a_contract_is_held_to_the_signer() -> None:
    unsigned = transaction(None, 0) | {"r": "0x0", "s": "0x0"}
    refused(block(transactions=[unsigned | {"hash": text(keccak(canonical(unsigned)))}]), "contracts")


def test_withdrawals_of_a_header_without_their_root_are_refused() -> None:
    header = {name: shown for name, shown in HEADER.items() if name != "baseFeePerGas"}
    payload = block(header)
    verify_payload(payload, CHAIN)
    own = f"c/539/b/{payload.hash.hex()}/w"
    refused(with_value(payload, own, HONEST.updates[OWN + "w"]), "withdrawals root")


def test_before_the_merge_the_weight_is_a_total_of_the_difficulty_at_least() -> None:
    header = HEADER | {"difficulty": "0x9"}
    verify_payload(block(header, total_difficulty=9), CHAIN)
    refused(block(header, total_difficulty=8), "weight")


def test_after_the_merge_the_total_is_the_chains() -> None:
    chain = CHAIN.model_copy(update={"final_total_difficulty": 40})
    verify_payload(block(total_difficulty=40), chain)
    refused(block(total_difficulty=41), "weight", chain)


def test_a_check_that_a_chain_does_not_pass_is_skipped() -> None:
    lie = value(OWN + "r/0", put(4, b""))(HONEST)
    refused(lie, "receipts root")
    verify_payload(lie, CHAIN.model_copy(update={"unchecked": frozenset({"receipts root"})}))


def test_receipts_before_byzantium_are_held_to_bloom_gas_and_signers() -> None:
    chain = CHAIN.model_copy(update={"status_from": 6})
    verify_payload(value(OWN + "r/0", put(4, b""))(HONEST), chain)
    refused(value(OWN + "l/0/0", put(0, b"\x23" * 20))(HONEST), "bloom", chain)
    refused(value(OWN + "r/0", put(1, b"\6"))(HONEST), "gas", chain)


def deposit(to: str | None) -> Json:
    shown: Json = {"type": hex(DEPOSIT), "from": ADDRESS, "to": to, "mint": "0x0", "value": "0x0", "gas": "0x5208"}
    shown |= {"isSystemTx": False, "sourceHash": text(b"d" * 32), "input": "0x", "nonce": "0x3"}
    shown |= dict.fromkeys(("gasPrice", "v", "r", "s"), "0x0")
    return shown | {"hash": text(keccak(canonical(shown)))}


def test_a_deposits_contract_is_not_held_to_anything_and_a_signers_is() -> None:
    payload = block(transactions=[deposit(ADDRESS), deposit(None), transaction(None, 1)])
    verify_payload(payload, CHAIN)
    own = f"c/539/b/{payload.hash.hex()}/r/"
    verify_payload(value(own + "1", put(0, bytes(20)))(payload), CHAIN)  # before Canyon no root covers its nonce
    refused(value(own + "2", put(0, b"\x23" * 20))(payload), "contracts")


def test_a_state_sync_in_the_body_is_the_last_transaction_of_a_chain_that_has_it() -> None:
    chain = CHAIN.model_copy(update={"state_sync": True, "state_sync_in_body": 5})
    synced = state_sync([(1, b"\x22" * 20, b"data", b"h" * 32)])
    assert synced["type"] == hex(STATE_SYNC)
    payload = block(transactions=[transaction(ADDRESS, 0), synced], chain=chain)
    verify_payload(payload, chain)
    verify_payload(payload, CHAIN)  # of an unknown type there
    refused(payload, "transactions root", chain.model_copy(update={"state_sync_in_body": 6}))
    first = with_value(payload, path := f"c/539/b/{payload.hash.hex()}/t/0", payload.updates[path[:-1] + "1"])
    refused(first, "transactions root", chain)


def test_a_state_sync_outside_the_body_fits_its_bloom() -> None:
    chain = CHAIN.model_copy(update={"state_sync": True, "state_sync_in_body": 6})
    bloom = rlp.decode_list(HONEST.updates[OWN + "r/0"])[3]
    assert isinstance(bloom, bytes)
    log = HONEST.updates[OWN + "l/0/0"]
    payload = with_value(with_value(HONEST, OWN + "br/2", bloom), OWN + "bl/2/4", log)
    verify_payload(payload, chain)
    refused(payload, "state sync")
    refused(payload, "state sync", chain.model_copy(update={"state_sync_in_body": 5}))
    refused(with_value(payload, OWN + "br/2", bytes(256)), "state sync", chain)
    refused(moved(OWN + "bl/2/4", OWN + "bl/3/4")(payload), "state sync", chain)
