"""Small Ethereum blocks that verify, and forks of them, built on a way of their own.

RLP, trie roots and hashes here share no code with the application layer that judges the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sha3

from cardinal.testing.replay import Recorded, ReplayChain

Item: TypeAlias = "bytes | list[Item]"

ZERO = "0x" + "00" * 32
NO_BLOOM = "0x" + "00" * 256
SENDER = "0x" + "11" * 20
RECIPIENT = "0x" + "22" * 20
EMITTER = "0x" + "33" * 20
TOPIC = "0x" + "44" * 32


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


def trie_root(values: list[bytes]) -> bytes:
    if not values:
        return keccak(b"\x80")
    items = {"".join(f"{byte:02x}" for byte in rlp(minimal(index))): value for index, value in enumerate(values)}
    return keccak(rlp(_node(items)))


def _node(items: dict[str, bytes]) -> list[Item]:
    if len(items) == 1:
        ((path, value),) = items.items()
        return [_compact(path, leaf=True), value]
    shared = _shared(list(items))
    if shared:
        below = {path[len(shared) :]: value for path, value in items.items()}
        return [_compact(shared, leaf=False), _reference(below)]
    branch: list[Item] = []
    for nibble in "0123456789abcdef":
        below = {path[1:]: value for path, value in items.items() if path[:1] == nibble}
        branch.append(_reference(below) if below else b"")
    return [*branch, items.get("", b"")]


def _reference(items: dict[str, bytes]) -> Item:
    node = _node(items)
    return node if len(rlp(node)) < 32 else keccak(rlp(node))


def _shared(paths: list[str]) -> str:
    low, high = min(paths), max(paths)
    size = next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    return low[:size]


def _compact(path: str, *, leaf: bool) -> bytes:
    flag = 2 if leaf else 0
    return bytes.fromhex(f"{flag + 1:x}{path}" if len(path) % 2 else f"{flag:x}0{path}")


def bloom(values: list[bytes]) -> bytes:
    bits = 0
    for value in values:
        digest = keccak(value)
        for at in (0, 2, 4):
            bits |= 1 << (int.from_bytes(digest[at : at + 2], "big") & 2047)
    return bits.to_bytes(256, "big")


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


HEADER = ("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot", "logsBloom")
NUMBERS = ("difficulty", "number", "gasLimit", "gasUsed", "timestamp")


def header_rlp(header: dict[str, Any]) -> bytes:
    fields = [raw(header[name]) for name in HEADER]
    fields += [minimal(int(header[name], 16)) for name in NUMBERS]
    fields += [raw(header[name]) for name in ("extraData", "mixHash", "nonce")]
    fields += [minimal(int(header["baseFeePerGas"], 16))]
    return rlp(fields)


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
    """A child of ``parent``; ``branch`` makes siblings differ."""
    height = number if number is not None else (0 if parent is None else parent.number + 1)
    raws, shown = _transactions(height, branch, transactions)
    receipts, encoded = _receipts(shown)
    blooms = [raw(receipt["logsBloom"]) for receipt in receipts]
    whole = 0
    for one in blooms:
        whole |= int.from_bytes(one, "big")
    header: dict[str, Any] = {
        "parentHash": ZERO if parent is None else parent.name,
        "sha3Uncles": text(keccak(rlp([_Encoded(header_rlp(uncle)).item for uncle in uncles or []]))),
        "miner": SENDER,
        "stateRoot": text(keccak(f"{branch}{height}".encode())),
        "transactionsRoot": text(trie_root(raws)),
        "receiptsRoot": text(trie_root(encoded)),
        "logsBloom": text(whole.to_bytes(256, "big")),
        "difficulty": hex(difficulty),
        "number": hex(height),
        "gasLimit": hex(30_000_000),
        "gasUsed": hex(21_000 * transactions),
        "timestamp": hex(1_600_000_000 + 12 * height),
        "extraData": text(branch.encode()),
        "mixHash": ZERO,
        "nonce": "0x" + "00" * 8,
        "baseFeePerGas": hex(7),
    }
    name = text(keccak(header_rlp(header)))
    total = difficulty + (0 if parent is None else parent.total)
    for index, (transaction, receipt) in enumerate(zip(shown, receipts, strict=True)):
        place = {"blockHash": name, "blockNumber": hex(height), "transactionIndex": hex(index)}
        transaction.update(place)
        receipt.update(place)
        for log in receipt["logs"]:
            log.update(place, transactionHash=transaction["hash"])
    block = {
        **header,
        "hash": name,
        "size": hex(1000),
        "transactions": shown,
        "uncles": [text(keccak(header_rlp(uncle))) for uncle in uncles or []],
    }
    if serve_total:
        block["totalDifficulty"] = hex(total)
    return Built(block, receipts, uncles or [], total)


class _Encoded:
    """RLP that stands inside other RLP: the fields of a header again."""

    def __init__(self, encoded: bytes) -> None:
        self.item = _fields(encoded)


def _fields(encoded: bytes) -> list[bytes]:
    at = 1 + (encoded[0] - 0xF7)
    fields = []
    while at < len(encoded):
        first = encoded[at]
        if first < 0x80:
            fields.append(encoded[at : at + 1])
            at += 1
        elif first < 0xB8:
            fields.append(encoded[at + 1 : at + 1 + first - 0x80])
            at += 1 + first - 0x80
        else:
            width = first - 0xB7
            size = int.from_bytes(encoded[at + 1 : at + 1 + width], "big")
            fields.append(encoded[at + 1 + width : at + 1 + width + size])
            at += 1 + width + size
    return fields


def _transactions(height: int, branch: str, count: int) -> tuple[list[bytes], list[dict[str, Any]]]:
    raws, shown = [], []
    for index in range(count):
        secret = int.from_bytes(keccak(f"{branch}{height}/{index}".encode()), "big") >> 1
        values = {"nonce": height, "gasPrice": 9, "gas": 21_000, "value": index + 1, "v": 27, "r": secret, "s": 5}
        quantity = {name: minimal(value) for name, value in values.items()}
        encoded = rlp(
            [
                *(quantity[name] for name in ("nonce", "gasPrice", "gas")),
                raw(RECIPIENT),
                quantity["value"],
                b"",
                *(quantity[name] for name in ("v", "r", "s")),
            ]
        )
        raws.append(encoded)
        shown.append(
            {name: hex(value) for name, value in values.items()}
            | {"type": "0x0", "to": RECIPIENT, "from": SENDER, "input": "0x", "hash": text(keccak(encoded))}
        )
    return raws, shown


def _receipts(transactions: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Receipts with one log each."""
    receipts, encoded = [], []
    for index, transaction in enumerate(transactions):
        log = {"address": EMITTER, "topics": [TOPIC], "data": "0x", "logIndex": hex(index), "removed": False}
        own = bloom([raw(EMITTER), raw(TOPIC)])
        used = 21_000 * (index + 1)
        receipts.append(
            {
                "transactionHash": transaction["hash"],
                "type": "0x0",
                "status": "0x1",
                "cumulativeGasUsed": hex(used),
                "gasUsed": hex(21_000),
                "effectiveGasPrice": "0x9",
                "contractAddress": None,
                "from": SENDER,
                "to": RECIPIENT,
                "logsBloom": text(own),
                "logs": [log],
            }
        )
        encoded.append(rlp([b"\x01", minimal(used), own, [[raw(EMITTER), [raw(TOPIC)], b""]]]))
    return receipts, encoded


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
