"""Small Ethereum blocks that verify, and forks of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sha3

from cardinal_devkit.testing.replay import Recorded, ReplayChain
from evm_blocks import canonical, receipts_of, sealed

Item: TypeAlias = "bytes | list[Item]"

ZERO = "0x" + "00" * 32
SENDER = "0x" + "11" * 20
RECIPIENT = "0x" + "22" * 20
LOG = {"address": "0x" + "33" * 20, "topics": ["0x" + "44" * 32], "data": "0x"}


def keccak(data: bytes) -> bytes:
    return bytes(sha3.keccak_256(data).digest())


def text(data: bytes) -> str:
    return "0x" + data.hex()


def raw(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal[2:])


def minimal(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def rlp(item: Item) -> bytes:
    if isinstance(item, list):
        body, base = b"".join(map(rlp, item)), 0xC0
    elif len(item) == 1 and item[0] < 0x80:
        return item
    else:
        body, base = item, 0x80
    if len(body) < 56:
        return bytes([base + len(body)]) + body
    length = minimal(len(body))
    return bytes([base + 55 + len(length)]) + length + body


@dataclass
class Built:
    """A block with its receipts, uncles and total difficulty."""

    block: dict[str, Any]
    receipts: list[dict[str, Any]]
    uncles: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0

    @property
    def number(self) -> int:
        return int(self.block["number"], 16)

    @property
    def hash(self) -> bytes:
        return raw(self.block["hash"])

    @property
    def name(self) -> str:
        return str(self.block["hash"])


def build(
    parent: Built | None,
    branch: str = "a",
    *,
    transactions: int = 2,
    difficulty: int = 1000,
    number: int | None = None,
    uncles: list[dict[str, Any]] | None = None,
    serve_total: bool = True,
) -> Built:
    """A child of ``parent``, with a log in each receipt; ``branch`` makes siblings differ."""
    height = number if number is not None else (0 if parent is None else parent.number + 1)
    header = {
        "parentHash": ZERO if parent is None else parent.name,
        "miner": SENDER,
        "stateRoot": text(keccak(f"{branch}{height}".encode())),
        "difficulty": hex(difficulty),
        "number": hex(height),
        "gasLimit": hex(30_000_000),
        "timestamp": hex(1_600_000_000 + 12 * height),
        "extraData": text(branch.encode()),
        "mixHash": ZERO,
        "nonce": "0x" + "00" * 8,
        "baseFeePerGas": hex(7),
    }
    sent = [_transaction(height, branch, index) for index in range(transactions)]
    outcome = {"gasUsed": hex(21_000), "status": "0x1", "logs": [LOG]}
    block, receipts = sealed(header, sent, receipts_of(sent, [outcome] * transactions), uncles or [])
    total = difficulty + (0 if parent is None else parent.total)
    block["size"] = hex(1000)
    if serve_total:
        block["totalDifficulty"] = hex(total)
    return Built(block, receipts, uncles or [], total)


def _transaction(height: int, branch: str, index: int) -> dict[str, Any]:
    secret = int.from_bytes(keccak(f"{branch}{height}/{index}".encode()), "big") >> 1
    values = {"nonce": height, "gasPrice": 9, "gas": 21_000, "value": index + 1, "v": 27, "r": secret, "s": 5}
    shown = {name: hex(value) for name, value in values.items()}
    shown |= {"type": "0x0", "to": RECIPIENT, "from": SENDER, "input": "0x"}
    return shown | {"hash": text(keccak(canonical(shown)))}


def grow(
    parent: Built | None, count: int, branch: str = "a", *, difficulty: int = 1000, serve_total: bool = True
) -> list[Built]:
    """``count`` blocks above ``parent``, oldest first."""
    blocks: list[Built] = []
    for _ in range(count):
        parent = build(parent, branch, difficulty=difficulty, serve_total=serve_total)
        blocks.append(parent)
    return blocks


def replay(*branches: list[Built], chain_id: int = 1337) -> ReplayChain:
    """A replay that has all of these; the head is the first branch's last block."""
    chain = ReplayChain([Recorded(one.block, one.receipts) for one in branches[0]], chain_id=chain_id)
    for branch in branches:
        for one in branch:
            chain.add(one.block, one.receipts, one.uncles)
    return chain
