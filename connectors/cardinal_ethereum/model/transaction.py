"""Transaction values: typed fields that encode to the canonical bytes.

The rules of :mod:`.block` hold here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from cardinal.texts import Readable
from cardinal_ethereum import rlp
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.rlp import minimal_bytes

from .transaction_types import (
    ACCESS_LIST,
    BARE,
    BLOB,
    DEPOSIT,
    FEE_MARKET,
    FIELDS,
    LEGACY,
    SET_CODE,
    SIGNATURE,
    STATE_SYNC,
    WITH_ACCOUNT_NONCE,
    Fields,
)

__all__ = [
    "ACCESS_LIST",
    "BLOB",
    "DEPOSIT",
    "FEE_MARKET",
    "FIELDS",
    "LEGACY",
    "SET_CODE",
    "STATE_SYNC",
    "AccessEntry",
    "Authorization",
    "Deposit",
    "SyncedState",
    "Transaction",
    "state_sync_hash",
]

_LEGACY_V: Final = 27
_CHAIN_V: Final = 35
_ZERO_ADDRESS: Final = bytes(20)
_STATE_SYNC_PREFIX: Final = b"matic-bor-receipt-"
_AUTHORIZATION_MAGIC: Final = b"\5"  # what is signed for EIP-7702 begins with it


@dataclass(frozen=True, slots=True, repr=False)
class AccessEntry(Readable):
    """Access list entry (EIP-2930): an address and its storage keys."""

    address: bytes
    storage_keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Authorization(Readable):
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


@dataclass(frozen=True, slots=True, repr=False)
class Deposit(Readable):
    """Fields that only a deposit from the parent chain has (OP Stack); ``mint`` in wei."""

    source_hash: bytes
    sender: bytes
    mint: int
    is_system: bool


@dataclass(frozen=True, slots=True, repr=False)
class SyncedState(Readable):
    """State that Polygon's parent chain sent to a contract (PIP-74), with the hash of the transaction there."""

    id: int
    contract: bytes
    data: bytes
    transaction_hash: bytes


Special: TypeAlias = int | bytes | None
"""Value of a field that only some chains' types have."""


@dataclass(frozen=True, slots=True, repr=False)
class Transaction(Readable):
    """A transaction of type 0 (legacy) to 4 (set code), or of a type of its chain (:mod:`.transaction_types`).

    Attributes:
        index: position in the block.
        raw: canonical bytes; ``hash`` is their hash.
        chain_id: None in a legacy transaction that is valid on any chain (before EIP-155).
        nonce: None, like every other field but ``raw``, ``hash`` and ``type``, where the type is unknown. What an
            unsigned type's bytes lack is zero, as nodes return it.
        gas_price: types 0 and 1; the others have the two ``max_`` prices.
        to: None where it creates a contract.
        v: the signature's v as encoded: 27 and up for legacy, the parity 0 or 1 for the others; zero in an unsigned
            transaction, like ``r`` and ``s``.
        deposit: fields that only a deposit (OP Stack) has.
        synced: content of a state sync; its other fields are zero, as nodes return them.
        layout: fields in the bytes of other types, in order; empty where the type is unknown, None for type 0 to 4, a
            deposit or a state sync.
        special: names and values of those fields that no attribute holds; ``from_`` is the sender (:meth:`own`).

    """

    index: int
    raw: bytes
    hash: bytes
    type: int
    chain_id: int | None
    nonce: int | None
    gas_price: int | None
    max_priority_fee_per_gas: int | None
    max_fee_per_gas: int | None
    gas: int | None
    to: bytes | None
    value: int | None
    input: bytes | None
    v: int | None
    r: int | None
    s: int | None
    access_list: tuple[AccessEntry, ...] = ()
    max_fee_per_blob_gas: int | None = None
    blob_versioned_hashes: tuple[bytes, ...] = ()
    authorizations: tuple[Authorization, ...] = ()
    deposit: Deposit | None = None
    synced: tuple[SyncedState, ...] = ()
    layout: Fields | None = None
    special: tuple[tuple[str, Special], ...] = ()

    @property
    def opaque(self) -> bool:
        """True if nothing but the type, the bytes and their hash is known."""
        return self.layout == ()

    @property
    def parity(self) -> int | None:
        """Parity of the signature, 0 or 1; None where ``v`` is invalid."""
        if self.v is None or self.type != LEGACY:
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
        """Address of the signer, recovered at each call; None for an invalid signature and for an unknown type.

        An unsigned transaction names its sender; a state sync and a post-execution transaction are from address zero.

        Raises:
            MissingExtraError: the extra ``evm`` is not installed.

        """
        if self.deposit is not None:
            return self.deposit.sender
        if self.type == STATE_SYNC and self.layout is None:
            return _ZERO_ADDRESS
        if self.layout is not None and "r" not in self.layout:
            sender = self.own("from_")
            return sender if isinstance(sender, bytes) else None
        from .sender import recover  # noqa: PLC0415 -- only senders need the library

        parity = self.parity
        return None if parity is None else recover(self.signing_hash, parity, self.r or 0, self.s or 0)

    @property
    def created(self) -> bytes | None:
        """Address (20 bytes) of the contract that it creates, if its bytes have the sender's account nonce; else None.

        The sender is recovered, so an invalid signature has none (yellow paper, 7).
        """
        if not self.names_contract or self.nonce is None or (sender := self.sender) is None:
            return None
        return keccak(rlp.encode([sender, minimal_bytes(self.nonce)]))[12:]

    @property
    def names_contract(self) -> bool:
        """True if it creates a contract whose address follows from its bytes."""
        return self.to is None and self.type in WITH_ACCOUNT_NONCE and not self.opaque

    def own(self, name: str) -> Special:
        """Value of a field that only this type has; None where it has no such field."""
        return dict(self.special).get(name)

    def effective_gas_price(self, base_fee: int | None) -> int | None:
        """Price of a unit of gas in a block with this base fee (EIP-1559); None where the base fee is needed.

        None too where the fee is paid in another currency (Celo), whose base fee no header has.
        """
        if self.gas_price is not None or self.max_fee_per_gas is None:
            return self.gas_price
        if base_fee is None or self.own("fee_currency") is not None:
            return None
        return min(self.max_fee_per_gas, base_fee + (self.max_priority_fee_per_gas or 0))

    def encode(self) -> bytes:
        """The canonical bytes, built from the fields; those of an unknown type are kept."""
        if self.opaque:
            return self.raw
        if self.layout == BARE:
            return bytes((self.type,)) + (self.input or b"")
        if self.deposit is not None:
            return bytes((self.type,)) + rlp.encode(self._deposit_items(self.deposit))
        if self.type == STATE_SYNC:
            return bytes((self.type,)) + rlp.encode([_synced(entry) for entry in self.synced])
        signature = () if self.layout is not None and "r" not in self.layout else (self.v, self.r, self.s)
        body = rlp.encode([*self._unsigned(), *[minimal_bytes(part or 0) for part in signature]])
        return body if self.type == LEGACY else bytes((self.type,)) + body

    def _deposit_items(self, deposit: Deposit) -> list[rlp.Item]:
        numbers = [minimal_bytes(number or 0) for number in (deposit.mint, self.value, self.gas, deposit.is_system)]
        return [deposit.source_hash, deposit.sender, self.to or b"", *numbers, self.input or b""]

    def _unsigned(self) -> list[rlp.Item]:
        """Items without the signature."""
        return [self._item(name) for name in self.layout or FIELDS[self.type] if name not in _SIGNED]

    def _item(self, name: str) -> rlp.Item:
        """RLP item of a field."""
        if name == "access_list":
            return [[entry.address, entry.storage_keys] for entry in self.access_list]
        if name == "authorization_list":
            return [_authorization(entry) for entry in self.authorizations]
        if name == "blob_versioned_hashes":
            return self.blob_versioned_hashes
        value = getattr(self, name) if hasattr(self, name) else self.own(name)
        return value if isinstance(value, bytes) else minimal_bytes(value or 0)


_SIGNED: Final = frozenset({*SIGNATURE, "v"})


def state_sync_hash(number: int, block_hash: bytes) -> bytes:
    """Hash (32 bytes) of a block's state-sync transaction before Madhugiri (maticjs, getStateSyncTxHash)."""
    return keccak(_STATE_SYNC_PREFIX + number.to_bytes(8, "big") + block_hash)


def _synced(entry: SyncedState) -> list[bytes]:
    return [minimal_bytes(entry.id), entry.contract, entry.data, entry.transaction_hash]


def _authorization(entry: Authorization) -> list[bytes]:
    numbers = [minimal_bytes(number) for number in (entry.nonce, entry.y_parity, entry.r, entry.s)]
    return [minimal_bytes(entry.chain_id), entry.address, *numbers]
