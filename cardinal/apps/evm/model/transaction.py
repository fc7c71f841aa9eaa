"""Transaction values: typed fields that encode to the canonical bytes.

The rules of :mod:`.block` hold here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cardinal.apps.evm import rlp
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.rlp import minimal_bytes

LEGACY: Final = 0
ACCESS_LIST: Final = 1
FEE_MARKET: Final = 2
BLOB: Final = 3
SET_CODE: Final = 4
DEPOSIT: Final = 0x7E
STATE_SYNC: Final = 0x7F

_PRICES: Final = ("max_priority_fee_per_gas", "max_fee_per_gas")
_CALL: Final = ("gas", "to", "value", "input")
_LIST: Final = "access_list"
_SIGNATURE: Final = ("parity", "r", "s")
FIELDS: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {
        LEGACY: ("nonce", "gas_price", *_CALL, "v", "r", "s"),
        ACCESS_LIST: ("chain_id", "nonce", "gas_price", *_CALL, _LIST, *_SIGNATURE),
        FEE_MARKET: ("chain_id", "nonce", *_PRICES, *_CALL, _LIST, *_SIGNATURE),
        BLOB: (
            *("chain_id", "nonce", *_PRICES, *_CALL, _LIST, "max_fee_per_blob_gas", "blob_versioned_hashes"),
            *_SIGNATURE,
        ),
        SET_CODE: ("chain_id", "nonce", *_PRICES, *_CALL, _LIST, "authorization_list", *_SIGNATURE),
        DEPOSIT: ("source_hash", "from_", "to", "mint", "value", "gas", "is_system_tx", "input"),
    }
)
"""Fields of each transaction type in encoding order."""

_LEGACY_V: Final = 27
_CHAIN_V: Final = 35
_ZERO_ADDRESS: Final = bytes(20)
_STATE_SYNC_PREFIX: Final = b"matic-bor-receipt-"
_AUTHORIZATION_MAGIC: Final = b"\5"  # what is signed for EIP-7702 begins with it


@dataclass(frozen=True, slots=True)
class AccessEntry:
    """Access list entry (EIP-2930): an address and its storage keys."""

    address: bytes
    storage_keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Authorization:
    """Signed authorization to run another account's code (EIP-7702)."""

    chain_id: int
    address: bytes
    nonce: int
    y_parity: int
    r: int
    s: int

    @property
    def authority(self) -> bytes | None:
        """Address of the signer, recovered from the signature at each call; None for an invalid signature.

        Raises:
            MissingExtraError: the extra ``evm`` is not installed.

        """
        from .sender import recover  # noqa: PLC0415 -- only senders need the library

        if self.y_parity not in (0, 1):
            return None
        message = rlp.encode([minimal_bytes(self.chain_id), self.address, minimal_bytes(self.nonce)])
        return recover(keccak(_AUTHORIZATION_MAGIC + message), self.y_parity, self.r, self.s)


@dataclass(frozen=True, slots=True)
class Deposit:
    """Fields that only a deposit from the parent chain has (OP Stack); ``mint`` in wei."""

    source_hash: bytes
    sender: bytes
    mint: int
    is_system: bool


@dataclass(frozen=True, slots=True)
class SyncedState:
    """State that Polygon's parent chain sent to a contract (PIP-74), with the hash of the transaction there."""

    id: int
    contract: bytes
    data: bytes
    transaction_hash: bytes


@dataclass(frozen=True, slots=True)
class Transaction:
    """A signed transaction of type 0 (legacy) to 4 (set code); or a deposit (126) or state sync (127), unsigned.

    Attributes:
        index: position in the block.
        raw: canonical bytes; ``hash`` is their hash.
        chain_id: None in a legacy transaction that is valid on any chain (before EIP-155).
        gas_price: types 0 and 1; the others have the two ``max_`` prices.
        to: None where it creates a contract.
        v: the signature's v as encoded: 27 and up for legacy, the parity 0 or 1 for the others; zero in a deposit or
            state sync, like ``r``, ``s`` and ``nonce``, which their bytes do not have.
        deposit: fields that only a deposit has.
        synced: content of a state sync; its other fields are zero, as nodes return them.

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
        """Parity of the signature, 0 or 1; None where ``v`` is invalid."""
        if self.type != LEGACY:
            return self.v if self.v in (0, 1) else None
        if self.v in (_LEGACY_V, _LEGACY_V + 1):
            return self.v - _LEGACY_V
        return (self.v - _CHAIN_V) % 2 if self.v >= _CHAIN_V else None

    @property
    def signing_hash(self) -> bytes:
        """Hash that the sender signs."""
        items = self._unsigned()
        if self.type != LEGACY:
            return keccak(bytes((self.type,)) + rlp.encode(items))
        return keccak(rlp.encode(items if self.chain_id is None else [*items, minimal_bytes(self.chain_id), b"", b""]))

    @property
    def sender(self) -> bytes | None:
        """Address of the signer, recovered at each call; None for an invalid signature.

        A deposit names its sender; a state sync is from address zero.

        Raises:
            MissingExtraError: the extra ``evm`` is not installed.

        """
        if self.deposit is not None:
            return self.deposit.sender
        if self.type == STATE_SYNC:
            return _ZERO_ADDRESS
        from .sender import recover  # noqa: PLC0415 -- only senders need the library

        parity = self.parity
        return None if parity is None else recover(self.signing_hash, parity, self.r, self.s)

    def effective_gas_price(self, base_fee: int | None) -> int | None:
        """Price of a unit of gas in a block with this base fee (EIP-1559); None where the base fee is needed."""
        highest, priority = self.max_fee_per_gas, self.max_priority_fee_per_gas
        if self.gas_price is not None or highest is None or priority is None:
            return self.gas_price
        return None if base_fee is None else min(highest, base_fee + priority)

    def encode(self) -> bytes:
        """The canonical bytes, built from the fields."""
        if self.deposit is not None:
            return bytes((self.type,)) + rlp.encode(self._deposit_items(self.deposit))
        if self.type == STATE_SYNC:
            return bytes((self.type,)) + rlp.encode([_synced(entry) for entry in self.synced])
        body = rlp.encode([*self._unsigned(), minimal_bytes(self.v), minimal_bytes(self.r), minimal_bytes(self.s)])
        return body if self.type == LEGACY else bytes((self.type,)) + body

    def _deposit_items(self, deposit: Deposit) -> list[rlp.Item]:
        numbers = [minimal_bytes(number) for number in (deposit.mint, self.value, self.gas, deposit.is_system)]
        return [deposit.source_hash, deposit.sender, self.to or b"", *numbers, self.input]

    def _unsigned(self) -> list[rlp.Item]:
        call = [minimal_bytes(self.gas), self.to or b"", minimal_bytes(self.value), self.input]
        if self.type == LEGACY:
            return [minimal_bytes(self.nonce), minimal_bytes(self.gas_price or 0), *call]
        items: list[rlp.Item] = [minimal_bytes(self.chain_id or 0), minimal_bytes(self.nonce)]
        if self.type == ACCESS_LIST:
            items.append(minimal_bytes(self.gas_price or 0))
        else:
            items += [minimal_bytes(self.max_priority_fee_per_gas or 0), minimal_bytes(self.max_fee_per_gas or 0)]
        items += [*call, [[entry.address, entry.storage_keys] for entry in self.access_list]]
        if self.type == BLOB:
            items += [minimal_bytes(self.max_fee_per_blob_gas or 0), self.blob_versioned_hashes]
        elif self.type == SET_CODE:
            items.append([_authorization(entry) for entry in self.authorizations])
        return items


def state_sync_hash(number: int, block_hash: bytes) -> bytes:
    """Hash (32 bytes) of a block's state-sync transaction before Madhugiri (maticjs, getStateSyncTxHash)."""
    return keccak(_STATE_SYNC_PREFIX + number.to_bytes(8, "big") + block_hash)


def _synced(entry: SyncedState) -> list[bytes]:
    return [minimal_bytes(entry.id), entry.contract, entry.data, entry.transaction_hash]


def _authorization(entry: Authorization) -> list[bytes]:
    numbers = [minimal_bytes(number) for number in (entry.nonce, entry.y_parity, entry.r, entry.s)]
    return [minimal_bytes(entry.chain_id), entry.address, *numbers]
