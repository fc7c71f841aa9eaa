"""Blocks of a real anvil under the rules of every fork, as its JSON-RPC prints them.

    PYTHONPATH=tests:tests/integration python tests/data/make_blocks/anvil_blocks.py tests/data/blocks/anvil.json.gz

One chain for each fork, of two blocks above the genesis block: one with every kind of transaction that the fork has,
and an empty one. The genesis blocks are left out: those before Shanghai hash fields that anvil does not print. Blobs
are left out too: anvil hashes them into the root of the transactions, which nobody else does.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from anvil_node import FULL, LOGGING_CODE, VERSION, Anvil, anvil
from signing import Wallet

FORKS = (
    *("frontier", "homestead", "tangerine", "spuriousdragon", "byzantium", "constantinople", "petersburg", "istanbul"),
    *("berlin", "london", "paris", "shanghai", "cancun", "prague", "osaka"),
)
NAMES = {"tangerine": "tangerine whistle", "spuriousdragon": "spurious dragon"}
FIRST_CHAIN = 61_700
START = 1_600_000_000
RICH = hex(10**21)
RECIPIENT, CALLED = b"\x22" * 20, b"\x77" * 20
FAILING = "0xfe"
SLOT = bytes(31) + b"\1"


async def chain_of(fork: str, chain_id: int) -> dict[str, Any]:
    options = ("--hardfork", fork, "--chain-id", str(chain_id), "--timestamp", str(START))
    sender, other = Wallet(b"\1" * 32, chain_id), Wallet(b"\2" * 32, chain_id)
    async with anvil(*options) as node:
        for wallet in (sender, other):
            await node.ask("anvil_setBalance", "0x" + wallet.address.hex(), RICH)
        for address, code in ((CALLED, LOGGING_CODE), (b"\x78" * 20, FAILING)):
            await node.ask("anvil_setCode", "0x" + address.hex(), code)
        sent = [
            sender.legacy(RECIPIENT),
            other.legacy(CALLED, 0, b"logs"),
            sender.legacy(b"\x78" * 20, 0),  # fails
            sender.legacy(b"", 0, bytes.fromhex(LOGGING_CODE[2:])),
            other.legacy(b"", 0, b""),
        ]
        place = FORKS.index(fork)
        if place >= FORKS.index("berlin"):
            sent.append(sender.access(CALLED, [SLOT], 0))
        if place >= FORKS.index("london"):
            sent += [other.fee_market(CALLED, 0, b"logs"), other.fee_market(RECIPIENT)]
        if place >= FORKS.index("prague"):
            sent.append(sender.set_code(other.address, CALLED, Wallet(b"\3" * 32, chain_id)))
        blocks = [await block_of(node, START + 12, sent), await block_of(node, START + 24, [])]
    return {"chainId": chain_id, "fork": NAMES.get(fork, fork), "blocks": blocks}


async def block_of(node: Anvil, time: int, sent: list[bytes]) -> dict[str, Any]:
    for each in sent:
        await node.ask("eth_sendRawTransaction", "0x" + each.hex())
    await node.ask("evm_setNextBlockTimestamp", time)
    await node.ask("evm_mine")
    block = await node.ask("eth_getBlockByNumber", "latest", *FULL)
    assert len(block["transactions"]) == len(sent), f"{len(block['transactions'])} of {len(sent)} were mined"
    return {"block": block, "receipts": await node.ask("eth_getBlockReceipts", block["hash"]), "uncles": []}


async def every_fork() -> bytes:
    chains = [await chain_of(fork, FIRST_CHAIN + place) for place, fork in enumerate(FORKS)]
    whole = json.dumps({"client": f"anvil {VERSION}", "chains": chains}, separators=(",", ":"))
    return gzip.compress(whole.encode(), mtime=0)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(asyncio.run(every_fork()))
