"""Blocks of a development chain, as JSON-RPC shows them: real RLP, real hashes, real roots.

Everything in a block is consistent but one thing: nothing is executed, so the state root is a hash of the block's
place in the script instead of a state's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from cardinal.apps.evm.header import encode_header
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.receipts import encode_receipt, logs_bloom
from cardinal.apps.evm.transactions import encode_transaction
from cardinal.apps.evm.trie import ordered_root

from .script import Plan
from .transactions import Account, TransactionMaker, accounts, quantity, text

_GENESIS_TIME: Final = 1_700_000_000
_SECONDS_PER_BLOCK: Final = 12
_GAS_LIMIT: Final = 30_000_000
_BASE_FEE: Final = 10**9
_EMPTY_UNCLES: Final = keccak(b"\xc0")


@dataclass(frozen=True, slots=True)
class DevBlock:
    """A built block: JSON-RPC's block with full transactions, its receipts, and where the branch's nonces stand."""

    plan: Plan
    block: dict[str, Any]
    receipts: list[dict[str, Any]]
    nonces: tuple[int, ...]

    @property
    def hash(self) -> str:
        """``0x`` and 64 hexadecimal digits."""
        value: str = self.block["hash"]
        return value


class BlockBuilder:
    """Builds the blocks of one script; the same settings build the same bytes.

    Arguments:
        seed: of everything random in the blocks.
        chain_id: the chain's id, which signatures contain.
        transactions: the largest number of transactions in a block.

    """

    def __init__(self, seed: int, chain_id: int, transactions: int) -> None:
        self._seed = seed
        self._chain_id = chain_id
        self._transactions = transactions
        self._accounts = accounts(chain_id)

    def build(self, plan: Plan, parent: DevBlock | None) -> DevBlock:
        """The block of a plan on its parent; the genesis block has none, and no transactions."""
        source = random.Random(f"cardinal-dev-{self._seed}-{plan.index}")  # noqa: S311 - repeatable, no secret
        nonces = [0] * len(self._accounts) if parent is None else list(parent.nonces)
        made = [] if parent is None else self._make(source, nonces, self._accounts)
        transactions = [transaction for transaction, _, _ in made]
        receipts = _receipts(made)
        block = self._header(plan, parent, transactions, receipts)
        block["hash"] = text(keccak(encode_header(block)))
        _place(block, transactions, receipts)
        block["transactions"] = transactions
        block["uncles"] = []
        block["totalDifficulty"] = quantity(plan.weight)
        block["size"] = quantity(len(encode_header(block)) + sum(len(encode_transaction(t)) for t in transactions))
        return DevBlock(plan, block, receipts, tuple(nonces))

    def _make(
        self, source: random.Random, nonces: list[int], senders: tuple[Account, ...]
    ) -> list[tuple[dict[str, Any], list[dict[str, Any]], int]]:
        maker = TransactionMaker(source, senders, self._chain_id, _BASE_FEE)
        return [maker.make(nonces) for _ in range(source.randint(1, max(1, self._transactions)))]

    def _header(
        self,
        plan: Plan,
        parent: DevBlock | None,
        transactions: list[dict[str, Any]],
        receipts: list[dict[str, Any]],
    ) -> dict[str, Any]:
        logs = [log for receipt in receipts for log in receipt["logs"]]
        return {
            "parentHash": text(bytes(32)) if parent is None else parent.hash,
            "sha3Uncles": text(_EMPTY_UNCLES),
            "miner": text(self._accounts[plan.index % len(self._accounts)].address),
            "stateRoot": text(keccak(f"state {self._seed} {plan.index}".encode())),
            "transactionsRoot": text(ordered_root([encode_transaction(t) for t in transactions])),
            "receiptsRoot": text(ordered_root([encode_receipt(receipt) for receipt in receipts])),
            "logsBloom": text(logs_bloom(logs)),
            "difficulty": quantity(plan.difficulty),
            "number": quantity(plan.number),
            "gasLimit": quantity(_GAS_LIMIT),
            "gasUsed": receipts[-1]["cumulativeGasUsed"] if receipts else "0x0",
            "timestamp": quantity(_GENESIS_TIME + plan.number * _SECONDS_PER_BLOCK),
            "extraData": text(f"cardinal dev {plan.index}".encode()),
            "mixHash": text(keccak(f"mix {plan.index}".encode())),
            "nonce": text(plan.index.to_bytes(8, "big")),
            "baseFeePerGas": quantity(_BASE_FEE),
        }


def _receipts(made: list[tuple[dict[str, Any], list[dict[str, Any]], int]]) -> list[dict[str, Any]]:
    receipts = []
    used = 0
    for index, (transaction, logs, gas) in enumerate(made):
        used += gas
        creates = transaction["to"] is None
        receipts.append(
            {
                "transactionHash": transaction["hash"],
                "transactionIndex": quantity(index),
                "type": transaction["type"],
                "status": "0x1",
                "from": transaction["from"],
                "to": transaction["to"],
                "contractAddress": text(keccak(transaction["hash"].encode())[12:]) if creates else None,
                "gasUsed": quantity(gas),
                "cumulativeGasUsed": quantity(used),
                "effectiveGasPrice": transaction["gasPrice"],
                "logsBloom": text(logs_bloom(logs)),
                "logs": logs,
            }
        )
    return receipts


def _place(block: dict[str, Any], transactions: list[dict[str, Any]], receipts: list[dict[str, Any]]) -> None:
    """Write the block's hash and number, and everything's index, into what JSON-RPC shows of its parts."""
    place = {"blockHash": block["hash"], "blockNumber": block["number"]}
    log_index = 0
    for index, (transaction, receipt) in enumerate(zip(transactions, receipts, strict=True)):
        transaction.update(place, transactionIndex=quantity(index))
        receipt.update(place)
        for log in receipt["logs"]:
            log.update(
                place,
                transactionHash=transaction["hash"],
                transactionIndex=quantity(index),
                logIndex=quantity(log_index),
                removed=False,
            )
            log_index += 1
