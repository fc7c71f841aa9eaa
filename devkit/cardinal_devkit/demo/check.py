"""Comparison of the consumer's blocks and the lake's with the node's, by hash and by content.

The node's side is computed from its JSON-RPC answers alone, through nothing of the streams, the applications or the
lake: plain requests, plain fields, one digest a block.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from .cast import cardinal

_TIMEOUT: Final = 30.0
_ALL: Final = str(2**31 - 1)
_TABLES: Final = ("blocks", "transactions", "logs", "payload", "events", "canonical")


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a chain: the hash of every height, and a digest of every block's transactions and logs."""

    hashes: dict[int, str]
    digests: dict[int, str]


class NodeReader:
    """A node over plain JSON-RPC."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, method: str, *params: object) -> Any:  # noqa: ANN401 - JSON
        """One request; the result."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(  # noqa: S310 - the demo's own node, http on loopback
            self._url, body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - the same
            return json.load(answer)["result"]

    def head(self) -> tuple[int, str]:
        """Number and hash of the newest block."""
        block = self.call("eth_getBlockByNumber", "latest", False)  # noqa: FBT003 - JSON-RPC's own parameter
        return int(block["number"], 16), str(block["hash"])

    def content(self) -> Content:
        """The whole chain."""
        hashes: dict[int, str] = {}
        digests: dict[int, str] = {}
        for number in range(self.head()[0] + 1):
            block = self.call("eth_getBlockByNumber", hex(number), True)  # noqa: FBT003 - the same
            receipts = self.call("eth_getBlockReceipts", hex(number))
            hashes[number] = block["hash"]
            logs = [log for receipt in receipts for log in receipt["logs"]]
            digests[number] = _digest(map(_node_transaction, block["transactions"]), map(_node_log, logs))
        return Content(hashes, digests)


def _digest(transactions: Iterable[list[object]], logs: Iterable[list[object]]) -> str:
    parts = json.dumps([sorted(transactions, key=str), sorted(logs, key=str)])
    return blake2b(parts.encode(), digest_size=16).hexdigest()


def _node_transaction(transaction: Mapping[str, Any]) -> list[object]:
    return [
        int(transaction["transactionIndex"], 16),
        transaction["hash"],
        transaction["from"],
        transaction["to"],
        str(int(transaction["value"], 16)),
        int(transaction["nonce"], 16),
        transaction["input"],
    ]


def _node_log(log: Mapping[str, Any]) -> list[object]:
    return [int(log["logIndex"], 16), log["transactionHash"], log["address"], list(log["topics"]), log["data"]]


class LakeReader:
    """A lake through `cardinal lake query`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Rows of a table."""
        only = ("--columns", ",".join(columns)) if columns else ()
        text = cardinal(
            "lake", "query", str(self._folder), "--table", table, "--limit", _ALL, "--format", "json", *only
        )
        return [json.loads(line) for line in text.splitlines()]

    def counts(self) -> dict[str, int]:
        """Rows of every table, orphaned blocks' included."""
        return {
            table: len(self.rows(table, "seq" if table in ("events", "canonical") else "_seq")) for table in _TABLES
        }

    def content(self) -> Content:
        """The chain as the lake's current views show it."""
        hashes = {row["number"]: row["hash"] for row in self.rows("canonical", "number", "hash")}
        transactions: dict[int, list[list[object]]] = {number: [] for number in hashes}
        logs: dict[int, list[list[object]]] = {number: [] for number in hashes}
        for row in self.rows("current_transactions"):
            transactions.setdefault(row["block_number"], []).append(
                [
                    row["transaction_index"],
                    row["hash"],
                    row["from_address"],
                    row["to_address"],
                    row["value"],
                    row["nonce"],
                    row["input"],
                ]
            )
        for row in self.rows("current_logs"):
            logs.setdefault(row["block_number"], []).append(
                [row["log_index"], row["transaction_hash"], row["address"], list(row["topics"]), row["data"]]
            )
        numbers = hashes.keys() | transactions.keys() | logs.keys()
        digests = {number: _digest(transactions.get(number, ()), logs.get(number, ())) for number in numbers}
        return Content(hashes, digests)


def differences(node: Content, other: Content, *, content: bool) -> list[str]:
    """Differences, a sentence each."""
    found = _compare("hash", node.hashes, other.hashes)
    return found + (_compare("content", node.digests, other.digests) if content else [])


def _compare(what: str, node: Mapping[int, str], other: Mapping[int, str]) -> list[str]:
    return [
        f"block {number}: the node's {what} is {node.get(number, 'absent')}, here it is {other.get(number, 'absent')}"
        for number in sorted(node.keys() | other.keys())
        if node.get(number) != other.get(number)
    ]


@dataclass(frozen=True, slots=True)
class Reorg:
    """A reorg as it was delivered: how many blocks left, and how many came."""

    removed: int
    added: int


def reorgs_of_events(events: Sequence[Mapping[str, Any]]) -> list[Reorg]:
    """The reorgs that a lake's ledger holds."""
    updates: dict[int, list[int]] = {}
    for event in events:
        updates.setdefault(event["update_id"], []).append(event["change"])
    return [Reorg(changes.count(-1), changes.count(1)) for _, changes in sorted(updates.items()) if changes.count(-1)]


def across_batches(events: Sequence[Mapping[str, Any]], batch_ends: Sequence[int]) -> int:
    """Number of reorgs that removed a block of an earlier batch; ``batch_ends`` are the batches' last seqs."""

    def batch(seq: int) -> int:
        return sum(end < seq for end in batch_ends)

    added: dict[str, int] = {}
    crossing = set()
    for event in sorted(events, key=lambda row: row["seq"]):
        if event["change"] > 0:
            added[event["hash"]] = event["seq"]
        elif batch(added.get(event["hash"], 0)) < batch(event["seq"]):
            crossing.add(event["update_id"])
    return len(crossing)
