"""Recorded blocks of many chains: verified, published, decoded without loss, in the tables; or refused by name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cardinal.errors import IntegrityError
from cardinal_ethereum import decode, frames, payload_from_rpc, verify, verify_payload
from cardinal_ethereum.chains import chain_of

CHAINS = Path(__file__).parents[4] / "shared/fixtures/chains"
recorded = pytest.mark.skipif(
    not CHAINS.is_dir(), reason="recorded blocks of other chains are not at ../shared/fixtures"
)

IDS = {"amsterdam": 1337, "arbitrum": 42_161, "ethereum": 1, "gnosis": 100, "hyperliquid": 999, "polygon": 137}
OTHER_IDS = {"bittensor-testnet": 945, "cronos": 25, "stable": 988, "stable-testnet": 2201}
OTHER_IDS |= {"tempo-mainnet": 4217, "tempoModerato": 42_431}

WITHOUT_ROOT = {1_000_000, 4_369_999}
"""Blocks before Byzantium whose node leaves the receipts' root out."""


def recording(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((CHAINS / name).read_bytes()))
    return found


def names(ids: dict[str, int]) -> list[str]:
    files = sorted(CHAINS.glob("*.json.gz")) if CHAINS.is_dir() else []
    return [file.name for file in files if file.name.rpartition("-")[0] in ids]


@recorded
@pytest.mark.parametrize("name", names(IDS))
def test_a_recorded_block_is_verified_published_and_decoded_without_loss(name: str) -> None:
    found = recording(name)
    block, receipts, chain = found["block"], found["receipts"], chain_of(IDS[found["chain"]])
    number = int(block["number"], 16)
    if number in WITHOUT_ROOT and chain.chain_id == 1:
        chain = chain.model_copy(update={"unchecked": frozenset({"receipts root"})})
    total = 1 << 200 if int(block["difficulty"], 16) else None
    verified = verify(block, receipts, chain=chain)
    payload = payload_from_rpc(block, receipts, chain_id=chain.chain_id, total_difficulty=total, chain=chain)
    verify_payload(payload, chain)
    assert payload.hash == verified.hash == bytes.fromhex(block["hash"][2:])
    assert decode(payload).encode() == payload
    tables = frames([payload], integers="string")
    (row,) = tables["blocks"].to_pylist()
    assert (row["hash"], row["number"], row["gas_used"]) == (block["hash"], number, int(block["gasUsed"], 16))
    assert [row[name] for name in ("transactions_root", "receipts_root", "state_root")] == [
        block[name] for name in ("transactionsRoot", "receiptsRoot", "stateRoot")
    ]
    rows = tables["transactions"].to_pylist()
    for shown, sent in zip(block["transactions"], rows, strict=False):
        assert sent["hash"] == shown["hash"]
        assert (sent["from_address"], sent["to_address"]) == (shown["from"], shown["to"])
        assert (sent["nonce"], sent["gas"]) == (int(shown["nonce"], 16), int(shown["gas"], 16))
        assert (sent["value"], sent["input"]) == (str(int(shown["value"], 16)), shown["input"])
    assert tables["logs"].num_rows == sum(len(receipt["logs"]) for receipt in receipts)
    if chain.status_from == 0:
        paid = [str(int(receipt["effectiveGasPrice"], 16)) for receipt in receipts]
        assert tables["receipts"].column("effective_gas_price").to_pylist() == paid


@recorded
@pytest.mark.parametrize("name", names(OTHER_IDS))
def test_a_block_whose_hash_is_made_otherwise_is_refused_by_number_and_hash(name: str) -> None:
    found = recording(name)
    block, chain = found["block"], chain_of(OTHER_IDS[found["chain"]])
    with pytest.raises(IntegrityError, match=rf"^block {int(block['number'], 16)} \({block['hash']}\)") as caught:
        verify(block, found["receipts"], chain=chain)
    assert not any(word in str(caught.value) for word in ("NoneType", "object", "argument"))
