"""A created contract stands under no root of the header: it is held to who signed."""

from __future__ import annotations

from typing import Any

import pytest
from coincurve import PrivateKey

from cardinal.apps.evm import payload_from_rpc, rlp, verify
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.rlp import minimal_bytes
from cardinal.apps.evm.rpc.payload import payload_of
from cardinal.apps.evm.rpc.transactions import encode_transaction
from cardinal.errors import ApplicationError, IntegrityError

KEY = PrivateKey(b"\x46" * 32)  # the key of EIP-155's example
SENDER = "0x9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f"
NONCE = 9


def at_nonce(nonce: int) -> bytes:
    """Where the sender creates at a nonce."""
    return keccak(rlp.encode([bytes.fromhex(SENDER[2:]), bytes((nonce,))]))[12:]


CREATED = at_nonce(NONCE)
ELSEWHERE = "0x" + "77" * 20
ELSEWHERE_CREATED = "0x" + keccak(rlp.encode([bytes.fromhex(ELSEWHERE[2:]), bytes((NONCE,))]))[12:].hex()
HEADER = (
    *("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot", "logsBloom", "gasLimit"),
    *("gasUsed", "timestamp", "extraData", "mixHash", "nonce"),
)


def signed(kind: int, *, creates: bool) -> dict[str, Any]:
    """A transaction of a type, really signed."""
    shown: dict[str, Any] = {"nonce": hex(NONCE), "gas": "0x5208", "value": "0x0", "input": "0x6001", "from": SENDER}
    shown |= {"type": hex(kind), "to": None if creates else ELSEWHERE, "gasPrice": "0x1", "hash": "0x01"}
    to = b"" if creates else bytes.fromhex(ELSEWHERE[2:])
    call: list[rlp.Item] = [minimal_bytes(0x5208), to, b"", b"\x60\x01"]
    if kind == 0:
        digest = keccak(rlp.encode([bytes((NONCE,)), b"\x01", *call, b"\x01", b"", b""]))
    else:
        shown |= {"chainId": "0x1", "maxPriorityFeePerGas": "0x1", "maxFeePerGas": "0x2", "accessList": []}
        digest = keccak(b"\x02" + rlp.encode([b"\x01", bytes((NONCE,)), b"\x01", b"\x02", *call, []]))
    signature = KEY.sign_recoverable(digest, hasher=None)
    shown |= {"r": "0x" + signature[:32].hex(), "s": "0x" + signature[32:64].hex()}
    return shown | {"v": hex(signature[64] + (37 if kind == 0 else 0))}


def block_with(transaction: dict[str, Any], contract: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block for the check of contracts alone, after the merge; nothing else in it fits."""
    block: dict[str, Any] = dict.fromkeys(HEADER, "0x01") | {"number": "0x7", "difficulty": "0x0", "hash": "0x01"}
    receipt = {"cumulativeGasUsed": "0x1", "gasUsed": "0x1", "logsBloom": "0x", "logs": [], "status": "0x1"}
    return block | {"transactions": [transaction]}, [receipt | {"contractAddress": contract}]


@pytest.mark.parametrize("kind", [0, 2])
@pytest.mark.parametrize("said", ["0x" + CREATED.hex(), "0x" + CREATED.hex().upper(), None])
def test_a_creation_is_the_signers_whether_its_receipt_says_so_or_nothing(kind: int, said: str | None) -> None:
    block, receipts = block_with(signed(kind, creates=True), said)
    payload = payload_of(verify(block, receipts, checks=("contracts",)), chain_id=1)
    assert payload == payload_from_rpc(block, receipts, chain_id=1)
    assert rlp.decode_list(payload.updates["c/1/b/01/r/0"])[0] == CREATED


@pytest.mark.parametrize("kind", [0, 2])
@pytest.mark.parametrize(
    ("creates", "sender", "contract"),
    [
        (True, SENDER, ELSEWHERE),
        (True, ELSEWHERE, None),
        (True, ELSEWHERE, ELSEWHERE_CREATED),
        (True, None, None),
        (True, SENDER, "0x" + "00" * 20),
        (True, SENDER, "0x"),
        (False, SENDER, ELSEWHERE),
        (False, SENDER, "0x" + CREATED.hex()),
    ],
)
def test_another_contract_than_the_signers_is_found(
    kind: int, sender: str | None, contract: str | None, *, creates: bool
) -> None:
    block, receipts = block_with(signed(kind, creates=creates) | {"from": sender}, contract)
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, checks=("contracts",))
    assert caught.value.check == "contracts"


def test_a_call_names_no_contract_and_asks_nobodys_signature() -> None:
    unsigned = signed(0, creates=False) | {"r": "0x0", "s": "0x0"}
    for nothing in (None, "0x" + "00" * 20):
        verify(*block_with(unsigned, nothing), checks=("contracts",))


def test_a_creation_that_nobody_can_have_signed_is_refused() -> None:
    block, receipts = block_with(signed(0, creates=True) | {"r": "0x0", "s": "0x0"}, "0x" + CREATED.hex())
    with pytest.raises(IntegrityError, match="contracts"):
        verify(block, receipts, checks=("contracts",))


def test_the_nonce_of_a_deposit_counts_for_deposits_alone() -> None:
    block, receipts = block_with(signed(2, creates=True), None)
    receipts[0]["depositNonce"] = hex(NONCE + 1)
    payload = payload_of(verify(block, receipts, checks=("contracts",)), chain_id=1)
    assert rlp.decode_list(payload.updates["c/1/b/01/r/0"])[0] == CREATED
    lie = [receipts[0] | {"contractAddress": "0x" + at_nonce(NONCE + 1).hex()}]
    with pytest.raises(IntegrityError, match="contracts"):
        verify(block, lie, checks=("contracts",))


@pytest.mark.parametrize("kind", [0, 2])
@pytest.mark.parametrize("nobody", ["0x", ""])
def test_a_transaction_to_nobody_is_a_creation_however_that_is_said(kind: int, nobody: str) -> None:
    creation = signed(kind, creates=True)
    honest = payload_from_rpc(*block_with(creation, None), chain_id=1)
    block, receipts = block_with(creation | {"to": nobody}, None)
    assert payload_of(verify(block, receipts, checks=("contracts",)), chain_id=1) == honest
    for lie in (ELSEWHERE, "0x" + "00" * 20):
        with pytest.raises(IntegrityError, match="contracts"):
            verify(block, [receipts[0] | {"contractAddress": lie}], checks=("contracts",))


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("to", ["0X", "xx", "0x00", "0x" + "00" * 21])
def test_what_is_neither_an_address_nor_nobody_is_refused(kind: int, to: str) -> None:
    shown = signed(min(kind, 2), creates=True) | {"type": hex(kind), "to": to, "chainId": "0x1", "accessList": []}
    with pytest.raises(ApplicationError, match="is no address"):
        encode_transaction(shown)
