"""Advice for blocks that fail a check: it can help, and names what skipping the check loses."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cardinal.errors import ConfigurationError, IntegrityError
from cardinal_devkit.testing.node import JsonRpcNode
from cardinal_devkit.testing.replay import ReplayChain
from cardinal_ethereum.chains import CHECK_NAMES, Chain, chain_of
from cardinal_ethereum.checks.advice import LOST, advice
from cardinal_ethereum.checks.integrity import verify
from cardinal_ethereum.feed.feed import NodeFeed
from cardinal_ethereum.from_rpc.header import encode_header
from cardinal_ethereum.keccak import keccak
from evm_blocks import sealed, text

CHAINS = Path(__file__).parents[4] / "shared/fixtures/chains"
ZERO = "0x" + "00" * 32


def block() -> dict[str, Any]:
    header = {"parentHash": ZERO, "miner": "0x" + "11" * 20, "stateRoot": ZERO, "difficulty": "0x0", "number": "0x9"}
    header |= {"gasLimit": "0x9", "timestamp": "0x9", "extraData": "0x", "mixHash": ZERO, "nonce": "0x" + "00" * 8}
    shown, _ = sealed(header, [], [], [])
    return shown


def test_every_check_that_can_be_skipped_names_what_is_lost() -> None:
    assert LOST.keys() == set(CHECK_NAMES) - {"hash"}
    for name, lost in LOST.items():
        assert f"unchecked={name}" in advice(name)
        assert lost in advice(name)
        Chain(chain_id=9, name="nine", unchecked=frozenset({name}))  # the advice can be followed


@pytest.mark.parametrize("chain_id", [25, 338, 988, 2201, 4217, 42_431, 9])
def test_a_hash_that_no_node_can_change_is_not_blamed_on_the_node_alone(chain_id: int) -> None:
    otherwise = block() | {"hash": text(keccak(b"another header"))}
    with pytest.raises(IntegrityError, match="never the hash, without which nothing proves") as refused:
        verify(otherwise, [], chain=chain_of(chain_id))
    said = str(refused.value)
    assert "retry later" not in said
    assert ("use another node" in said) == (chain_id == 9)
    assert (chain_of(chain_id).name in said) == (chain_id != 9)


def test_a_root_that_fails_names_the_check_to_skip() -> None:
    wrong = block() | {"receiptsRoot": ZERO}
    wrong["hash"] = text(keccak(encode_header(wrong)))
    with pytest.raises(
        IntegrityError, match=r"receipts root; use another node.*unchecked=receipts root.*bloom and the gas"
    ):
        verify(wrong, [])


def test_a_chain_that_cannot_be_verified_is_refused_before_its_first_block() -> None:
    async def ask() -> int:
        async with JsonRpcNode(ReplayChain(chain_id=25)) as node:
            feed = NodeFeed(node.url)
            try:
                return await feed.chain_id()
            finally:
                await feed.close()

    with pytest.raises(ConfigurationError, match="cronos makes its block hashes otherwise"):
        asyncio.run(ask())


@pytest.mark.skipif(
    not CHAINS.is_dir(), reason="recorded blocks of mainnet and other chains are not beside the project"
)
@pytest.mark.parametrize("name", ["cronos-10000", "cronos-11446765", "tempoModerato-6541", "stable-testnet-42767022"])
def test_recorded_blocks_of_such_chains_are_refused_with_what_helps(name: str) -> None:
    recorded = json.loads(gzip.decompress((CHAINS / f"{name}.json.gz").read_bytes()))
    with pytest.raises(IntegrityError, match=r"hash; .*cannot be published: unchecked would skip the roots"):
        verify(recorded["block"], recorded["receipts"])
