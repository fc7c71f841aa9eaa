"""What a block is made of: values with names and types, which know how to become bytes again.

Rules:

1. Hashes and addresses are ``bytes`` (32 and 20), numbers ``int``; gas and prices are in gas and wei, a withdrawal's
   amount in gwei, times in seconds since 1970 in UTC.
2. A field that a block's fork or a transaction's type does not have is None, or empty where it is a sequence.
3. ``encode`` builds the bytes from the fields alone, so that equal bytes prove that nothing was lost.

Values are made by :mod:`.decoding`; nothing here checks what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Final

from cardinal.protocols.streams.payload import Payload, SubBatch

from . import rlp
from .jsonrpc import to_minimal
from .keccak import keccak
from .transactions import ACCESS_LIST, BLOB, LEGACY, SET_CODE

NO_CONTRACT: Final = bytes(20)
"""Where a receipt names no created contract (facts, EVM application layer)."""

_LEGACY_V: Final = 27
_CHAIN_V: Final = 35


@dataclass(frozen=True, slots=True)
class Header:
    """A block's header; the fields from ``base_fee_per_gas`` on came with forks and are None before theirs.

    Attributes:
        more: fields of forks that this release does not know, as RLP items.

    """

    parent_hash: bytes
    sha3_uncles: bytes
    miner: bytes
    state_root: bytes
    transactions_root: bytes
    receipts_root: bytes
    logs_bloom: bytes
    difficulty: int
    number: int
    gas_limit: int
    gas_used: int
    timestamp: int
    extra_data: bytes
    mix_hash: bytes
    nonce: bytes
    base_fee_per_gas: int | None = None
    withdrawals_root: bytes | None = None
    blob_gas_used: int | None = None
    excess_blob_gas: int | None = None
    parent_beacon_block_root: bytes | None = None
    requests_hash: bytes | None = None
    more: tuple[rlp.Item, ...] = ()

    def encode(self) -> bytes:
        """The RLP whose hash names the block."""
        items: list[rlp.Item] = []
        for name in HEADER_FIELDS:
            value: int | bytes | None = getattr(self, name)
            if value is None:
                break
            items.append(value if isinstance(value, bytes) else to_minimal(value))
        return rlp.encode([*items, *self.more])


HEADER_FIELDS: Final = tuple(entry.name for entry in fields(Header))[:-1]
"""The header's fields in the order of their bytes, without ``more``."""


@dataclass(frozen=True, slots=True)
class AccessEntry:
    """An address and the storage keys that a transaction announces to touch (EIP-2930)."""

    address: bytes
    storage_keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Authorization:
    """A signed wish to run another account's code (EIP-7702)."""

    chain_id: int
    address: bytes
    nonce: int
    y_parity: int
    r: int
    s: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A signed transaction of type 0 (legacy) to 4 (set code).

    Attributes:
        index: its place in the block.
        raw: its canonical bytes; ``hash`` is theirs.
        chain_id: None in a legacy transaction that any chain would take (before EIP-155).
        gas_price: types 0 and 1; the others have the two ``max_`` prices.
        to: None where it creates a contract.
        v: the signature's v as it stands in the bytes: 27 and up for legacy, the parity 0 or 1 for the others.

    """

    index: int
    raw: bytes
    hash: bytes
    type: int
    chain_id: int | None
    nonce: int
    gas_price: int | None
    max_priority_fee_per_gas: int | None
    max_fee_per_gas: int | None
    gas: int
    to: bytes | None
    value: int
    input: bytes
    v: int
    r: int
    s: int
    access_list: tuple[AccessEntry, ...] = ()
    max_fee_per_blob_gas: int | None = None
    blob_versioned_hashes: tuple[bytes, ...] = ()
    authorizations: tuple[Authorization, ...] = ()

    @property
    def parity(self) -> int | None:
        """Which of the two keys signed, 0 or 1; None where ``v`` says neither."""
        if self.type != LEGACY:
            return self.v if self.v in (0, 1) else None
        if self.v in (_LEGACY_V, _LEGACY_V + 1):
            return self.v - _LEGACY_V
        return (self.v - _CHAIN_V) % 2 if self.v >= _CHAIN_V else None

    @property
    def signing_hash(self) -> bytes:
        """The hash that was signed."""
        items = self._unsigned()
        if self.type != LEGACY:
            return keccak(bytes((self.type,)) + rlp.encode(items))
        return keccak(rlp.encode(items if self.chain_id is None else [*items, to_minimal(self.chain_id), b"", b""]))

    @property
    def sender(self) -> bytes | None:
        """Who signed, recovered from the signature anew at each call; None where it is no signature.

        Raises:
            MissingExtraError: the extra ``evm`` is not installed.

        """
        from .sender import recover  # noqa: PLC0415 -- only senders need the library

        parity = self.parity
        return None if parity is None else recover(self.signing_hash, parity, self.r, self.s)

    def effective_gas_price(self, base_fee: int | None) -> int | None:
        """What a unit of gas cost in a block with this base fee (EIP-1559); None where that is needed and unknown."""
        if self.max_fee_per_gas is None or self.max_priority_fee_per_gas is None:
            return self.gas_price
        return None if base_fee is None else min(self.max_fee_per_gas, base_fee + self.max_priority_fee_per_gas)

    def encode(self) -> bytes:
        """The canonical bytes, built from the fields."""
        body = rlp.encode([*self._unsigned(), to_minimal(self.v), to_minimal(self.r), to_minimal(self.s)])
        return body if self.type == LEGACY else bytes((self.type,)) + body

    def _unsigned(self) -> list[rlp.Item]:
        call = [to_minimal(self.gas), self.to or b"", to_minimal(self.value), self.input]
        if self.type == LEGACY:
            return [to_minimal(self.nonce), to_minimal(self.gas_price or 0), *call]
        items: list[rlp.Item] = [to_minimal(self.chain_id or 0), to_minimal(self.nonce)]
        if self.type == ACCESS_LIST:
            items.append(to_minimal(self.gas_price or 0))
        else:
            items += [to_minimal(self.max_priority_fee_per_gas or 0), to_minimal(self.max_fee_per_gas or 0)]
        items += [*call, [[entry.address, entry.storage_keys] for entry in self.access_list]]
        if self.type == BLOB:
            items += [to_minimal(self.max_fee_per_blob_gas or 0), self.blob_versioned_hashes]
        elif self.type == SET_CODE:
            items.append([_authorization(entry) for entry in self.authorizations])
        return items


def _authorization(entry: Authorization) -> list[bytes]:
    numbers = [to_minimal(number) for number in (entry.nonce, entry.y_parity, entry.r, entry.s)]
    return [to_minimal(entry.chain_id), entry.address, *numbers]


@dataclass(frozen=True, slots=True)
class ReceiptMeta:
    """A receipt as the stream carries it: without its logs, and with what a consensus receipt leaves out.

    Attributes:
        contract_address: the contract that was created, or None.
        status: 1 for success, 0 for failure; also 0 before Byzantium, where receipts had a root instead.
        log_offset: the block-wide index of the first of ``log_count`` logs; 0 without logs.

    """

    transaction_index: int
    contract_address: bytes | None
    cumulative_gas_used: int
    gas_used: int
    logs_bloom: bytes
    status: int
    log_count: int
    log_offset: int

    def encode(self) -> bytes:
        """The RLP that the stream carries."""
        gas = [to_minimal(self.cumulative_gas_used), to_minimal(self.gas_used)]
        logs = [to_minimal(self.log_count), to_minimal(self.log_offset)]
        return rlp.encode([self.contract_address or NO_CONTRACT, *gas, self.logs_bloom, to_minimal(self.status), *logs])


@dataclass(frozen=True, slots=True)
class Log:
    """A log; ``log_index`` counts through the block."""

    transaction_index: int
    log_index: int
    address: bytes
    topics: tuple[bytes, ...]
    data: bytes

    def encode(self) -> bytes:
        """The RLP of address, topics and data."""
        return rlp.encode([self.address, self.topics, self.data])


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A withdrawal from the beacon chain (EIP-4895); ``amount`` in gwei."""

    index: int
    validator_index: int
    address: bytes
    amount: int

    def items(self) -> list[bytes]:
        """The RLP list's items."""
        numbers = [to_minimal(self.index), to_minimal(self.validator_index)]
        return [*numbers, self.address, to_minimal(self.amount)]


@dataclass(frozen=True, slots=True)
class Block:
    """A block with the parts that its payload had.

    Attributes:
        chain_id: from the paths; None where no path names a chain.
        header: None where the payload has none, as ``total_difficulty`` and ``withdrawals``.
        transactions: by index, as ``receipts`` and ``logs``; empty where the payload has none.
        rest: the updates that are no part of the block itself: number index, state, code.
        deletes: as in the payload, as ``sub_batches``.

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

    def encode(self) -> Payload:
        """The payload again, equal to the one that was decoded."""
        root = f"c/{self.chain_id or 0:x}/b/{self.hash.hex()}"
        updates: dict[str, bytes] = {}
        if self.header is not None:
            updates[f"{root}/h"] = self.header.encode()
        if self.total_difficulty is not None:
            updates[f"{root}/d"] = to_minimal(self.total_difficulty)
        if self.withdrawals is not None:
            updates[f"{root}/w"] = rlp.encode([entry.items() for entry in self.withdrawals])
        updates |= {f"{root}/u/{index:x}": uncle.encode() for index, uncle in enumerate(self.uncles)}
        updates |= {f"{root}/t/{entry.index:x}": entry.encode() for entry in self.transactions}
        updates |= {f"{root}/r/{entry.transaction_index:x}": entry.encode() for entry in self.receipts}
        updates |= {f"{root}/l/{entry.transaction_index:x}/{entry.log_index:x}": entry.encode() for entry in self.logs}
        updates |= self.rest
        return Payload(self.number, self.hash, self.parent, self.weight, updates, self.deletes, self.sub_batches)
