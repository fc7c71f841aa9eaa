"""Block values: typed fields that encode to the bytes of the stream.

Rules:

1. Hashes and addresses are ``bytes`` (32 and 20), numbers ``int``; gas and prices are in gas and wei, a withdrawal's
   amount in gwei, times as the chain counts them (:mod:`cardinal_ethereum.times`).
2. A field that a block's fork or a transaction's type does not have is None, or empty where it is a sequence.
3. ``encode`` builds the bytes from the fields alone, so equal bytes prove that decoding lost nothing.

:mod:`.block_decoder` makes and checks the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Final

from cardinal.protocols.streams.payload import Payload, SubBatch
from cardinal.texts import Count, Readable
from cardinal_ethereum import rlp
from cardinal_ethereum.checks.trie import EMPTY_ROOT
from cardinal_ethereum.rlp import minimal_bytes

from .transaction import AccessEntry, Authorization, Deposit, SyncedState, Transaction

__all__ = [
    "HEADER_FIELDS",
    "NO_CONTRACT",
    "AccessEntry",
    "AuthoritySeal",
    "Authorization",
    "Block",
    "Deposit",
    "Header",
    "Log",
    "ReceiptMeta",
    "SyncedState",
    "Transaction",
    "Withdrawal",
]

NO_CONTRACT: Final = bytes(20)
"""Contract address in a receipt that created none (``connectors/cardinal_ethereum/docs/application.md``, section 1)."""


@dataclass(frozen=True, slots=True, repr=False)
class AuthoritySeal(Readable):
    """Seal of a proof-of-authority (AuRa) header: the step and the signature of 65 bytes."""

    step: int
    signature: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Header(Readable):
    """Block header; the fields from ``base_fee_per_gas`` on are None before the fork that added them.

    Attributes:
        mix_hash: None, like ``nonce``, in a header with ``seal``.
        more: fields of forks that this release does not support, as RLP items.
        seal: seal of a proof-of-authority header.

    """

    parent_hash: bytes
    sha3_uncles: bytes
    miner: bytes
    state_root: bytes
    transactions_root: bytes
    receipts_root: bytes
    logs_bloom: bytes = field(repr=False)
    difficulty: int
    number: int
    gas_limit: int
    gas_used: int
    timestamp: int
    extra_data: bytes
    mix_hash: bytes | None
    nonce: bytes | None
    base_fee_per_gas: int | None = None
    withdrawals_root: bytes | None = None
    blob_gas_used: int | None = None
    excess_blob_gas: int | None = None
    parent_beacon_block_root: bytes | None = None
    requests_hash: bytes | None = None
    block_access_list_hash: bytes | None = None
    slot_number: int | None = None
    more: tuple[rlp.Item, ...] = ()
    seal: AuthoritySeal | None = None

    def encode(self) -> bytes:
        """RLP of the header; its hash is the block hash."""
        sealed: dict[str, int | bytes] = (
            {} if self.seal is None else {"mix_hash": self.seal.step, "nonce": self.seal.signature}
        )
        items: list[rlp.Item] = []
        for name in HEADER_FIELDS:
            value: int | bytes | None = sealed[name] if name in sealed else getattr(self, name)
            if value is None:
                break
            items.append(value if isinstance(value, bytes) else minimal_bytes(value))
        return rlp.encode([*items, *self.more])


HEADER_FIELDS: Final = tuple(entry.name for entry in fields(Header))[:-2]
"""Header fields in encoding order, without ``more`` and ``seal``."""


@dataclass(frozen=True, slots=True, repr=False)
class ReceiptMeta(Readable):
    """Receipt as the stream carries it: without logs, with the fields that a consensus receipt lacks.

    Attributes:
        contract_address: address of the created contract, or None.
        status: 1 for success, 0 for failure; also 0 before Byzantium, where receipts had a root instead.
        log_offset: the block-wide index of the first of ``log_count`` logs; 0 without logs.

    """

    transaction_index: int
    contract_address: bytes | None
    cumulative_gas_used: int
    gas_used: int
    logs_bloom: bytes = field(repr=False)
    status: int
    log_count: int
    log_offset: int

    def encode(self) -> bytes:
        """RLP of the receipt on the stream."""
        gas = [minimal_bytes(self.cumulative_gas_used), minimal_bytes(self.gas_used)]
        logs = [minimal_bytes(self.log_count), minimal_bytes(self.log_offset)]
        return rlp.encode(
            [self.contract_address or NO_CONTRACT, *gas, self.logs_bloom, minimal_bytes(self.status), *logs]
        )


@dataclass(frozen=True, slots=True, repr=False)
class Log(Readable):
    """Log; ``log_index`` counts across the block."""

    transaction_index: int
    log_index: int
    address: bytes
    topics: tuple[bytes, ...]
    data: bytes

    def encode(self) -> bytes:
        """RLP of address, topics and data."""
        return rlp.encode([self.address, self.topics, self.data])


@dataclass(frozen=True, slots=True, repr=False)
class Withdrawal(Readable):
    """Withdrawal from the beacon chain (EIP-4895); ``amount`` in gwei."""

    index: int
    validator_index: int
    address: bytes
    amount: int

    def items(self) -> list[bytes]:
        """Items of the RLP list."""
        numbers = [minimal_bytes(self.index), minimal_bytes(self.validator_index)]
        return [*numbers, self.address, minimal_bytes(self.amount)]


@dataclass(frozen=True, slots=True, repr=False)
class Block:
    """Block with the parts that its payload contains.

    Attributes:
        chain_id: from the paths; None where no path names a chain.
        header: None where the payload lacks it, like ``total_difficulty`` and ``withdrawals``.
        transactions: by index, like ``receipts`` and ``logs``; empty where the payload lacks them, such as one that was
            read with ``tracked="logs"``.
        rest: updates that are not part of the block itself: number index, state, code.
        deletes: as in the payload, like ``sub_batches``.
        derived_logs: logs of Polygon's state-sync transaction (``rpc.state_sync``), numbered after the block's logs.

    """

    chain_id: int | None
    number: int
    hash: bytes
    parent: bytes
    weight: int
    header: Header | None = None
    total_difficulty: int | None = None
    uncles: tuple[Header, ...] = ()
    transactions: tuple[Transaction, ...] = ()
    receipts: tuple[ReceiptMeta, ...] = ()
    logs: tuple[Log, ...] = ()
    withdrawals: tuple[Withdrawal, ...] | None = None
    rest: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    deletes: frozenset[str] = frozenset()
    sub_batches: Mapping[bytes, SubBatch | None] = field(default_factory=lambda: MappingProxyType({}))
    derived_logs: tuple[Log, ...] = ()

    def __repr__(self) -> str:
        """Name the block and its sizes: all of its parts are kilobytes. What the payload lacks is named so."""
        transactions = logs = None
        if self.header is not None:
            transactions, logs = self.header.transactions_root != EMPTY_ROOT, any(self.header.logs_bloom)
        sizes = _size(self.transactions, "transaction", has_any=transactions), _size(self.logs, "log", has_any=logs)
        return f"<Block {self.number} 0x{self.hash.hex()} of chain {self.chain_id}: {', '.join(sizes)}>"

    def transaction_of(self, entry: Log | ReceiptMeta) -> Transaction | None:
        """The transaction of a log or receipt of this block; None where the payload had no transactions."""
        matching = (transaction for transaction in self.transactions if transaction.index == entry.transaction_index)
        return next(matching, None)

    def encode(self) -> Payload:
        """Payload, equal to the decoded one."""
        root = f"c/{self.chain_id or 0:x}/b/{self.hash.hex()}"
        updates: dict[str, bytes] = {}
        if self.header is not None:
            updates[f"{root}/h"] = self.header.encode()
        if self.total_difficulty is not None:
            updates[f"{root}/d"] = minimal_bytes(self.total_difficulty)
        if self.withdrawals is not None:
            updates[f"{root}/w"] = rlp.encode([entry.items() for entry in self.withdrawals])
        updates |= {f"{root}/u/{index:x}": uncle.encode() for index, uncle in enumerate(self.uncles)}
        updates |= {f"{root}/t/{entry.index:x}": entry.encode() for entry in self.transactions}
        updates |= {f"{root}/r/{entry.transaction_index:x}": entry.encode() for entry in self.receipts}
        for kind, logs in (("l", self.logs), ("bl", self.derived_logs)):
            own = f"{root}/{kind}/"
            updates |= {f"{own}{entry.transaction_index:x}/{entry.log_index:x}": entry.encode() for entry in logs}
        updates |= self.rest
        return Payload(self.number, self.hash, self.parent, self.weight, updates, self.deletes, self.sub_batches)


def _size(parts: tuple[object, ...], noun: str, *, has_any: bool | None) -> str:
    """The number of a block's parts, by which it ``has_any``; None: nobody knows."""
    if parts or has_any is False:
        return str(Count(len(parts), noun))
    return f"{noun}s not in this payload" if has_any else f"no {noun}s in this payload"
