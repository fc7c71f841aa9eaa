"""Blocks of a development chain as JSON-RPC objects, with valid RLP, hashes, roots and fees.

Nothing is executed, so the state root is not the root of a state: it is a hash over the parent's state root and this
block's transactions and receipts, equal only if all of these are equal.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal_ethereum import rlp
from cardinal_ethereum.checks.trie import ordered_root
from cardinal_ethereum.from_rpc.header import encode_header, encode_withdrawal
from cardinal_ethereum.from_rpc.receipts import encode_receipt, logs_bloom
from cardinal_ethereum.keccak import keccak

from .transactions import DevTransaction, JsonDict, TransactionPool, text

if TYPE_CHECKING:
    from cardinal_devkit.testing.forks import PlannedBlock

    from .settings import DevSettings

_GENESIS_TIME: Final = 1_700_000_000
_SLOT: Final = 12
_FIRST_BASE_FEE: Final = 10**9
_MEAN_GAS: Final = 60_000
_LARGEST_GAS: Final = 300_000
_NO_UNCLES: Final = keccak(b"\xc0")
_NO_REQUESTS: Final = hashlib.sha256().digest()


@dataclass(frozen=True, slots=True)
class DevBlock:
    """Built block.

    Attributes:
        plan: the planned block of the script.
        block: JSON-RPC object with full transactions.
        receipts: its receipts, in order.
        nonces: next nonces of the accounts.
        withdrawals: number of withdrawals up to it.

    """

    plan: PlannedBlock
    block: JsonDict
    receipts: list[JsonDict]
    nonces: tuple[int, ...]
    withdrawals: int

    @property
    def hash(self) -> bytes:
        """Block hash (32 bytes)."""
        return bytes.fromhex(self.block["hash"][2:])

    def number_of(self, field: str) -> int:
        """Number in a header field."""
        return int(self.block[field], 16)


class _Included(NamedTuple):
    transaction: DevTransaction
    price: int
    succeeded: bool
    gas: int
    logs: list[JsonDict]


class BlockBuilder:
    """Builds the blocks of one chain; equal settings give equal bytes."""

    def __init__(self, settings: DevSettings) -> None:
        self._settings = settings
        self._pool = TransactionPool(settings.seed, settings.chain_id)
        self._gas_limit = max(30_000, settings.transactions * _MEAN_GAS) + _LARGEST_GAS

    def build(self, plan: PlannedBlock, parent: DevBlock | None) -> DevBlock:
        """Build a planned block on its parent; block 0 has neither parent nor transactions."""
        source = random.Random(f"{self._settings.seed}/block/{plan.name}")  # noqa: S311 - repeatable, no secret
        nonces = [0] * len(self._pool.accounts) if parent is None else list(parent.nonces)
        base_fee = _FIRST_BASE_FEE if parent is None else next_base_fee(parent)
        included = [] if parent is None else self._include(source, nonces, base_fee)
        receipts = _receipts(included)
        later, withdrawals = self._merged(source, parent)
        header = {
            **self._header(source, plan, parent),
            "transactionsRoot": text(ordered_root([one.transaction.raw for one in included])),
            "receiptsRoot": text(ordered_root([encode_receipt(receipt) for receipt in receipts])),
            "logsBloom": text(logs_bloom(log for one in included for log in one.logs)),
            "gasUsed": receipts[-1]["cumulativeGasUsed"] if receipts else "0x0",
            "baseFeePerGas": hex(base_fee),
            **later,
        }
        header["stateRoot"] = _state_root(header, parent)
        encoded = encode_header(header)
        block: JsonDict = {"hash": text(keccak(encoded)), **header, "uncles": []}
        if not self._settings.merged:
            block["totalDifficulty"] = hex(plan.weight)
        block["size"] = hex(_size(encoded, included, block))
        block["transactions"] = _with_positions(block, included, receipts)
        return DevBlock(plan, block, receipts, tuple(nonces), withdrawals)

    def _include(self, source: random.Random, nonces: list[int], base_fee: int) -> list[_Included]:
        """Select transactions with consecutive nonces on this branch until the block is full."""
        included: list[_Included] = []
        room = self._gas_limit
        for _ in range(source.randint(0, self._settings.transactions)):
            sender = source.randrange(len(nonces))
            transaction = self._pool.transaction(sender, nonces[sender])
            price = transaction.effective_price(base_fee)
            if price is None or int(transaction.shown["gas"], 16) > room:
                continue
            nonces[sender] += 1
            one = _Included(transaction, price, *self._pool.outcome(source, transaction))
            room -= one.gas
            included.append(one)
        return included

    def _header(self, source: random.Random, plan: PlannedBlock, parent: DevBlock | None) -> JsonDict:
        step = _SLOT if self._settings.merged else source.randint(_SLOT // 2, _SLOT + _SLOT // 2)
        return {
            "parentHash": text(bytes(32)) if parent is None else parent.block["hash"],
            "sha3Uncles": text(_NO_UNCLES),
            "miner": text(source.choice(self._pool.accounts).address),
            "difficulty": hex(plan.difficulty),
            "number": hex(plan.number),
            "gasLimit": hex(self._gas_limit),
            "timestamp": hex(_GENESIS_TIME if parent is None else parent.number_of("timestamp") + step),
            "extraData": text(plan.name.encode()),
            "mixHash": text(source.randbytes(32)),
            "nonce": text(bytes(8) if self._settings.merged else source.randbytes(8)),
        }

    def _merged(self, source: random.Random, parent: DevBlock | None) -> tuple[JsonDict, int]:
        """Fields of the forks after the merge (Shanghai, Cancun, Prague), and the number of withdrawals."""
        if not self._settings.merged:
            return {}, 0
        first = 0 if parent is None else parent.withdrawals
        count = 0 if parent is None else source.randint(0, 4)
        withdrawals = [
            {
                "index": hex(index),
                "validatorIndex": hex(source.randrange(1 << 20)),
                "address": text(source.choice(self._pool.accounts).address),
                "amount": hex(source.randint(1, 32 * 10**9)),
            }
            for index in range(first, first + count)
        ]
        fields = {
            "withdrawals": withdrawals,
            "withdrawalsRoot": text(ordered_root([encode_withdrawal(one) for one in withdrawals])),
            "blobGasUsed": "0x0",
            "excessBlobGas": "0x0",
            "parentBeaconBlockRoot": text(bytes(32) if parent is None else source.randbytes(32)),
            "requestsHash": text(_NO_REQUESTS),
        }
        return fields, first + count


def next_base_fee(parent: DevBlock) -> int:
    """Base fee of a block's child (EIP-1559)."""
    fee, used = parent.number_of("baseFeePerGas"), parent.number_of("gasUsed")
    target = parent.number_of("gasLimit") // 2
    if used > target:
        return fee + max(fee * (used - target) // target // 8, 1)
    return fee - fee * (target - used) // target // 8


def _state_root(header: JsonDict, parent: DevBlock | None) -> str:
    before = "" if parent is None else parent.block["stateRoot"]
    return text(keccak(f"{before}{header['transactionsRoot']}{header['receiptsRoot']}".encode()))


def _receipts(included: list[_Included]) -> list[JsonDict]:
    receipts: list[JsonDict] = []
    used = 0
    for included_transaction in included:
        used += included_transaction.gas
        shown, created = included_transaction.transaction.shown, included_transaction.transaction.created
        receipts.append(
            {
                "transactionHash": shown["hash"],
                "type": shown["type"],
                "status": hex(included_transaction.succeeded),
                "from": shown["from"],
                "to": shown["to"],
                "contractAddress": None if created is None else text(created),
                "gasUsed": hex(included_transaction.gas),
                "cumulativeGasUsed": hex(used),
                "effectiveGasPrice": hex(included_transaction.price),
                "logsBloom": text(logs_bloom(included_transaction.logs)),
                "logs": included_transaction.logs,
            }
        )
    return receipts


def _with_positions(block: JsonDict, included: list[_Included], receipts: list[JsonDict]) -> list[JsonDict]:
    """Set block and index in receipts and logs; returns the transactions of the block object."""
    position = {"blockHash": block["hash"], "blockNumber": block["number"]}
    transactions = []
    log_index = 0
    for index, (one, receipt) in enumerate(zip(included, receipts, strict=True)):
        at = {**position, "transactionIndex": hex(index)}
        transactions.append({**one.transaction.shown, "gasPrice": hex(one.price), **at})
        receipt.update(at)
        for log in one.logs:
            log.update(at, transactionHash=receipt["transactionHash"], logIndex=hex(log_index), removed=False)
            log_index += 1
    return transactions


def _size(header: bytes, included: list[_Included], block: JsonDict) -> int:
    """Size of the block's RLP: header, transactions (typed ones as byte strings), uncles, withdrawals."""
    raws = [one.transaction.raw for one in included]
    transactions = _listed(sum(len(raw) if raw[0] >= 0xC0 else len(rlp.encode(raw)) for raw in raws))  # noqa: PLR2004 - a list's first byte
    uncles = _listed(0)
    withdrawals = block.get("withdrawals")
    more = 0 if withdrawals is None else _listed(sum(len(encode_withdrawal(one)) for one in withdrawals))
    return _listed(len(header) + transactions + uncles + more)


def _listed(size: int) -> int:
    """Size of an RLP list with a content of ``size`` bytes."""
    return size + (1 if size < 56 else 1 + (size.bit_length() + 7) // 8)  # noqa: PLR2004 - RLP's short form
