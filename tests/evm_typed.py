"""Blocks of mainnet after Prague with transactions of every type, really signed."""

from __future__ import annotations

from typing import Any

from coincurve import PrivateKey

from cardinal.protocols.streams.payload import Payload
from cardinal_ethereum import payload_from_rpc, rlp, verify
from cardinal_ethereum.chains import CHAINS
from cardinal_ethereum.keccak import keccak
from evm_blocks import ZERO_ADDRESS, Json, minimal, receipts_of, sealed, signed, text

KEY, OTHER = PrivateKey(b"\x46" * 32), PrivateKey(b"\x47" * 32)
ZERO = "0x" + "00" * 32


def address(key: PrivateKey) -> str:
    return text(keccak(key.public_key.format(compressed=False)[1:])[12:])


def wish(key: PrivateKey, chain_id: int, nonce: int, **changes: Any) -> Json:  # noqa: ANN401 -- JSON
    """A signed wish to run the code of another account (EIP-7702)."""
    code = b"\x77" * 20
    digest = keccak(b"\x05" + rlp.encode([minimal(chain_id), code, minimal(nonce)]))
    signature = key.sign_recoverable(digest, hasher=None)
    r, s = (hex(int.from_bytes(signature[at : at + 32], "big")) for at in (0, 32))
    shown = {"chainId": hex(chain_id), "address": text(code), "nonce": hex(nonce)}
    return shown | {"yParity": hex(signature[64]), "r": r, "s": s} | changes


def call(kind: int, **more: Any) -> Json:  # noqa: ANN401 -- JSON
    shown: Json = {"type": hex(kind), "nonce": "0x0", "gas": "0x5208", "to": ZERO_ADDRESS, "value": "0x0"}
    shown |= {"input": "0x", "chainId": "0x1", "maxPriorityFeePerGas": "0x1", "maxFeePerGas": "0x7", "accessList": []}
    return signed(shown | more, KEY, 1)


def block_of(*transactions: Json) -> Payload:
    """A block of mainnet after Prague."""
    header: Json = {
        "parentHash": ZERO,
        "miner": ZERO_ADDRESS,
        "stateRoot": ZERO,
        "difficulty": "0x0",
        "extraData": "0x",
    }
    header |= {"number": "0x1", "gasLimit": "0x1", "timestamp": "0x1", "mixHash": ZERO, "nonce": "0x" + "00" * 8}
    header |= {"baseFeePerGas": "0x5", "blobGasUsed": "0x60000", "excessBlobGas": "0x0", "requestsHash": ZERO}
    header |= {"parentBeaconBlockRoot": ZERO, "withdrawals": []}
    outcome = {"gasUsed": "0x5208", "status": "0x1", "logs": []}
    block, receipts = sealed(header, transactions, receipts_of(transactions, [outcome] * len(transactions)))
    verify(block, receipts, chain=CHAINS[1])
    return payload_from_rpc(block, receipts, chain_id=1)
