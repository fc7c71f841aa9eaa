"""Entries and messages of a block as the reference's producer makes them, recomputed from the node's JSON-RPC.

The rules are those of ``docs/ethereum.md`` and ``schemas/SPEC.md``; of the product only RLP and keccak are used, and
the classes of decoded messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from cardinal.protocols.streams.wire.messages import Batch, BatchMsg, Update
from cardinal_ethereum import rlp
from evm_blocks import ZERO_ADDRESS, Json, canonical, created, data, header_bytes, minimal, withdrawal_bytes

TOPICS = {"h": "block", "d": "block", "w": "block", "u": "block", "n": "block", "t": "tx", "r": "receipt", "l": "logs"}
"""The topic of each kind of entry, which is the first part of its path below the block or the chain."""
LISTED = frozenset("ntrlu")
"""Kinds that a Batch counts by their prefix, as a block has several."""
NO_SUB_BATCH = bytes(32)


def values_of(
    block: Json, receipts: Sequence[Json], uncles: Sequence[Json] = (), *, chain_id: int, total: int
) -> dict[str, bytes]:
    """All entries of a block whose state and finality are not published."""
    root = f"c/{chain_id:x}"
    own = f"{root}/b/{block['hash'][2:]}"
    values = {f"{own}/h": header_bytes(block), f"{own}/d": minimal(total)}
    values[f"{root}/n/{int(block['number'], 16):x}"] = data(block["hash"])
    if not int(block["difficulty"], 16):
        values |= {f"{root}/n/safe": b"", f"{root}/n/finalized": b""}
    if block.get("withdrawals"):
        values[f"{own}/w"] = rlp.encode([rlp.decode(withdrawal_bytes(one)) for one in block["withdrawals"]])
    values |= {f"{own}/u/{at:x}": header_bytes(uncle) for at, uncle in enumerate(uncles)}
    values |= {f"{own}/t/{at:x}": canonical(one) for at, one in enumerate(block["transactions"])}
    logs = 0
    for at, (transaction, receipt) in enumerate(zip(block["transactions"], receipts, strict=True)):
        contract = ZERO_ADDRESS if transaction["to"] else created(transaction["from"], transaction["nonce"])
        count = len(receipt["logs"])
        meta = [
            data(contract),
            *(minimal(receipt["cumulativeGasUsed"]), minimal(receipt["gasUsed"]), data(receipt["logsBloom"])),
            *(minimal(receipt.get("status")), minimal(count), minimal(logs if count else 0)),
        ]
        values[f"{own}/r/{at:x}"] = rlp.encode([*meta])
        for place, log in enumerate(receipt["logs"], logs):
            topics: rlp.Item = [data(topic) for topic in log["topics"]]
            values[f"{own}/l/{at:x}/{place:x}"] = rlp.encode([data(log["address"]), topics, data(log["data"])])
        logs += count
    return values


def messages_of(
    block: Json, values: Mapping[str, bytes], weight: int, chain_id: int
) -> dict[tuple[str, bytes], Batch | BatchMsg]:
    """The messages of these entries by topic and key, decoded: each entry's own, and the Batch that counts them."""
    block_hash, base = data(block["hash"]), f"cardinal-{chain_id}"
    own, root = f"c/{chain_id:x}/b/{block_hash.hex()}/", f"c/{chain_id:x}/"
    messages: dict[tuple[str, bytes], Batch | BatchMsg] = {}
    counted: Counter[str] = Counter()
    for path, value in values.items():
        below = own if path.startswith(own) else root
        kind = path.removeprefix(below).partition("/")[0]
        counted[below + kind + ("/" if kind in LISTED else "")] += 1
        key = b"\x03" + block_hash + path.encode()
        messages[f"{base}-{TOPICS[kind]}", key] = BatchMsg(block_hash, path, value)
    updates = {prefix: Update(b"", count, False, NO_SUB_BATCH) for prefix, count in counted.items()}  # noqa: FBT003 -- the wire's order
    parent = data(block["parentHash"])
    messages[base, b"\x00" + block_hash] = Batch(block_hash, int(block["number"], 16), weight, parent, updates)
    return messages
