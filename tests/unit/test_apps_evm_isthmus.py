"""The OP Stack by its specifications' rules: what every fork tells of the chain below, Isthmus' headers, receipts."""

from __future__ import annotations

import pytest

from cardinal.apps.evm import decode, frames, l1_attributes, payload_from_rpc, verify
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.l1 import DEPOSITOR, L1_BLOCK
from cardinal.apps.evm.presets import CHAINS
from cardinal.apps.evm.receipts import encode_receipt
from cardinal.errors import ApplicationError, IntegrityError
from evm_blocks import DEPOSIT as DEPOSIT_TYPE
from evm_blocks import NO_UNCLES, Json, canonical, consensus, data, receipts_of, sealed, text

ZERO = "0x" + "00" * 32
NOBODY = "0x" + "00" * 20

LATER = {
    "base_fee_scalar": 5_227,
    "blob_base_fee_scalar": 1_014_213,
    "sequence_number": 2,
    "timestamp": 1_761_000_001,
    "number": 23_600_000,
    "base_fee": 2**200 + 7,
    "blob_base_fee": 11,
    "hash": bytes(range(32)),
    "batcher_hash": bytes(range(32, 64)),
    "operator_fee_scalar": 3,
    "operator_fee_constant": 2**63,
    "da_footprint_gas_scalar": 400,
}
SIZES = (4, 4, 8, 8, 8, 32, 32, 32, 32, 4, 8, 2)
"""Of the fields above, as the specification lays them out in the call."""
FORKS = {"ecotone": ("440a5e20", 9), "isthmus": ("098999be", 11), "jovian": ("3db6be2b", 12)}


def telling(fork: str, **changes: object) -> Json:
    """The deposit that tells it after a fork, by the rules of the specification."""
    selector, count = FORKS[fork]
    values = list(LATER.values())[:count]
    parts = [
        one if isinstance(one, bytes) else one.to_bytes(size, "big")
        for one, size in zip(values, SIZES[:count], strict=True)
    ]  # type: ignore[attr-defined]  # numbers
    below = keccak(bytes(range(32)) + (2).to_bytes(32, "big"))
    source = keccak((1).to_bytes(32, "big") + below)
    shown: Json = {"type": hex(DEPOSIT_TYPE), "from": text(DEPOSITOR), "to": text(L1_BLOCK), "mint": "0x0"}
    shown |= {"value": "0x0", "gas": hex(1_000_000), "isSystemTx": False, "sourceHash": text(source), "nonce": "0x9"}
    shown |= {"input": "0x" + selector + b"".join(parts).hex(), "gasPrice": "0x0", **changes}
    return shown | {"hash": text(keccak(canonical(shown)))}


def header(**changes: object) -> Json:
    """A header of Base after Isthmus; what follows from its parts is left to be filled in."""
    made: Json = {"parentHash": "0x" + "44" * 32, "miner": NOBODY, "stateRoot": "0x" + "55" * 32, "difficulty": "0x0"}
    made |= {
        "number": "0x1e00000",
        "gasLimit": "0x3938700",
        "timestamp": "0x68000000",
        "extraData": "0x00",
        "mixHash": ZERO,
    }
    made |= {
        "nonce": "0x" + "00" * 8,
        "baseFeePerGas": "0x1",
        "withdrawalsRoot": "0x" + "66" * 32,
        "blobGasUsed": "0x0",
    }
    made |= {"excessBlobGas": "0x0", "parentBeaconBlockRoot": "0x" + "77" * 32, "requestsHash": "0x" + "88" * 32}
    return made | changes


def told_block(*deposits: Json, **changes: object) -> tuple[Json, list[Json]]:
    """A block of these deposits after Canyon, whose every root fits."""
    outcome = {"gasUsed": "0xb000", "status": "0x1", "logs": [], "depositNonce": "0x9", "depositReceiptVersion": "0x1"}
    block, receipts = sealed(header(**changes), deposits, receipts_of(deposits, [outcome] * len(deposits)))
    return block | {"withdrawals": []}, receipts


@pytest.mark.parametrize("fork", FORKS)
def test_every_fork_tells_what_its_specification_lays_out(fork: str) -> None:
    block, receipts = told_block(telling(fork))
    verify(block, receipts, chain=CHAINS[8453])
    told = l1_attributes(decode(payload_from_rpc(block, receipts, chain_id=8453)))
    assert told is not None
    known = dict(list(LATER.items())[: FORKS[fork][1]])
    assert {name: getattr(told, name) for name in LATER} == {name: known.get(name) for name in LATER}
    assert (told.fee_overhead, told.fee_scalar) == (None, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sourceHash": "0x" + "01" * 32}, "source hash"),
        ({"input": "0x12345678"}, "0x12345678, which is not known"),
        ({"input": "0x440a5e20" + "00" * 161}, "165 bytes"),
        ({"input": "0x015d8eb9" + "ff" * 256}, "more than 64 bits"),
    ],
)
def test_a_call_that_tells_what_cannot_be_is_refused_by_name(changes: Json, reason: str) -> None:
    block, receipts = told_block(telling("ecotone", **changes))
    payload = payload_from_rpc(block, receipts, chain_id=10)
    with pytest.raises(ApplicationError, match=reason) as refused:
        l1_attributes(decode(payload))
    assert refused.value.path == f"c/a/b/{payload.hash.hex()}/t/0"


@pytest.mark.parametrize("changes", [{"from": NOBODY}, {"to": NOBODY}, {"to": None}])
def test_any_other_deposit_tells_nothing(changes: Json) -> None:
    block, receipts = told_block(telling("ecotone", **changes))
    assert l1_attributes(decode(payload_from_rpc(block, receipts, chain_id=10))) is None


# --- blocks after Isthmus ---------------------------------------------------------------------------------------------


def test_from_isthmus_on_the_root_of_withdrawals_is_of_something_else() -> None:
    block, receipts = told_block(telling("isthmus"))
    for name in ("optimism", "base"):
        chain = next(each for each in CHAINS.values() if each.name == name)
        verify(block, receipts, chain=chain)
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, chain=CHAINS[1])
    assert caught.value.check == "withdrawals root"
    payload = payload_from_rpc(block, receipts, chain_id=8453)
    assert not any(path.endswith("/w") for path in payload.updates)
    assert decode(payload).encode() == payload


def test_a_withdrawal_on_a_chain_without_any_is_a_lie() -> None:
    block, receipts = told_block(telling("isthmus"))
    lie = {"index": "0x0", "validatorIndex": "0x0", "address": NOBODY, "amount": "0x1"}
    with pytest.raises(IntegrityError) as caught:
        verify(block | {"withdrawals": [lie]}, receipts, chain=CHAINS[8453])
    assert caught.value.check == "withdrawals root"


@pytest.mark.parametrize("version", [None, "0x1"])
def test_nonce_and_version_of_a_deposit_are_under_the_root_from_canyon_on(version: str | None) -> None:
    deposit = telling("ecotone")
    outcome: Json = {"gasUsed": "0xb000", "status": "0x1", "logs": []}
    if version is not None:
        outcome |= {"depositNonce": "0x9", "depositReceiptVersion": version}
    (receipt,) = receipts_of([deposit], [outcome])
    assert encode_receipt(receipt) == consensus(receipt)
    block, receipts = sealed(header(), [deposit], [receipt])
    shown = [receipts[0] | {"depositNonce": "0x9"}]  # nodes say it since Regolith, whatever the root covers
    verify(block | {"withdrawals": []}, shown, chain=CHAINS[10])
    lied = [shown[0] | {"depositNonce": "0xa"}]
    if version is None:
        verify(block | {"withdrawals": []}, lied, chain=CHAINS[10])  # no root covers it
    else:
        with pytest.raises(IntegrityError, match="receipts root"):
            verify(block | {"withdrawals": []}, lied, chain=CHAINS[10])


def test_a_deposit_that_makes_wei_says_so_in_the_tables() -> None:
    deposits = telling("ecotone"), telling("ecotone", mint=hex(2**200), isSystemTx=True)
    block, receipts = told_block(*deposits)
    payload = payload_from_rpc(block, receipts, chain_id=10)
    rows = frames([payload], tables=["transactions"])["transactions"].to_pylist()
    assert [(row["mint"], row["source_hash"], row["access_list"]) for row in rows] == [
        ("0", deposits[0]["sourceHash"], None),
        (str(2**200), deposits[1]["sourceHash"], None),
    ]
    assert [entry.deposit and entry.deposit.is_system for entry in decode(payload).transactions] == [False, True]
    assert data(block["hash"]) == payload.hash
    assert block["sha3Uncles"] == NO_UNCLES
