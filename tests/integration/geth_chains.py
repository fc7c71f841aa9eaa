"""Chains of a test geth: their first block, and blocks over the Engine API."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ethereum_blocks import ZERO, text
from signing import Wallet
from storage_contract import STORING, word

if TYPE_CHECKING:
    from pathlib import Path

CHAIN_ID: Final = 1337
RICH: Final = hex(10**24)
STORED_AT: Final = "0x" + "5e" * 20
"""Who has code and slots from the beginning, where the chain has them."""


@dataclass(frozen=True)
class GethChain:
    """A chain.

    ``payloads`` and ``told`` are the versions of the Engine API for building and telling blocks; ``roots`` says
    whether blocks have beacon roots other than zero.
    """

    genesis: dict[str, Any]
    payloads: str = "V3"
    told: str = "V3"
    roots: bool = False

    def root(self, number: int) -> str:
        """The beacon root of the block with this number."""
        return f"0x{number:064x}" if self.roots else ZERO


def cancun(binary: Path, wallet: Wallet) -> GethChain:
    """Of the fork Cancun, without the contracts that its blocks write to."""
    del binary
    return GethChain(_genesis({text(wallet.address): {"balance": RICH}}))


def prague(binary: Path, wallet: Wallet) -> GethChain:
    """Of the fork Prague, with the system contracts as geth's own development chain has them, and slots."""
    shown = subprocess.run([str(binary), "--dev", "dumpgenesis"], check=True, capture_output=True, timeout=60)
    system = {f"0x{name}": one for name, one in json.loads(shown.stdout)["alloc"].items()}
    slots = {text(word(slot)): text(word(slot * 300 + 1)) for slot in range(5)}
    stored = {STORED_AT: {"balance": "0x0", "nonce": "0x1", "code": text(STORING), "storage": slots}}
    rich = {text(wallet.address): {"balance": RICH}}
    return GethChain(_genesis(system | stored | rich, "prague"), "V4", "V4", roots=True)


def prague_of_many(binary: Path, wallet: Wallet) -> GethChain:
    """The same without slots, and with more accounts than a node lists at a time."""
    chain = prague(binary, wallet)
    del chain.genesis["alloc"][STORED_AT]
    chain.genesis["alloc"] |= {f"0x{10**6 + number:040x}": {"balance": hex(number + 1)} for number in range(600)}
    return chain


def _genesis(alloc: dict[str, Any], *later: str) -> dict[str, Any]:
    forks = ("homestead", "eip150", "eip155", "eip158", "byzantium", "constantinople", "petersburg", "istanbul")
    blob = {"target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477}
    config = {
        "chainId": CHAIN_ID,
        **{f"{fork}Block": 0 for fork in (*forks, "berlin", "london")},
        "terminalTotalDifficulty": 0,
        **{f"{fork}Time": 0 for fork in ("shanghai", "cancun", *later)},
        "depositContractAddress": "0x" + "00" * 20,
        "blobSchedule": dict.fromkeys(("cancun", *later), blob),
    }
    return {
        "config": config,
        "difficulty": "0x0",
        "gasLimit": "0x1c9c380",
        "timestamp": "0x65000000",
        "baseFeePerGas": "0x3b9aca00",
        "alloc": alloc,
    }
