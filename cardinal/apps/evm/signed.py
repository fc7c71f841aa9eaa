"""Transactions as values: fields with names and types, which know how to become bytes again.

The rules are those of :mod:`.values`, of which this is a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import rlp
from .jsonrpc import to_minimal
from .keccak import keccak
from .transactions import ACCESS_LIST, BLOB, LEGACY, SET_CODE, STATE_SYNC

_LEGACY_V: Final = 27
_CHAIN_V: Final = 35
_NOBODY: Final = bytes(20)
_WISH: Final = b"\5"  # what is signed for EIP-7702 begins with it


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

    @property
    def authority(self) -> bytes | None:
        """Whose account it is, recovered from the signature anew at each call; None where it is no signature.

        Raises:
            MissingExtraError: the extra ``evm`` is not installed.

        """
        from .sender import recover  # noqa: PLC0415 -- only senders need the library

        if self.y_parity not in (0, 1):
            return None
        wish = rlp.encode([to_minimal(self.chain_id), self.address, to_minimal(self.nonce)])
        return recover(keccak(_WISH + wish), self.y_parity, self.r, self.s)


@dataclass(frozen=True, slots=True)
class Deposit:
    """What a deposit from the chain below says of itself (OP Stack); ``mint`` in wei."""

    source_hash: bytes
    sender: bytes
    mint: int
    is_system: bool


@dataclass(frozen=True, slots=True)
class SyncedState:
    """What a contract of Polygon is told from the chain below (PIP-74); the hash is of the transaction there."""

    id: int
    contract: bytes
    data: bytes
    transaction_hash: bytes


@dataclass(frozen=True, slots=True)
class Transaction:
    """A signed transaction of type 0 (legacy) to 4 (set code); or a deposit (126) or state sync (127), unsigned.

    Attributes:
        index: its place in the block.
        raw: its canonical bytes; ``hash`` is theirs.
        chain_id: None in a legacy transaction that any chain would take (before EIP-155).
        gas_price: types 0 and 1; the others have the two ``max_`` prices.
        to: None where it creates a contract.
        v: the signature's v as it stands in the bytes: 27 and up for legacy, the parity 0 or 1 for the others; zero
            in a deposit or state sync, as ``r``, ``s`` and ``nonce``, which their bytes do not have.
        deposit: what only a deposit has.
        synced: all that the bytes of a state sync have; its other fields are zero, as nodes show them.

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
    deposit: Deposit | None = None
    synced: tuple[SyncedState, ...] = ()

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

        A deposit says its sender; a state sync is from address zero.

        Raises:
            MissingExtraError: the extra ``evm`` is not installed.

        """
        if self.deposit is not None:
            return self.deposit.sender
        if self.type == STATE_SYNC:
            return _NOBODY
        from .sender import recover  # noqa: PLC0415 -- only senders need the library

        parity = self.parity
        return None if parity is None else recover(self.signing_hash, parity, self.r, self.s)

    def effective_gas_price(self, base_fee: int | None) -> int | None:
        """What a unit of gas cost in a block with this base fee (EIP-1559); None where that is needed and unknown."""
        highest, priority = self.max_fee_per_gas, self.max_priority_fee_per_gas
        if self.gas_price is not None or highest is None or priority is None:
            return self.gas_price
        return None if base_fee is None else min(highest, base_fee + priority)

    def encode(self) -> bytes:
        """The canonical bytes, built from the fields."""
        if self.deposit is not None:
            return bytes((self.type,)) + rlp.encode(self._deposited(self.deposit))
        if self.type == STATE_SYNC:
            return bytes((self.type,)) + rlp.encode([_synced(entry) for entry in self.synced])
        body = rlp.encode([*self._unsigned(), to_minimal(self.v), to_minimal(self.r), to_minimal(self.s)])
        return body if self.type == LEGACY else bytes((self.type,)) + body

    def _deposited(self, said: Deposit) -> list[rlp.Item]:
        numbers = [to_minimal(number) for number in (said.mint, self.value, self.gas, said.is_system)]
        return [said.source_hash, said.sender, self.to or b"", *numbers, self.input]

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


def _synced(entry: SyncedState) -> list[bytes]:
    return [to_minimal(entry.id), entry.contract, entry.data, entry.transaction_hash]


def _authorization(entry: Authorization) -> list[bytes]:
    numbers = [to_minimal(number) for number in (entry.nonce, entry.y_parity, entry.r, entry.s)]
    return [to_minimal(entry.chain_id), entry.address, *numbers]
